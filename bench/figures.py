"""Figures of a benchmark: medians, paired ratios with intervals, acceptance, calibration. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from statistics import median
from typing import NamedTuple

import numpy as np

SEED = 20240601
RESAMPLES = 2000
LEVEL = 0.95
BINS = 10


class Interval(NamedTuple):
    """A middle with the bounds of its interval."""

    middle: float
    low: float
    high: float


def bootstrap(values: Sequence[float], *, resamples: int = RESAMPLES, seed: int = SEED) -> Interval:
    """The median and its percentile interval of 95%: the medians of samples of the same size,
    drawn with replacement by a fixed seed (Efron 1979). One value is its own interval.
    """
    data = np.asarray(values, np.float64)
    assert data.size, "no values"
    draws = np.random.default_rng(seed).integers(0, data.size, (resamples, data.size))
    medians = np.median(data[draws], axis=1)
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(medians, [tail, 100 - tail])
    return Interval(float(np.median(data)), float(low), float(high))


def paired_ratios(rates: Sequence[Sequence[float]], base: Sequence[Sequence[float]]) -> list[float]:
    """One ratio a prompt: the median over the repeats of rate / base rate of the same repeat.

    rates, base [prompt][repeat]. Where a rate is not known (0), that repeat gives no ratio, and a
    prompt without any gives none.
    """
    found = []
    for mine, other in zip(rates, base, strict=True):
        each = [a / b for a, b in zip(mine, other, strict=True) if a > 0 and b > 0]
        if each:
            found.append(median(each))
    return found


@dataclass(frozen=True, slots=True)
class Verdict:
    """One round of a draft: how many proposals were verified, how many of them accepted, and the
    confidence of each, where the draft has a head for that.
    """

    drafted: int
    accepted: int
    confidence: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What became of the proposals of some rounds, all by position, the first proposal first.

    verified: rounds that verified a proposal there. reached: those of them in which all proposals
    before it were accepted. accepted: those in which it was accepted too.
    lengths[n]: rounds in which n proposals were accepted.
    """

    verified: tuple[int, ...]
    reached: tuple[int, ...]
    accepted: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def conditional(self) -> tuple[float, ...]:
        """accepted / reached: how good a proposal is once it counts. 0 where none was reached."""
        return _shares(self.accepted, self.reached)

    @property
    def unconditional(self) -> tuple[float, ...]:
        """accepted / verified: how often a row of the pass was worth computing."""
        return _shares(self.accepted, self.verified)


def acceptance(rounds: Iterable[Verdict]) -> Acceptance:
    """Count the proposals of some rounds by position."""
    chosen = list(rounds)
    width = max((r.drafted for r in chosen), default=0)
    verified, reached, accepted = ([0] * width for _ in range(3))
    lengths = [0] * (width + 1)
    for record in chosen:
        lengths[record.accepted] += 1
        for i in range(record.drafted):
            verified[i] += 1
            reached[i] += i <= record.accepted
            accepted[i] += i < record.accepted
    return Acceptance(tuple(verified), tuple(reached), tuple(accepted), tuple(lengths))


@dataclass(frozen=True, slots=True)
class Bin:
    """Proposals whose confidence lies in one stretch of [0, 1]: how many, their mean confidence,
    the share that was accepted.
    """

    count: int
    confidence: float
    accepted: float


@dataclass(frozen=True, slots=True)
class Reliability:
    """Confidence against acceptance, of proposals that were reached. ece: the expected calibration
    error, the mean over all proposals of |confidence - share accepted| of their bin (Guo 2017).
    """

    bins: tuple[Bin, ...]
    ece: float


def reliability(rounds: Iterable[Verdict], bins: int = BINS) -> Reliability | None:
    """Compare confidences with what was accepted; None where no proposal has one."""
    pairs = [
        (confidence, i < record.accepted)
        for record in rounds
        for i, confidence in enumerate((record.confidence or ())[: record.accepted + 1])
    ]
    if not pairs:
        return None
    values, hits = (np.array(column, np.float64) for column in zip(*pairs, strict=True))
    where = np.clip((values * bins).astype(int), 0, bins - 1)
    found = []
    for number in range(bins):
        inside = where == number
        if inside.any():
            found.append(
                Bin(int(inside.sum()), float(values[inside].mean()), float(hits[inside].mean()))
            )
    ece = sum(b.count * abs(b.confidence - b.accepted) for b in found) / len(pairs)
    return Reliability(tuple(found), ece)


def tau(tokens: int, rounds: int) -> float:
    """Tokens a round, the target's own included; a text's first token comes from its prompt."""
    return (tokens - 1) / rounds if rounds > 0 else 0.0


def unconditional(rates: Sequence[float]) -> list[float]:
    """P(the first i + 1 proposals are accepted) of conditional rates: their running products."""
    return [prod(rates[: i + 1]) for i in range(len(rates))]


def _shares(parts: Sequence[int], wholes: Sequence[int]) -> tuple[float, ...]:
    return tuple(a / b if b else 0.0 for a, b in zip(parts, wholes, strict=True))
