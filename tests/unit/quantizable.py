"""GGUFs of a few kilobytes that llama.cpp's quantiser takes, and what is in a result."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from llamaspec.runtime.gguf_file import GGUFFile
from tests.miniature import VOCABULARY, WIDTH, finish, ramp, write_draft, write_target

Floats = np.ndarray[Any, np.dtype[np.float32]]
ROWS, COLUMNS = 64, 512


def normal(*shape: int) -> Floats:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def loadable(arch: str, **more: object) -> dict[str, object]:
    """What llama.cpp's quantiser reads of a model besides its tensors."""
    return {
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{arch}.feed_forward_length": WIDTH,
        **more,
    }


def write_source(path: Path, **tensors: object) -> Path:
    named = {name.replace("__", ".") + ".weight": value for name, value in tensors.items()}
    return write_target(path, loadable("qwen3"), named)


def write_gated_draft(path: Path) -> Path:
    tensors = {
        "fc.weight": normal(COLUMNS, 2 * COLUMNS),
        "markov_gate.weight": normal(32, 64),
        "blk.0.ffn_up.weight": normal(ROWS, COLUMNS),
        "d2t": np.arange(VOCABULARY, dtype=np.int64),
    }
    return write_draft(path, loadable("dflash"), tensors)


def left_behind(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(".part")]


def types_in(path: Path) -> dict[str, str]:
    with GGUFFile.open(path) as file:
        return {name: info.type for name, info in file.tensors.items()}


def write_with(writer: gguf.GGUFWriter) -> None:
    """Give a writer the least of a model that llama.cpp quantises."""
    for name in ("block_count", "embedding_length", "context_length", "attention.head_count"):
        writer.add_uint32(f"qwen3.{name}", 1 if name == "block_count" else WIDTH)
    writer.add_float32("qwen3.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_tensor("token_embd.weight", normal(VOCABULARY, WIDTH))
    writer.add_tensor("output_norm.weight", ramp(WIDTH))
    finish(writer)
