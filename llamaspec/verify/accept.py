"""Acceptance: which proposals the target agrees with. Pure; knows nothing of models."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verification:
    """accepted: length k of the longest agreed prefix. tokens: those k and the target's own next
    one, k + 1 in all.
    """

    accepted: int
    tokens: tuple[int, ...]


def accept(choose: Callable[[int], int], proposal: Sequence[int]) -> Verification:
    """Accept while the target's choice equals the proposal; the first that differs is the bonus.

    choose(i): the target's token after the anchor and i proposals. Greedy passes the argmax of
    row i; a sampler draws from it ("match", exact for every deterministic proposal: one draw a
    committed token, in order).
    """
    tokens: list[int] = []
    for i, proposed in enumerate(proposal):
        chosen = choose(i)
        tokens.append(chosen)
        if chosen != proposed:
            return Verification(i, tuple(tokens))
    tokens.append(choose(len(proposal)))
    return Verification(len(proposal), tuple(tokens))
