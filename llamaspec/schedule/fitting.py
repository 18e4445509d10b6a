"""Fits a `Scaling` to rounds that were verified in full."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from llamaspec.errors import OptionError
from llamaspec.schedule.cost import isotonic
from llamaspec.schedule.reliability import Truths, Values, ece
from llamaspec.schedule.scaling import MOST_KNOTS, Knot, Scaling

GRID = np.exp(np.linspace(np.log(0.1), np.log(10), 121))
"""Temperatures that are tried, 4% apart."""
LEAST_ROUNDS = 50
"""Rounds that a position needs for a temperature of its own."""
_LEAST_OF_EACH = 10
_TOLERANCE = 1e-3
_LEAST = 1e-6
_OWN = 0.01


@dataclass(frozen=True)
class Verdicts:
    """What became of the proposals of some rounds.

    confidence [n, B]: of each proposal, NaN where none was verified. accepted [n]. known [n]: of
    how many positions it is known whether all proposals up to there were accepted. Where a text
    ends in the middle of a block, that is not known of what follows. weight [n]: whole numbers,
    how often each round counts.
    """

    confidence: Values
    accepted: npt.NDArray[np.int64]
    known: npt.NDArray[np.int64]
    weight: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls,
        confidences: Sequence[Sequence[float]],
        accepted: Sequence[int],
        known: Sequence[int] | None = None,
        weight: Sequence[int] | None = None,
    ) -> Self:
        """Of lists, one entry a round. known: None where no text ended inside a block; weight: None
        where all count once.

        Raises OptionError where the lists do not go together.
        """
        widths = [len(c) for c in confidences]
        known = widths if known is None else known
        weight = [1] * len(widths) if weight is None else weight
        if not len(widths) == len(accepted) == len(known) == len(weight):
            raise OptionError(
                f"there are confidences of {len(widths)} rounds, and accepted counts of "
                f"{len(accepted)}"
            )
        if any(not 0 <= k <= w for k, w in zip(accepted, widths, strict=True)):
            raise OptionError("a round cannot accept more proposals than it has confidences")
        table = np.full((len(widths), max(widths, default=0)), np.nan)
        for row, values in zip(table, confidences, strict=True):
            row[: len(values)] = values
        until = np.minimum(np.asarray(known, np.int64), np.asarray(widths, np.int64))
        return cls(table, np.asarray(accepted, np.int64), until, np.asarray(weight, np.int64))

    def __len__(self) -> int:
        return len(self.accepted)

    @property
    def positions(self) -> int:
        return int(self.confidence.shape[1])

    def seen(self, position: int) -> Truths:
        """Rounds [n] of which it is known whether the first `position` + 1 were all accepted."""
        seen: Truths = self.known > position
        return seen

    def survived(self, position: int) -> Truths:
        """Rounds [n] whose first `position` + 1 proposals were all accepted."""
        survived: Truths = self.accepted > position
        return survived

    def part(self, chosen: Truths) -> "Verdicts":
        """Some of the rounds."""
        return Verdicts(
            self.confidence[chosen],
            self.accepted[chosen],
            self.known[chosen],
            self.weight[chosen],
        )

    def survivals(self, scaling: Scaling) -> Values:
        """Survival probabilities [n, B]; those of NaN confidences mean nothing."""
        rows = [scaling.survival(row.tolist()) for row in self.confidence]
        return np.array(rows, np.float64).reshape(self.confidence.shape)


def fit(
    confidences: Sequence[Sequence[float]],
    accepted: Sequence[int],
    known: Sequence[int] | None = None,
    *,
    levels: bool = True,
) -> Scaling:
    """As `fit_verdicts`, of lists: confidences [n][B], accepted [n], known [n] as in `Verdicts`."""
    return fit_verdicts(Verdicts.of(confidences, accepted, known), levels=levels)


def fit_verdicts(verdicts: Verdicts, *, levels: bool = True) -> Scaling:
    """Fit a temperature for each position in turn, and with `levels` a curve after it.

    Of temperatures whose calibration errors differ by less than 0.001 the one closest to 1 is
    taken. Where a curve follows, which sets the calibration right, it is the one with the smallest
    mean square error instead: that tells proposals apart. A position with fewer than 50 known
    rounds, or fewer than 10 that did or did not survive, takes the temperature of the position
    before it (the first 1) and no curve.

    Raises OptionError where there are no rounds with confidences.
    """
    if not len(verdicts) or not verdicts.positions:
        raise OptionError("there are no rounds with confidences to calibrate on")
    temperatures: list[float] = []
    curves: list[tuple[Knot, ...]] = []
    before: Values = np.ones(len(verdicts))
    for position in range(verdicts.positions):
        seen, survived = verdicts.seen(position), verdicts.survived(position)
        logits = _logits(verdicts.confidence[:, position])
        hits = int(survived[seen].sum())
        enough = min(hits, int(seen.sum()) - hits) >= _LEAST_OF_EACH and seen.sum() >= LEAST_ROUNDS
        if enough:
            outcome = survived[seen], verdicts.weight[seen]
            found = _temperature(before[seen], logits[seen], outcome, proper=levels)
        else:
            found = temperatures[-1] if temperatures else 1.0
        temperatures.append(found)
        after = before * _sigmoid(logits / found)
        curve = _curve(after[seen], outcome) if enough and levels else ()
        if curve:
            after = np.interp(after, [x for x, _ in curve], [y for _, y in curve])
        curves.append(curve)
        before = np.minimum(before, after)
    return Scaling(tuple(temperatures), tuple(curves) if levels else ())


Outcome = tuple[Truths, npt.NDArray[np.int64]]
"""Whether rounds [n] survived, and how often each counts."""


def _temperature(before: Values, logits: Values, outcome: Outcome, *, proper: bool) -> float:
    survived, weight = outcome[0], outcome[1].astype(np.float64)
    predicted = [before * _sigmoid(logits / t) for t in GRID]
    if proper:
        return _single(GRID[np.argmin([weight @ (a - survived) ** 2 for a in predicted])])
    errors = np.array([ece(a, survived, weight) for a in predicted])
    good = np.flatnonzero(errors <= errors.min() + _TOLERANCE)
    return _single(GRID[good[np.argmin(np.abs(np.log(GRID[good])))]])


def _curve(predicted: Values, outcome: Outcome) -> tuple[Knot, ...]:
    """Isotonic regression as knots: of each pool its first and its last prediction, at the share
    that survived. A little of the prediction itself keeps the order within a pool.
    """
    survived, weight = outcome
    order = np.argsort(predicted, kind="stable")
    x, y = (np.repeat(values[order], weight[order]) for values in (predicted, survived))
    # equal predictions are one point, of their mean
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    shares = np.array(isotonic((np.bincount(place, y.astype(np.float64)) / counts)[place].tolist()))
    # a pool that all or none survived is no certainty
    least = 0.5 / len(predicted)
    shares = np.clip(shares, least, 1 - least)
    edges = np.flatnonzero(np.diff(shares)) + 1
    ends = [(float(x[i]), float(shares[i])) for i in np.r_[0, edges - 1, edges, len(x) - 1]]
    knots: list[Knot] = []
    for at, share in [(0.0, float(shares[0])), *sorted(ends), (1.0, float(shares[-1]))]:
        knot = (_single(at), _single(share + _OWN * (at - share)))
        # float32 may make one of two points
        if not knots or knot[0] > knots[-1][0]:
            knots.append(knot)
    step = 1 + len(knots) // MOST_KNOTS
    return (*knots[:-1:step], knots[-1])


def _single(value: float) -> float:
    """To the nearest float32, which a GGUF keeps exactly."""
    return float(np.float32(value))


def _logits(confidence: Values) -> Values:
    # a NaN is the least
    c = np.clip(np.nan_to_num(confidence, nan=0.0), _LEAST, 1 - _LEAST)
    logits: Values = np.log(c / (1 - c))
    return logits


def _sigmoid(x: Values) -> Values:
    found: Values = 1 / (1 + np.exp(-np.clip(x, -60, 60)))
    return found
