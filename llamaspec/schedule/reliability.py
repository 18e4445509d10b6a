"""How far probabilities can be trusted: expected calibration error, ROC-AUC, reliability bins.

Bins are ten stretches of [0, 1] of equal width (Guo et al., 2017), as everywhere in llamaspec; with
`mass` ten groups of equally many predictions instead, equal predictions staying together, which
looks closer where nearly all predictions are near 1.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llamaspec.errors import OptionError

BINS = 10
_SEED = 11

Values = npt.NDArray[np.float64]
Truths = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Bin:
    """Predictions that lie together: their weight, their mean, the share that came true."""

    weight: float
    predicted: float
    happened: float


def reliability(
    predicted: Values, happened: Truths, weight: Values, *, mass: bool = False, bins: int = BINS
) -> tuple[Bin, ...]:
    """The bins that hold anything, rising, of predictions [n] with weights [n] and of what came
    true [n].
    """
    where = _places(predicted, mass=mass, bins=bins)
    sums = [
        np.bincount(where, values, minlength=bins)
        for values in (weight, weight * predicted, weight * happened)
    ]
    return tuple(
        Bin(float(w), float(p / w), float(h / w)) for w, p, h in zip(*sums, strict=True) if w > 0
    )


def ece(
    predicted: Values,
    happened: Truths,
    weight: Values | None = None,
    *,
    mass: bool = False,
    bins: int = BINS,
) -> float:
    """The expected calibration error: the mean over all predictions of |mean prediction - share
    that came true| of their bin. weight: of each in the means, None for all alike. 0 without any
    prediction.
    """
    if not len(predicted):
        return 0.0
    weight = np.ones(len(predicted)) if weight is None else weight
    where = _places(predicted, mass=mass, bins=bins)
    gaps = np.bincount(where, weight * (predicted - happened), minlength=bins)
    return float(np.abs(gaps).sum() / weight.sum())


def ece_by_chance(
    predicted: Values, weight: Values | None = None, *, draws: int = 200, bins: int = BINS
) -> float:
    """The calibration error that so many predictions show on average although each is exactly
    right: what happens is drawn by them, independently, with a fixed seed.
    """
    noise = np.random.default_rng(_SEED)
    size = (draws, len(predicted))
    found = [ece(predicted, row < predicted, weight, bins=bins) for row in noise.random(size)]
    return float(np.mean(found))


def roc_auc(scores: Values, happened: Truths) -> float | None:
    """P(a score of what came true > one of what did not), equal ones counted half; None where all
    or none came true.
    """
    true = int(happened.sum())
    false = len(happened) - true
    if not true or not false:
        return None
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    # the mean rank of equal scores
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((ranks[happened].sum() - true * (true + 1) / 2) / (true * false))


def _places(predicted: Values, *, mass: bool, bins: int) -> npt.NDArray[np.int64]:
    if not np.all((predicted >= 0) & (predicted <= 1)):
        raise OptionError("predictions must be probabilities in 0 to 1")
    if not mass:
        return np.minimum((predicted * bins).astype(np.int64), bins - 1)
    # equal predictions go where the first of them belongs
    first = np.searchsorted(np.sort(predicted), predicted, side="left")
    return (first * bins // max(1, len(predicted))).astype(np.int64)
