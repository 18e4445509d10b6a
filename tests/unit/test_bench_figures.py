"""The benchmark's statistics against the obvious computation."""

import itertools
import random
from statistics import median

import pytest

from llamaspec.bench.figures import (
    Verdict,
    acceptance,
    bootstrap,
    paired_ratios,
    reliability,
    tau,
    unconditional,
)


def test_the_bootstrap_interval_is_that_of_all_samples() -> None:
    values = [1.0, 2.0, 4.0, 8.0]
    every = sorted(median(draw) for draw in itertools.product(values, repeat=4))
    found = bootstrap(values, resamples=20_000)
    assert found.middle == 3.0
    # of all 256 samples with replacement, the middle 95%
    assert found.low == pytest.approx(every[6], abs=0.5)
    assert found.high == pytest.approx(every[249], abs=0.5)


def test_the_bootstrap_does_not_change_from_run_to_run() -> None:
    noise = random.Random(3)
    values = [noise.uniform(0, 2) for _ in range(30)]
    assert bootstrap(values) == bootstrap(values)
    assert bootstrap(values) != bootstrap(values, seed=1)


def test_a_single_value_is_its_own_interval() -> None:
    assert tuple(bootstrap([1.5])) == (1.5, 1.5, 1.5)


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    noise = random.Random(5)
    hits = 0
    for _ in range(200):
        _, low, high = bootstrap([noise.gauss(1, 0.3) for _ in range(40)], resamples=300)
        hits += low <= 1 <= high
    assert 170 <= hits <= 199


def test_ratios_are_paired_within_a_repeat_before_anything_is_averaged() -> None:
    # the machine was twice as slow in the second repeat, for both
    mine, base = [[10.0, 5.0, 10.0]], [[5.0, 2.5, 5.0]]
    assert paired_ratios(mine, base) == [2.0]
    # medians of each alone would say 1
    assert paired_ratios([[4.0, 1.0, 2.0]], [[2.0, 2.0, 1.0]]) == [2.0]


def test_rates_that_are_not_known_give_no_ratio() -> None:
    assert paired_ratios([[0.0, 3.0], [0.0]], [[1.0, 1.0], [1.0]]) == [3.0]
    assert paired_ratios([[3.0]], [[0.0]]) == []


def rounds(seed: int) -> list[Verdict]:
    noise = random.Random(seed)
    found = []
    for _ in range(50):
        drafted = noise.randint(0, 7)
        confidence = tuple(noise.random() for _ in range(drafted))
        found.append(Verdict(drafted, noise.randint(0, drafted), confidence))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_acceptance_by_position_is_what_counting_gives(seed: int) -> None:
    records = rounds(seed)
    found = acceptance(records)
    for i in range(max(r.drafted for r in records)):
        verified = [r for r in records if r.drafted > i]
        reached = [r for r in verified if r.accepted >= i]
        accepted = [r for r in verified if r.accepted > i]
        assert found.conditional[i] == pytest.approx(
            len(accepted) / len(reached) if reached else 0.0
        )
        assert found.unconditional[i] == pytest.approx(len(accepted) / len(verified))
    for length, count in enumerate(found.lengths):
        assert count == sum(r.accepted == length for r in records)
    assert sum(found.lengths) == len(records)


def test_acceptance_of_no_rounds_is_empty() -> None:
    found = acceptance([])
    assert (found.conditional, found.unconditional, found.lengths) == ((), (), (0,))


@pytest.mark.parametrize("seed", range(5))
def test_reliability_is_what_counting_gives(seed: int) -> None:
    records = rounds(seed)
    pairs = [
        (c, i < r.accepted)
        for r in records
        for i, c in enumerate(r.confidence or ())
        if i <= r.accepted
    ]
    found = reliability(records, bins=5)
    assert found is not None
    assert sum(b.count for b in found.bins) == len(pairs)
    error = 0.0
    for number in range(5):
        inside = [p for p in pairs if number / 5 <= p[0] < (number + 1) / 5]
        if inside:
            confidence = sum(c for c, _ in inside) / len(inside)
            share = sum(hit for _, hit in inside) / len(inside)
            error += abs(confidence - share) * len(inside) / len(pairs)
    assert found.ece == pytest.approx(error)


def test_a_confidence_that_is_what_it_says_has_no_error() -> None:
    sure = [Verdict(1, 1, (1.0,))] * 4 + [Verdict(1, i % 2, (0.5,)) for i in range(4)]
    found = reliability(sure)
    assert found is not None
    assert found.ece == 0.0
    wrong = reliability([Verdict(2, 0, (0.9, 0.9))] * 3)
    assert wrong is not None
    assert wrong.ece == pytest.approx(0.9)
    # the second proposal of each was not reached
    assert sum(b.count for b in wrong.bins) == 3


def test_reliability_without_confidences_is_none() -> None:
    assert reliability([Verdict(3, 2)]) is None


def test_tau_leaves_out_the_token_of_the_prompt() -> None:
    assert tau(tokens=13, rounds=3) == 4.0
    assert tau(tokens=1, rounds=0) == 0.0


def test_unconditional_rates_are_products() -> None:
    assert unconditional([0.5, 0.5, 1.0]) == [0.5, 0.25, 0.25]
