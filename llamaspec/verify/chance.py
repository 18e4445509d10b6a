"""Acceptance of proposals that were sampled: residual and block, both exact for p. Pure; knows
nothing of models.

Shapes: n proposals d_1..d_n, V target vocabulary. p [n + 1, V]: row i the target's distribution
after the anchor and d_1..d_i; q [n, V]: row i the one that d_{i+1} was sampled from. Rows sum to 1.
A p of n rows stands for a text that ends with d_n, or has no token left after it: then there is no
bonus.

Sources: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023);
Sun et al., "Block Verification Accelerates Speculative Decoding" (2024).
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from llamaspec.runtime.arrays import DoubleArray, FloatArray
from llamaspec.verify.accept import Verification

SampledRule = Literal["residual", "block"]


class Judgement(NamedTuple):
    """lengths [n + 1]: probability that exactly the first 0..n proposals are accepted. scale
    [n + 1]: of p in what the bonus after k of them is drawn from, max(scale_k p_k - q_k, 0).
    """

    lengths: DoubleArray
    scale: DoubleArray


def residual(p: FloatArray, q: FloatArray, ids: Sequence[int]) -> Judgement:
    """Accept d_i, all before it accepted, with probability min(1, p(d_i) / q(d_i))."""
    keep = np.minimum(_ratios(p, q, ids), 1)
    reach = np.concatenate(([1.0], np.cumprod(keep)))
    return Judgement(reach * np.append(1 - keep, 1.0), np.ones(len(ids) + 1))


def block(p: FloatArray, q: FloatArray, ids: Sequence[int]) -> Judgement:
    """Judge the block as one: the longest prefix of those that are kept, position i with
    probability S_i / (S_i + 1 - P_i), where P_0 = 1, P_i = min(P_{i-1} p(d_i) / q(d_i), 1) and
    S_i = sum_x max(P_i p_{i+1}(x) - q_{i+1}(x), 0); all n with probability P_n.

    Accepts at least as many as `residual` in expectation.
    """
    n = len(ids)
    joint = np.ones(n + 1)
    for i, ratio in enumerate(_ratios(p, q, ids)):
        joint[i + 1] = min(joint[i] * ratio, 1.0)
    keep = joint.copy()
    for i in range(n):
        mass = float(np.maximum(joint[i] * p[i] - q[i], 0).sum(dtype=np.float64))
        room = mass + 1 - joint[i]
        # nothing left and nothing to lose: a later position decides
        keep[i] = mass / room if room > 0 else 1.0
    keep[0] = 1.0
    rejected_later = np.concatenate((np.cumprod((1 - keep)[::-1])[::-1][1:], [1.0]))
    return Judgement(keep * rejected_later, joint)


RULES: dict[SampledRule, Callable[[FloatArray, FloatArray, Sequence[int]], Judgement]] = {
    "residual": residual,
    "block": block,
}


def judge(
    rule: SampledRule,
    p: FloatArray,
    q: FloatArray,
    ids: Sequence[int],
    random: np.random.Generator,
) -> Verification:
    """Accept a prefix of the proposals and draw the bonus: two random numbers.

    Where p has fewer rows than there are proposals, those past its rows are not looked at.
    """
    ids = list(ids[: len(p)])
    found = RULES[rule](p, q, ids)
    accepted = _draw(found.lengths, random)
    kept = ids[:accepted]
    if accepted == len(p):
        return Verification(accepted, kept)
    return Verification(accepted, [*kept, _draw(bonus(found, p, q, accepted), random)])


def bonus(found: Judgement, p: FloatArray, q: FloatArray, accepted: int) -> FloatArray:
    """What the token after `accepted` proposals is drawn from, [V], up to a factor."""
    row: FloatArray = p[accepted]
    if accepted == len(found.lengths) - 1:
        return row
    left: FloatArray = np.maximum(np.float32(found.scale[accepted]) * row - q[accepted], 0)
    # p and q are equal but for rounding: nothing to make good
    return left if left.any() else row


def _ratios(p: FloatArray, q: FloatArray, ids: Sequence[int]) -> DoubleArray:
    at = np.arange(len(ids)), list(ids)
    return p[at].astype(np.float64) / q[at]


def _draw(weights: FloatArray | DoubleArray, random: np.random.Generator) -> int:
    edges = np.cumsum(weights, dtype=np.float64)
    # an index of weight 0 is never drawn: its edge is the one before
    place = min(random.random() * edges[-1], np.nextafter(edges[-1], 0))
    return int(np.searchsorted(edges, place, side="right"))
