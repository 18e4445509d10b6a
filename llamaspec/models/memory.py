"""What a model takes of a machine's memory, told from its header; and whether it is there."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llamaspec.options import DEFAULT_CONTEXT
from llamaspec.runtime.backend import Device
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.metadata import MAX_LAYERS, Keys

# of a cache in f16
_CACHE_BYTES = 2
# buffers of a pass, by what llama.cpp allocates for mid-sized models
_BUFFERS = 300 << 20
_BITS = 4.85
"""A weight of a Q4_K_M."""


@dataclass(frozen=True)
class Verdict:
    """Whether so many bytes are there. word: fits, tight (only if other programs leave memory), or
    too large. device: where, "" where too large.
    """

    word: str
    device: str


def judge(needed: int, there: Sequence[Device]) -> Verdict:
    """Where a pair fits: graphics cards together before the CPU's memory."""
    cards = [device for device in there if device.kind == "gpu"]
    others = [device for device in there if device.kind in ("igpu", "cpu")]
    groups = [cards, *([other] for other in others)]
    for word, sizes in (("fits", "free_bytes"), ("tight", "total_bytes")):
        for group in filter(None, groups):
            if needed <= sum(getattr(device, sizes) for device in group):
                return Verdict(word, "+".join(device.name for device in group))
    return Verdict("too large", "")


def needed(path: Path, size: int, context: int = DEFAULT_CONTEXT) -> int:
    """Bytes of a loaded file: weights, caches of a context (at most the trained one), buffers."""
    with GGUFFile.open(path) as file:
        keys, arch = Keys(path, file.metadata), file.architecture
    trained = keys.integer(f"{arch}.context_length") or context
    return size + min(context, trained) * _position(keys, arch) + _BUFFERS


def estimated(parameters: int, draft_bytes: int) -> int:
    """Bytes of a pair that is not here, its target in Q4_K_M."""
    return target_bytes(parameters) + draft_bytes + 2 * _BUFFERS


def target_bytes(parameters: int) -> int:
    """About the size of a Q4_K_M."""
    return round(parameters * _BITS / 8)


def _position(keys: Keys, arch: str) -> int:
    """Bytes of a position in all layers' caches."""
    layers = min(keys.integer(f"{arch}.block_count"), MAX_LAYERS)
    heads = keys.most(f"{arch}.attention.head_count")
    name = f"{arch}.attention.head_count_kv"
    per_layer = keys.integers(name, MAX_LAYERS) if keys.length(name) is not None else ()
    kv_heads = sum(per_layer) if per_layer else layers * (keys.integer(name) or heads)
    width = keys.integer(f"{arch}.embedding_length") // max(1, heads)
    key = keys.integer(f"{arch}.attention.key_length") or width
    value = keys.integer(f"{arch}.attention.value_length") or width
    return kv_heads * (key + value) * _CACHE_BYTES
