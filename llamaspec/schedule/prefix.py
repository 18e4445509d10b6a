"""How many proposals of each of several sequences one target pass should verify.

The paper's Algorithm 1: all sequences' proposals are admitted one by one, likeliest to survive
first, and what is kept is the number of rows with the most expected tokens a second. Survival falls
along a sequence, so that what is admitted of it is always a prefix. Pure; knows of no models.
"""

import math
from collections.abc import Callable, Iterator, Sequence

from llamaspec.errors import OptionError

Seconds = Callable[[int], float]
"""Seconds of a target pass by its rows, the anchors included."""


def best_widths(
    survivals: Sequence[Sequence[float]],
    seconds: Seconds,
    *,
    spent: float = 0.0,
    rows: int | None = None,
    rate: float | None = None,
) -> list[int]:
    """The widths with the most expected tokens a second of all that fit: the global argmax,
    whatever steps the cost has.

    For proposals without chance in them (greedy, or a deterministic draft with `match`): the choice
    looks at confidences that tell of tokens which it then admits.

    Args:
        survivals: of each sequence a_1 >= a_2 >= ..., the probabilities that its first j proposals
            are all accepted; one larger than its predecessor counts as that, a NaN as 0.
        seconds: what a pass over so many rows costs; positive.
        spent: seconds that a round takes besides, whatever is chosen: drafting, mostly.
        rows: the most rows of the pass, one anchor a sequence included; None for no bound.
        rate: the tokens a second that rounds reach in the long run. What counts is then tokens less
            what could have been had in the time, `tokens - rate * seconds`: the best rate of many
            rounds, whose chances differ, is not that of each. None for the rate of this one.

    Returns:
        Proposals to verify of each sequence. Of equally good choices the one with fewer rows; of
        proposals equally likely to survive the one at the smaller position goes first, then that
        of the earlier sequence.

    Raises:
        OptionError: rows cannot hold one anchor a sequence.
    """
    return _widths(survivals, _worth(seconds, spent, rate), rows, stop=False)


def first_fall_widths(
    survivals: Sequence[Sequence[float]],
    seconds: Seconds,
    *,
    spent: float = 0.0,
    rows: int | None = None,
    rate: float | None = None,
) -> list[int]:
    """As `best_widths`, but admission ends with the first proposal that does not raise the rate, as
    the paper's does.

    For proposals that were sampled: a confidence tells of the tokens before its position only, so
    whether a token is admitted depends on no draw of that token or of later ones, and the accepted
    text keeps the target's distribution (the paper's section 5.2). A rate that stays the same ends
    it too: going on and coming back would look ahead.
    """
    return _widths(survivals, _worth(seconds, spent, rate), rows, stop=True)


def _worth(seconds: Seconds, spent: float, rate: float | None) -> Callable[[float, int], float]:
    """What a pass over so many rows is worth that gives so many tokens."""
    if rate is None:
        return lambda tokens, rows: tokens / (spent + seconds(rows))
    return lambda tokens, rows: tokens - rate * seconds(rows)


def _widths(
    survivals: Sequence[Sequence[float]],
    worth: Callable[[float, int], float],
    rows: int | None,
    *,
    stop: bool,
) -> list[int]:
    count = len(survivals)
    widths = [0] * count
    if not count:
        return widths
    if rows is not None and rows < count:
        raise OptionError(f"a pass of {rows} rows cannot hold one of each of {count} sequences")
    room = math.inf if rows is None else rows - count
    expected = float(count)
    most = worth(expected, count)
    admitted: list[int] = []
    kept = 0
    for survival, sequence in _in_order(survivals):
        if len(admitted) >= room:
            break
        admitted.append(sequence)
        expected += survival
        found = worth(expected, count + len(admitted))
        if found > most:
            most, kept = found, len(admitted)
        elif stop:
            break
    for sequence in admitted[:kept]:
        widths[sequence] += 1
    return widths


def _in_order(survivals: Sequence[Sequence[float]]) -> Iterator[tuple[float, int]]:
    """Every proposal's survival with its sequence, the likeliest to survive first."""
    found = [
        (-survival, position, sequence)
        for sequence, values in enumerate(survivals)
        for position, survival in enumerate(falling(values))
    ]
    found.sort()
    for survival, _, sequence in found:
        yield -survival, sequence


def falling(values: Sequence[float]) -> Iterator[float]:
    """Probabilities, none larger than the one before it; what is no number is 0."""
    least = 1.0
    for value in values:
        # in this order a NaN is 0
        least = min(least, value) if value > 0 else 0.0
        yield least
