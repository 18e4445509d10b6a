"""Converts miniature checkpoints with the weights of a target, and reads what came out."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from llamaspec.convert import Job, Wishes, convert
from llamaspec.convert.run import Report
from llamaspec.runtime.arrays import FloatArray
from tests.checkpoints import Pair
from tests.checkpoints.shapes import TARGET_LAYERS
from tests.checkpoints.writing import Stored, Weights, write_json, write_safetensors
from tests.miniature import write_gguf
from tests.native_block import NativeBlock, run_block
from tests.reference import Block, Draft, load
from tests.reference.checkpoint import Checkpoint

ANCHOR = 11
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_HEADS, _KV_HEADS, _HEAD_DIM, _FFN = 4, 2, 16, 32
Shards = dict[str, Stored]


@dataclass(frozen=True)
class Ready:
    """Checkpoint folders of which the target's has tables, and a target GGUF of the same tables."""

    pair: Pair
    target: Path

    def convert(self, name: str, outtype: str = "f32", **wishes: Any) -> Path:  # noqa: ANN401
        """Convert the draft to a file beside the folders."""
        output = self.target.with_name(name)
        make(self.pair.draft, self.pair.target, output, outtype, **wishes)
        return output

    def reference(self) -> Draft:
        return load(self.pair.draft, self.pair.target)


def make(draft: Path, target: Path, output: Path, outtype: str = "f32", **wishes: Any) -> Report:  # noqa: ANN401
    """Convert, with Wishes by keyword."""
    return convert(Job(draft, target, output, outtype, Wishes(**wishes)))


def give_tables(pair: Pair, folder: Path, *, copied: bool = True) -> Ready:
    """Add embedding and head to the target's folder: the draft's own, where it has whole ones and
    they are copies, and no head where the target is tied. A draft inside its target's checkpoint
    has them.
    """
    if pair.target != pair.draft:
        text = json.loads((pair.target / "config.json").read_text())
        text = {**text, **text.get("text_config", {})}
        shape = text["vocab_size"], text["hidden_size"]
        own, made = read_shards(pair.draft), Weights("tables")
        made.bf16("embed_tokens.weight", *shape)
        made.bf16("lm_head.weight", *shape)
        names = {"embed_tokens.weight": EMBEDDING}
        if not (text.get("tie_word_embeddings") or text.get("tie_embedding")):
            names["lm_head.weight"] = HEAD
        tables = {}
        for bare, full in names.items():
            found = own.get(bare)
            fits = copied and found is not None and found.shape == shape
            tables[full] = found if found is not None and fits else made.stored[bare]
        write_safetensors(pair.target / "model.safetensors", tables)
    return Ready(pair, write_target(Checkpoint(pair.target), folder / "target.gguf"))


def write_target(weights: Checkpoint, path: Path) -> Path:
    """A Qwen3 around the tables of a checkpoint, which llama.cpp loads; its layers say nothing."""
    embedding = weights.get("embed_tokens.weight")
    embedding = weights("embed.weight") if embedding is None else embedding
    head = weights.get("lm_head.weight")
    head = weights.get("head.weight") if head is None else head
    rows, wide = embedding.shape
    metadata = {
        "general.name": "Tables",
        "general.file_type": 0,
        "qwen3.block_count": TARGET_LAYERS,
        "qwen3.context_length": 4096,
        "qwen3.embedding_length": wide,
        "qwen3.feed_forward_length": _FFN,
        "qwen3.attention.head_count": _HEADS,
        "qwen3.attention.head_count_kv": _KV_HEADS,
        "qwen3.attention.key_length": _HEAD_DIM,
        "qwen3.attention.value_length": _HEAD_DIM,
        "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(rows)],
        "tokenizer.ggml.token_type": [1] * rows,
        "tokenizer.ggml.merges": ["t 1"],
    }
    sizes = {
        "attn_norm": (wide,),
        "ffn_norm": (wide,),
        "attn_q": (_HEADS * _HEAD_DIM, wide),
        "attn_k": (_KV_HEADS * _HEAD_DIM, wide),
        "attn_v": (_KV_HEADS * _HEAD_DIM, wide),
        "attn_output": (wide, _HEADS * _HEAD_DIM),
        "attn_q_norm": (_HEAD_DIM,),
        "attn_k_norm": (_HEAD_DIM,),
        "ffn_gate": (_FFN, wide),
        "ffn_up": (_FFN, wide),
        "ffn_down": (wide, _FFN),
    }
    layers = {
        f"blk.{number}.{name}.weight": np.ones(size, np.float32)
        for number in range(TARGET_LAYERS)
        for name, size in sizes.items()
    }
    tables = {"token_embd.weight": embedding, "output.weight": head}
    norm = {"output_norm.weight": np.ones(wide, np.float32)}
    return write_gguf(path, "qwen3", metadata, {**tables, **norm, **layers})


def read_shards(folder: Path) -> Shards:
    """Every tensor of a checkpoint, as stored."""
    found: Shards = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:start])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            data = raw[start + first : start + last]
            found[name] = Stored(entry["dtype"], tuple(entry["shape"]), data)
    return found


def recast(folder: Path, tensors: Shards) -> None:
    """Give the checkpoint of one file in a folder other tensors."""
    write_safetensors(folder / "model.safetensors", tensors)


def reconfigure(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a folder's config.json in place."""
    config = json.loads((folder / "config.json").read_text())
    change(config)
    write_json(folder / "config.json", config)


def features(draft: Draft, n: int) -> FloatArray:
    """Random feature rows [n, taps * width] for a draft."""
    width = draft.backbone.fc.shape[1]  # type: ignore[attr-defined]
    return np.random.default_rng(n).normal(scale=2, size=(n, width)).astype(np.float32)


def both(path: Path, ready: Ready, n: int, length: int | None = None) -> tuple[NativeBlock, Block]:
    """A block over n random rows: llama.cpp's of a file, and the reference's of its source."""
    draft = ready.reference()
    rows, length = features(draft, n), length or draft.block_size
    native = run_block(path, ready.target, rows, ANCHOR, length)
    return native, draft.block(draft.context(rows), ANCHOR, n, length)


def tensor_types(path: Path) -> dict[str, str]:
    """GGUF types by tensor name."""
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
