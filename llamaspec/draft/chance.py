"""Drafts that are drawn: noise that makes the largest logit a draw, and the distribution it is of.

With g standard Gumbel noise, argmax(logits / T + g) is a draw from softmax(logits / T).
"""

from dataclasses import dataclass

import numpy as np

from llamaspec.draft.drafter import Dice
from llamaspec.errors import DecodeError
from llamaspec.runtime.arrays import FloatArray, IntArray

# float32 draws have steps of 2^-24, too coarse below: one would be 0, and win whatever its logit
_COARSE = 2.0**-8


@dataclass(frozen=True)
class Noise:
    """For a draw at a temperature T: rows [L, Vd], T times standard Gumbel noise."""

    temperature: float
    rows: FloatArray


def roll(dice: Dice, out: FloatArray) -> Noise:
    """Fill out [L, Vd], contiguous float32. A row's noise depends on the generator's state and the
    rows before, not on how many follow.
    """
    random = dice.random.random
    for row in out:
        # 1 - exp(-x), of a standard exponential x, is uniform; -log(x) is standard Gumbel noise
        random(dtype=np.float32, out=row)
        small = np.flatnonzero(row < _COARSE)
        np.subtract(1, row, out=row)
        np.log(row, out=row)
        row[small] = np.log1p(-_COARSE * (1 - random(len(small))))
        np.negative(row, out=row)
        np.log(row, out=row)
        row *= -dice.temperature
    return Noise(dice.temperature, out)


def tempered(logits: FloatArray, temperature: float) -> FloatArray:
    """Rows of softmax(logits / T), float32, of rows of logits.

    Raises DecodeError where logits are not numbers.
    """
    with np.errstate(invalid="ignore"):
        odds: FloatArray = logits - logits.max(axis=1, keepdims=True)
    odds /= temperature
    np.exp(odds, out=odds)
    total = odds.sum(axis=1, keepdims=True)
    if not np.isfinite(total).all():
        raise DecodeError("the draft's logits are not numbers")
    odds /= total
    return odds


def spread(odds: FloatArray, d2t: IntArray | None, vocabulary: int) -> FloatArray:
    """Odds of draft rows [L, Vd] by target ids [L, vocabulary]: 0 for what has no row."""
    if d2t is None and odds.shape[1] == vocabulary:
        return odds
    found = np.zeros((len(odds), vocabulary), np.float32)
    found[:, slice(odds.shape[1]) if d2t is None else d2t] = odds
    return found
