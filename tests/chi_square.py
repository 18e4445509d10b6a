"""Whether counts are those of a distribution."""

import math

import numpy as np
import numpy.typing as npt

_LEAST = 5


def far(ids: npt.NDArray[np.int64], odds: npt.NDArray[np.float32]) -> float:
    """How many standard deviations chi-square of drawn ids is above what odds [V] lead to expect:
    4 is passed by chance once in 30,000 times.

    Neighbours in the order of their odds share a bin until it is expected to hold enough.
    """
    counts = np.bincount(ids, minlength=len(odds))
    assert len(counts) == len(odds)
    assert not counts[odds == 0].any(), "drawn, and has no odds"
    order = np.argsort(-odds)
    bins, expected, seen = [], 0.0, 0
    for token in order[odds[order] > 0]:
        expected += float(odds[token]) * len(ids)
        seen += int(counts[token])
        if expected >= _LEAST:
            bins.append((seen, expected))
            expected, seen = 0.0, 0
    assert len(bins) > 1, "too few bins to tell anything"
    bins[-1] = bins[-1][0] + seen, bins[-1][1] + expected
    square = sum((n - e) ** 2 / e for n, e in bins)
    freedom = len(bins) - 1
    # Wilson and Hilferty: the cube root of chi-square is nearly normal
    spread = 2 / (9 * freedom)
    return (math.cbrt(square / freedom) - (1 - spread)) / math.sqrt(spread)
