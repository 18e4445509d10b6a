"""Residual and block acceptance, by exact enumeration: what comes out is distributed as p."""

import itertools
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from llamaspec.runtime.arrays import FloatArray
from llamaspec.verify.chance import RULES, SampledRule, bonus, judge

V = 3
Table = Callable[[tuple[int, ...]], FloatArray]


def table(seed: int, *, zeros: float = 0.0, sharp: float = 1.0) -> Table:
    """A distribution over V tokens for every prefix; a share of the entries is zero."""

    @cache
    def row(prefix: tuple[int, ...]) -> FloatArray:
        random = np.random.default_rng([seed, len(prefix), *prefix])
        weights = random.exponential(size=V) ** sharp
        dropped = random.random(V) < zeros
        dropped[random.integers(V)] = False
        weights[dropped] = 0
        found: FloatArray = (weights / weights.sum()).astype(np.float32)
        return found

    return row


def rows(of: Table, ids: tuple[int, ...], count: int) -> FloatArray:
    return np.array([of(ids[:i]) for i in range(count)], np.float32).reshape(count, V)


def chance(of: Table, ids: tuple[int, ...], after: tuple[int, ...] = ()) -> float:
    """The probability of ids one after another, after a prefix."""
    found = 1.0
    for i, token in enumerate(ids):
        found *= float(of(after + ids[:i])[token])
    return found


def outcome(
    rule: SampledRule, p: Table, q: Table, n: int
) -> tuple[dict[tuple[int, ...], float], float]:
    """The distribution of n + 1 tokens of a round followed by plain decoding, and the mean number
    of accepted proposals.
    """
    found = dict.fromkeys(itertools.product(range(V), repeat=n + 1), 0.0)
    mean = 0.0
    for ids in itertools.product(range(V), repeat=n):
        proposed = chance(q, ids)
        if proposed == 0:
            continue
        ps, qs = rows(p, ids, n + 1), rows(q, ids, n)
        judged = RULES[rule](ps, qs, ids)
        assert judged.lengths.sum() == pytest.approx(1, abs=1e-6)
        mean += proposed * float(judged.lengths @ np.arange(n + 1))
        for k, probability in enumerate(judged.lengths):
            if probability == 0:
                continue
            weights = bonus(judged, ps, qs, k).astype(np.float64)
            for token in range(V):
                start = (*ids[:k], token)
                share = proposed * probability * weights[token] / weights.sum()
                for rest in itertools.product(range(V), repeat=n - k):
                    found[start + rest] += share * chance(p, rest, start)
    return found, mean


def case(seed: int) -> tuple[Table, Table]:
    kinds: tuple[dict[str, float], ...] = (
        {},
        {"zeros": 0.4},
        {"sharp": 3.0},
        {"zeros": 0.6, "sharp": 2.0},
    )
    return table(seed, **kinds[seed % 4]), table(seed + 1000, **kinds[seed // 4 % 4])


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("rule", ["residual", "block"])
def test_the_text_is_distributed_as_plain_decoding_distributes_it(
    rule: SampledRule, n: int
) -> None:
    for seed in range(48):
        p, q = case(seed)
        found, _ = outcome(rule, p, q, n)
        for ids, probability in found.items():
            assert probability == pytest.approx(chance(p, ids), abs=1e-6), (seed, ids)


def test_block_accepts_no_less_than_residual_and_often_more() -> None:
    more = 0
    for seed in range(48):
        p, q = case(seed)
        lone, joint = outcome("residual", p, q, 3)[1], outcome("block", p, q, 3)[1]
        assert joint >= lone - 1e-6
        more += joint > lone + 1e-3
    assert more > 24


@pytest.mark.parametrize("rule", ["residual", "block"])
def test_a_draft_that_is_the_target_is_always_accepted(rule: SampledRule) -> None:
    for seed in range(8):
        p = table(seed)
        for ids in itertools.product(range(V), repeat=3):
            judged = RULES[rule](rows(p, ids, 4), rows(p, ids, 3), ids)
            assert judged.lengths[-1] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("rule", ["residual", "block"])
def test_the_wrong_q_gives_the_wrong_distribution(rule: SampledRule) -> None:
    """The draft samples at temperature 0.5 and says that it sampled at 1."""
    p, q = table(3), table(1003)

    def sharper(prefix: tuple[int, ...]) -> FloatArray:
        weights = q(prefix) ** 2
        found: FloatArray = (weights / weights.sum()).astype(np.float32)
        return found

    found = np.zeros(V)
    for token in range(V):
        judged = RULES[rule](rows(p, (token,), 2), rows(q, (token,), 1), (token,))
        left = bonus(judged, rows(p, (token,), 2), rows(q, (token,), 1), 0).astype(np.float64)
        found += sharper(())[token] * judged.lengths[0] * left / left.sum()
        found[token] += sharper(())[token] * judged.lengths[1]
    assert np.abs(found - p(())).max() > 0.01


@pytest.mark.parametrize("rule", ["residual", "block"])
def test_draws_follow_what_was_judged(rule: SampledRule) -> None:
    p, q, random = table(5, zeros=0.3), table(1005), np.random.default_rng(1)
    ids = (0, 2)
    ps, qs = rows(p, ids, 3), rows(q, ids, 2)
    judged = RULES[rule](ps, qs, ids)
    expected: dict[tuple[int, ...], float] = {}
    for k, probability in enumerate(judged.lengths):
        weights = bonus(judged, ps, qs, k).astype(np.float64)
        for token in range(V):
            key = (*ids[:k], token)
            expected[key] = expected.get(key, 0) + probability * weights[token] / weights.sum()
    draws = 20_000
    counts = dict.fromkeys(expected, 0)
    for _ in range(draws):
        found = judge(rule, ps, qs, ids, random)
        assert len(found.tokens) == found.accepted + 1
        counts[tuple(found.tokens)] += 1
    for key, probability in expected.items():
        spread = 5 * (probability * (1 - probability) / draws) ** 0.5
        assert abs(counts[key] / draws - probability) <= spread + 1e-9, key


@pytest.mark.parametrize("rule", ["residual", "block"])
def test_a_text_that_ends_with_the_last_proposal_has_no_bonus(rule: SampledRule) -> None:
    p, random = table(7), np.random.default_rng(2)
    ids = (1, 0, 2)
    found = judge(rule, rows(p, ids, 2), rows(p, ids, 3), ids, random)
    assert found == (2, [1, 0])


@pytest.mark.parametrize("rule", ["residual", "block"])
def test_a_proposal_that_the_target_excludes_is_never_accepted(rule: SampledRule) -> None:
    p, q = np.array([[0.5, 0.5, 0]], np.float32), np.array([[0.2, 0.2, 0.6]], np.float32)
    random = np.random.default_rng(3)
    for _ in range(200):
        found = judge(rule, p, q, (2, 1), random)
        assert found.accepted == 0
        assert found.tokens[0] in (0, 1)


@pytest.mark.parametrize("rule", ["residual", "block"])
def test_the_last_edge_is_never_stepped_over(rule: SampledRule) -> None:
    class Edge(np.random.Generator):
        def random(self, *_: object, **__: object) -> float:  # type: ignore[override]
            return 1 - 2**-53

    p = np.array([[0.5, 0.5, 0], [0.3, 0.7, 0]], np.float32)
    q = np.array([[0.25, 0.75, 0]], np.float32)
    found = judge(rule, p, q, (0,), Edge(np.random.PCG64(0)))
    assert found == (1, [0, 1])
