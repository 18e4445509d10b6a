"""Writes GGUFs of a few kilobytes: a target and a DSpark draft that fits it, with any change."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

WIDTH, LAYERS, VOCABULARY, RANK, TAPS, BLOCK = 32, 4, 64, 8, [1, 3], 5
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m['content'] }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
Changes = Mapping[str, Any]


def write_gguf(path: Path, arch: str, metadata: Changes, tensors: Changes) -> Path:
    """Write a GGUF; entries that are None are left out."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            (writer.add_int32 if value < 0 else writer.add_uint32)(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    for name, tensor in tensors.items():
        if tensor is not None:
            writer.add_tensor(name, tensor)
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    """Write everything that was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_target(
    path: Path, metadata: Changes | None = None, tensors: Changes | None = None, arch: str = "qwen3"
) -> Path:
    """A target of 4 layers, 32 wide, 64 tokens."""
    pairs = _common(arch, "Mini Target", LAYERS) | dict(metadata or {})
    weights = {"token_embd.weight": ramp(VOCABULARY, WIDTH), "output_norm.weight": ramp(WIDTH)}
    return write_gguf(path, arch, pairs, weights | dict(tensors or {}))


def write_draft(
    path: Path, metadata: Changes | None = None, tensors: Changes | None = None
) -> Path:
    """A DSpark draft for `write_target`: anchor-first, block 5, vanilla head of rank 8."""
    pairs = _common("dflash", "Mini Draft", 1) | {
        "dflash.block_size": BLOCK,
        "dflash.target_layers": TAPS,
        "dflash.sample_from_anchor": True,
        "tokenizer.ggml.mask_token_id": VOCABULARY - 1,
    }
    weights = {
        "fc.weight": ramp(WIDTH, len(TAPS) * WIDTH),
        "output_norm.weight": ramp(WIDTH),
        "markov_w1.weight": ramp(VOCABULARY, RANK),
        "markov_w2.weight": ramp(VOCABULARY, RANK),
        "conf_proj.weight": ramp(1, WIDTH + RANK),
    }
    return write_gguf(path, "dflash", pairs | dict(metadata or {}), weights | dict(tensors or {}))


def ramp(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A tensor with every element different."""
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _common(arch: str, name: str, layers: int) -> dict[str, Any]:
    return {
        "general.name": name,
        "general.file_type": 0,
        f"{arch}.block_count": layers,
        f"{arch}.embedding_length": WIDTH,
        f"{arch}.context_length": 128,
        f"{arch}.attention.head_count": 2,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [f"t{i}é" for i in range(VOCABULARY)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }
