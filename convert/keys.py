"""The metadata of a draft's GGUF."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from gguf import GGUFValueType as Type

from llamaspec.convert.plan import DraftConfig
from llamaspec.convert.shown import shown
from llamaspec.errors import ModelLoadError

PREFIX = "dflash."
_RANGES = {
    Type.UINT8: (0, 2**8 - 1),
    Type.UINT32: (0, 2**32 - 1),
    Type.INT32: (-(2**31), 2**31 - 1),
}
_LARGEST_FLOAT = 3.4e38


class Value(NamedTuple):
    """A metadata value with its GGUF type; `item` is the type of an array's items."""

    value: Any
    kind: Type
    item: Type | None = None


def typed(value: Any) -> Value:  # noqa: ANN401
    """A Python value with the type that llama.cpp's loader wants of it.

    Whole numbers are UINT32, others FLOAT32; lists of whole numbers INT32.
    """
    if isinstance(value, Value):
        return value
    if isinstance(value, bool):
        return Value(value, Type.BOOL)
    if isinstance(value, int):
        return Value(value, Type.UINT32)
    if isinstance(value, float):
        return Value(value, Type.FLOAT32)
    if isinstance(value, str):
        return Value(value, Type.STRING)
    items = list(value)
    kinds = {bool: Type.BOOL, int: Type.INT32, float: Type.FLOAT32, str: Type.STRING}
    return Value(items, Type.ARRAY, kinds[type(items[0])] if items else Type.STRING)


def check_value(key: str, value: Value) -> None:
    """Raise ModelLoadError where a value is not of its GGUF type, or beyond it."""
    kind = value.item if value.kind is Type.ARRAY else value.kind
    for item in value.value if value.kind is Type.ARRAY else (value.value,):
        if not _fits(item, kind):
            name = "?" if kind is None else kind.name
            raise ModelLoadError(f"{key} is {shown(item)}, which is no {name} of a GGUF")


def _fits(item: object, kind: Type | None) -> bool:
    if isinstance(item, bool) or kind is Type.BOOL:
        return isinstance(item, bool) and kind is Type.BOOL
    if isinstance(item, str) or kind is Type.STRING:
        # JSON's escapes can make half of a character
        return isinstance(item, str) and kind is Type.STRING and _is_text(item)
    if kind is Type.FLOAT32:
        finite = isinstance(item, float) and math.isfinite(item)
        return isinstance(item, int | float) and (not finite or abs(item) < _LARGEST_FLOAT)
    low, high = _RANGES.get(kind, (0, -1)) if kind is not None else (0, -1)
    return isinstance(item, int) and low <= item <= high


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def draft_keys(config: DraftConfig) -> dict[str, Value]:
    """Every `dflash.*` key of a draft, and its mask token."""
    shape, rope = config.shape, config.rope
    found: dict[str, Any] = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.width,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.layer_norm_rms_epsilon": shape.rms_epsilon,
        "rope.freq_base": rope.theta,
        "block_size": config.block,
        "target_layers": list(config.taps),
    }
    if shape.feed_forward is not None:
        found["feed_forward_length"] = shape.feed_forward
    if shape.head_width is not None:
        found |= dict.fromkeys(("attention.key_length", "attention.value_length"), shape.head_width)
    if config.anchor_first is not None:
        found["sample_from_anchor"] = config.anchor_first
    if config.confidence is not None:
        found["has_confidence_head"] = config.confidence
    if config.markov[0] in ("gated", "rnn"):
        found["markov_head_type"] = config.markov[0]
    found |= {f"rope.scaling.{name}": value for name, value in rope.scaling.items()}
    if rope.dimensions is not None:
        found["rope.dimension_count"] = rope.dimensions
    if rope.sections is not None:
        found["rope.dimension_sections"] = list(rope.sections)
    found |= config.extra
    keys = {PREFIX + name: typed(value) for name, value in found.items()}
    return keys | {"tokenizer.ggml.mask_token_id": typed(config.mask)}


def source_keys(source: Mapping[str, Any]) -> dict[str, Value]:
    """Where a draft came from, below `llamaspec.source.`; entries that are None are left out."""
    return {
        f"llamaspec.source.{name}": typed(value)
        for name, value in source.items()
        if value is not None and value != []
    }
