"""Rotary position embedding, every kind that drafts come with.

Frequencies as Hugging Face transformers computes them (modeling_rope_utils); YaRN: Peng et al.,
2023.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llamaspec.errors import ModelLoadError
from tests.reference.checkpoint import FloatArray, IntArray


@dataclass(frozen=True)
class Rope:
    """Turns pair i of a head by position x frequency[i]; values past the pairs stay as they are.

    frequency [pairs], scale multiplies cosine and sine. interleaved: pair i is (2i, 2i + 1);
    otherwise (i, i + pairs), NeoX.
    """

    frequency: npt.NDArray[np.float64]
    scale: float = 1.0
    interleaved: bool = False

    def __call__(self, x: FloatArray, position: IntArray) -> FloatArray:
        """x [n, heads, head_dim] at position [n]; negative positions turn back."""
        pairs = len(self.frequency)
        angle = position[:, None, None] * self.frequency
        cos, sin = (self.scale * f.astype(np.float32) for f in (np.cos(angle), np.sin(angle)))
        part, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
        if self.interleaved:
            a, b = part[..., 0::2], part[..., 1::2]
        else:
            a, b = part[..., :pairs], part[..., pairs:]
        turned = (a * cos - b * sin, a * sin + b * cos)
        if self.interleaved:
            part = np.stack(turned, axis=-1).reshape(part.shape)
        else:
            part = np.concatenate(turned, axis=-1)
        return np.concatenate([part, rest], axis=-1)


def make_rope(
    parameters: Mapping[str, Any], head_dim: int, longest: int, *, interleaved: bool = False
) -> Rope:
    """Read `rope_parameters` (or `rope_scaling` with a theta); longest: max_position_embeddings.

    Raises ModelLoadError for a kind that is none of default, linear, llama3, proportional and yarn.
    """
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    base, factor = float(parameters["rope_theta"]), float(parameters.get("factor") or 1.0)
    part = float(parameters.get("partial_rotary_factor") or 1.0)
    if kind == "proportional":
        # all pairs of the head, of which only the first turn
        turning = np.arange(head_dim // 2) < int(part * head_dim // 2)
        return Rope(turning * base ** (-np.arange(0, head_dim, 2) / head_dim) / factor)
    n_rot = int(head_dim * part)
    frequency = base ** (-np.arange(0, n_rot, 2) / n_rot)
    if kind == "default":
        return Rope(frequency, interleaved=interleaved)
    if kind == "linear":
        return Rope(frequency / factor, interleaved=interleaved)
    if kind == "llama3":
        return Rope(_llama3(parameters, frequency, factor), interleaved=interleaved)
    if kind != "yarn":
        raise ModelLoadError(
            f"RoPE of kind {kind!r}: there is default, linear, llama3, proportional, yarn"
        )
    kept = _yarn_kept(parameters, base, n_rot, longest)
    frequency = frequency * (kept + (1 - kept) / factor)
    return Rope(frequency, _yarn_scale(parameters, factor), interleaved)


def _llama3(
    parameters: Mapping[str, Any], frequency: npt.NDArray[np.float64], factor: float
) -> npt.NDArray[np.float64]:
    """Llama 3.1: waves longer than original / low are divided by the factor, those shorter than
    original / high stay, and between them the two are blended by how often they fit.
    """
    original = parameters["original_max_position_embeddings"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    wave = 2 * math.pi / frequency
    smooth = (original / wave - low) / (high - low)
    blended = (1 - smooth) * frequency / factor + smooth * frequency
    short = np.where(wave < original / high, frequency, blended)
    return np.where(wave > original / low, frequency / factor, short)


def _yarn_kept(
    parameters: Mapping[str, Any], base: float, n_rot: int, longest: int
) -> npt.NDArray[np.float64]:
    """How much of every frequency stays: 1 for fast pairs, 0 for slow ones, a ramp between."""
    original = parameters.get("original_max_position_embeddings") or longest

    def pair(turns: float) -> float:
        return n_rot * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(parameters.get("beta_fast") or 32), pair(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n_rot - 1)
    ramp = (np.arange(n_rot // 2) - low) / max(high - low, 0.001)
    return np.asarray(1 - np.clip(ramp, 0, 1), np.float64)


def _yarn_scale(parameters: Mapping[str, Any], factor: float) -> float:
    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])
    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return scale(parameters["mscale"]) / scale(parameters["mscale_all_dim"])
    return scale(1.0)
