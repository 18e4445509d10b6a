"""A draft's rotary embedding, from its configuration to GGUF keys and factors."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from llamaspec.convert.plan import Rope
from llamaspec.convert.settings import Settings
from llamaspec.convert.shown import shown
from llamaspec.convert.weights import Weights, constant

KNOWN = ("default", "none", "linear", "yarn", "llama3", "proportional")
_YARN_NUMBERS = {
    "extrapolation_factor": "yarn_ext_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}
_YARN_USUAL = {"beta_fast": 32.0, "beta_slow": 1.0, "extrapolation_factor": 1.0}
UNROTATED = 1e30
"""Divides a frequency to nothing."""


def read_rope(settings: Settings, head_width: int, mrope_target: bool) -> Rope:
    """RoPE of a dense backbone.

    Args:
        settings: the draft's configuration.
        head_width: elements of an attention head.
        mrope_target: the target has multi-dimensional positions, of which a draft uses the first.

    Raises:
        ModelLoadError: no theta anywhere, a scaling that llama.cpp's draft graph cannot apply, or
            one that lacks its numbers.
    """
    fields = settings.rope()
    kind = fields["rope_type"]
    if kind not in KNOWN:
        raise settings.wrong(
            f"RoPE of type {shown(kind)} cannot be converted, only {', '.join(KNOWN)}"
        )
    if fields.get("rope_theta") is None:
        raise settings.wrong(
            "has no rope_theta, at the top, in rope_parameters or in transformer_layer_config, and "
            "a guess would only make the draft slow; add it, or give --set rope_theta=..."
        )
    theta = settings.as_number("rope_theta", fields["rope_theta"])
    if not theta > 1:
        raise settings.wrong(f"rope_theta is {theta:g}, not above 1")
    multiple = mrope_target or fields.get("mrope_section") is not None
    if _unusual_yarn(settings, fields):
        return _yarn_as_factors(settings, fields, theta, (head_width, multiple))
    fraction = fields.get("partial_rotary_factor")
    partial = kind == "llama3" and fraction not in (None, 1, 1.0)
    if kind in ("llama3", "proportional") and (multiple or partial):
        raise settings.wrong(
            f"RoPE of type {kind} needs divisors of all frequencies, which llama.cpp does not take "
            "with M-RoPE, nor with a partial rotation"
        )
    dimensions = None
    if fraction is not None and kind != "proportional":
        dimensions = _rotated(settings, fraction, head_width)
    return Rope(
        theta=theta,
        scaling=_scaling(settings, kind, fields),
        dimensions=dimensions,
        sections=(head_width // 2, 0, 0, 0) if mrope_target else _own_sections(settings, fields),
        factors=_factors(settings, kind, fields, head_width),
    )


def _rotated(settings: Settings, fraction: object, head_width: int) -> int:
    part = settings.as_number("partial_rotary_factor", fraction)
    rotated = int(head_width * part)
    if not 0 < part <= 1 or rotated < 2 or rotated % 2:
        raise settings.wrong(
            f"partial_rotary_factor {part} of heads {head_width} wide rotates {rotated} "
            "dimensions; it must be an even number, at most all"
        )
    return rotated


def _own_sections(settings: Settings, fields: dict[str, Any]) -> tuple[int, int, int, int] | None:
    sections = fields.get("mrope_section")
    if sections is None:
        return None
    good = isinstance(sections, list) and all(type(item) is int and item >= 0 for item in sections)
    if not good or not 1 <= len(sections) <= 4:
        raise settings.wrong(f"mrope_section is {shown(sections)}, not up to four whole numbers")
    a, b, c, d = [*sections, 0, 0, 0][:4]
    return a, b, c, d


def _scaling(settings: Settings, kind: str, fields: dict[str, Any]) -> dict[str, str | float | int]:
    if kind not in ("linear", "yarn"):
        return {}
    factor = _positive(settings, fields, "factor")
    if kind == "linear":
        return {"type": "linear", "factor": factor}
    original = fields.get("original_max_position_embeddings")
    if type(original) is not int or original < 1:
        raise settings.wrong(f"YaRN without original_max_position_embeddings ({shown(original)})")
    keys: dict[str, str | float | int] = {
        "type": "yarn",
        "factor": factor,
        "original_context_length": original,
    }
    for name, key in _YARN_NUMBERS.items():
        if fields.get(name) is not None:
            keys[key] = settings.as_number(name, fields[name])
    stated = fields.get("attention_factor", fields.get("attn_factor"))
    wanted = _attention_factor(settings, fields, factor)
    if stated is not None:
        keys["yarn_attn_factor"] = wanted
    usual = _magnitude(factor, 1.0)
    # llama.cpp's context overrides the key above; what it multiplies by is attn_factor
    if not math.isclose(wanted, usual, rel_tol=1e-6):
        keys["attn_factor"] = wanted / usual
    return keys


def _unusual_yarn(settings: Settings, fields: dict[str, Any]) -> bool:
    """Whether YaRN has other ramps than the usual: llama.cpp's draft graph ignores their keys."""
    return fields["rope_type"] == "yarn" and any(
        fields.get(name) is not None and settings.as_number(name, fields[name]) != usual
        for name, usual in _YARN_USUAL.items()
    )


def _yarn_as_factors(
    settings: Settings, fields: dict[str, Any], theta: float, heads: tuple[int, bool]
) -> Rope:
    """YaRN (Peng et al., 2023) worked out into a divisor a frequency, and a plain attn_factor."""
    width, multiple = heads
    if multiple or fields.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise settings.wrong(
            "YaRN with its own beta_fast, beta_slow or extrapolation_factor needs divisors of all "
            "frequencies, which llama.cpp does not take with M-RoPE or a partial rotation"
        )
    factor = _positive(settings, fields, "factor")
    original = _positive(settings, fields, "original_max_position_embeddings")
    fast, slow, part = (
        usual if fields.get(name) is None else settings.as_number(name, fields[name])
        for name, usual in _YARN_USUAL.items()
    )
    if not 0 < slow < fast or not 0 <= part <= 1:
        raise settings.wrong(
            f"beta_slow {slow:g}, beta_fast {fast:g} and extrapolation_factor {part:g} make no ramp"
        )
    low, high = (
        width * (math.log(original / 2 / math.pi) - math.log(turns)) / (2 * math.log(theta))
        for turns in (fast, slow)
    )
    low, high = max(math.floor(min(low, width)), 0), min(math.ceil(high), width - 1)
    ramp = np.clip((np.arange(width // 2) - low) / max(high - low, 0.001), 0, 1)
    kept = (1 - ramp) * part
    return Rope(
        theta=theta,
        scaling={"attn_factor": _attention_factor(settings, fields, factor)},
        factors=_divisors(settings, (1 - kept) / factor + kept),
    )


def _attention_factor(settings: Settings, fields: dict[str, Any], factor: float) -> float:
    """What attention is scaled by under YaRN, as transformers' modeling_rope_utils has it."""
    stated = fields.get("attention_factor", fields.get("attn_factor"))
    if stated is not None:
        return _above_zero(settings, "attention_factor", stated)
    both = fields.get("mscale"), fields.get("mscale_all_dim")
    if not all(both):
        return _magnitude(factor, 1.0)
    over, under = (
        settings.as_number(name, value)
        for name, value in zip(("mscale", "mscale_all_dim"), both, strict=True)
    )
    if min(_magnitude(factor, over), _magnitude(factor, under)) <= 0:
        raise settings.wrong(f"mscale {over:g} and mscale_all_dim {under:g} do not scale attention")
    return _magnitude(factor, over) / _magnitude(factor, under)


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _factors(
    settings: Settings, kind: str, fields: dict[str, Any], head_width: int
) -> Weights | None:
    if kind == "proportional":
        rotated = _rotated(settings, fields.get("partial_rotary_factor", 1.0), head_width) // 2
        still = head_width // 2 - rotated
        values = np.array([1.0] * rotated + [UNROTATED] * still, np.float32)
        return constant(values)
    if kind != "llama3":
        return None
    factor, low, high = (
        _positive(settings, fields, name)
        for name in ("factor", "low_freq_factor", "high_freq_factor")
    )
    original = _positive(settings, fields, "original_max_position_embeddings")
    if high <= low:
        raise settings.wrong(f"high_freq_factor {high} is not above low_freq_factor {low}")
    theta = settings.as_number("rope_theta", fields["rope_theta"])
    # Llama 3.1: short waves stay, long ones are stretched, between them both are mixed
    length = 2 * math.pi * theta ** (np.arange(0, head_width, 2) / head_width)
    mix = np.clip((original / length - low) / (high - low), 0, 1)
    return _divisors(settings, (1 - mix) / factor + mix)


def _divisors(settings: Settings, speeds: npt.NDArray[np.float64]) -> Weights:
    """What frequencies are divided by to become `speeds` times as high."""
    if not (speeds.min() > 1 / UNROTATED and speeds.max() < UNROTATED):
        raise settings.wrong("the numbers of its RoPE scaling leave no usable frequencies")
    return constant((1 / speeds).astype(np.float32))


def _positive(settings: Settings, fields: dict[str, Any], name: str) -> float:
    if fields.get(name) is None:
        raise settings.wrong(f"RoPE of type {fields['rope_type']} has no {name}")
    return _above_zero(settings, name, fields[name])


def _above_zero(settings: Settings, name: str, value: object) -> float:
    number = settings.as_number(name, value)
    if not number > 1e-9:
        raise settings.wrong(f"{name} is {number:g}, not above 0")
    return number
