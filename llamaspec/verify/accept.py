"""Acceptance: which proposals the target agrees with. Pure; knows nothing of models."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Verification(NamedTuple):
    """accepted: length k of the longest agreed prefix. tokens: those k and the target's own next
    one, k + 1 in all.
    """

    accepted: int
    tokens: list[int]


def certain_part(found: Verification, gaps: Sequence[float], bound: float) -> Verification:
    """What of a verification stands although a row's two largest logits may have moved against
    each other by `bound`: the choices before the first row whose gap is no larger.

    gaps: the gap of the row after the anchor and 0, 1, 2, ... proposals, one a token at least.
    Without its last choice a verification has as many tokens as it has accepted proposals.
    """
    for row, gap in zip(range(len(found.tokens)), gaps, strict=False):
        if not gap > bound:
            return Verification(row, found.tokens[:row])
    return found


def accept(choices: Iterable[int], proposal: Sequence[int]) -> Verification:
    """Accept while the target's choice equals the proposal; the first that differs is the bonus.

    choices: the target's token after the anchor and 0, 1, 2, ... proposals, read as far as needed.
    Greedy passes the argmax of each row; a sampler draws from them one by one ("match", exact for
    every deterministic proposal: one draw a committed token, in order). Choices that give out
    early, where the text ends, end the result.
    """
    proposed = iter(proposal)
    tokens: list[int] = []
    for chosen in choices:
        tokens.append(chosen)
        # after the last proposal there is none to equal: that choice is the bonus
        if chosen != next(proposed, None):
            return Verification(len(tokens) - 1, tokens)
    return Verification(len(tokens), tokens)
