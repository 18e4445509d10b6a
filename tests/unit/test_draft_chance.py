"""Noise that makes draws, and the distributions they are of."""

import numpy as np
import pytest

from llamaspec.draft.chance import roll, spread, tempered
from llamaspec.draft.drafter import Dice
from llamaspec.draft.heads import Confidence, Gated, MarkovHead, PlainHead, Recurrent
from llamaspec.errors import DecodeError
from llamaspec.runtime.arrays import FloatArray, IntArray
from tests.chi_square import far

V, R, D, L = 11, 3, 5, 4


def dice(seed: int, temperature: float = 1.0) -> Dice:
    return Dice(temperature, np.random.default_rng(seed))


def rows(seed: int, n: int, width: int, temperature: float = 1.0) -> FloatArray:
    return roll(dice(seed, temperature), np.empty((n, width), np.float32)).rows


def test_the_noise_is_standard_gumbel_times_the_temperature() -> None:
    for temperature in (1.0, 0.25):
        found = np.sort(rows(1, 50, 2000, temperature).reshape(-1).astype(np.float64) / temperature)
        # against exp(-exp(-g)): Kolmogorov-Smirnov, of which 1.95 is passed once in a thousand
        expected = np.exp(-np.exp(-found))
        seen = (np.arange(len(found)) + 0.5) / len(found)
        assert np.abs(seen - expected).max() * np.sqrt(len(found)) < 1.95


def test_what_float32_makes_coarse_is_fine() -> None:
    """The likeliest of very many rows is one of those whose exponential is nearly 0."""
    n = 400
    found = rows(2, n, 1 << 17).astype(np.float64)
    assert np.isfinite(found).all()
    top = found.max(axis=1) - np.log(found.shape[1])
    expected = np.exp(-np.exp(-np.sort(top)))
    seen = (np.arange(n) + 0.5) / n
    assert np.abs(seen - expected).max() * np.sqrt(n) < 1.95
    # float32 draws are 0 once in 2^24, here in every 128th row
    logits = np.full(found.shape[1], -40, np.float32)
    logits[5] = 0
    assert (np.argmax(logits + found, axis=1) == 5).all()


def test_a_row_does_not_depend_on_how_many_follow() -> None:
    assert np.array_equal(rows(3, 2, 5000), rows(3, 6, 5000)[:2])
    assert not np.array_equal(rows(3, 2, 5000), rows(4, 2, 5000))


def test_tempered_rows() -> None:
    logits = np.array([[1, 2, -np.inf, 0], [900, 100, 0, 899]], np.float32)
    found = tempered(logits, 0.5)
    for row, expected in zip(found, logits.astype(np.float64), strict=True):
        weights = np.exp((expected - expected.max()) / 0.5)
        assert row == pytest.approx(weights / weights.sum(), abs=1e-7)
    assert found.dtype == np.float32
    assert logits[1, 0] == 900
    for bad in (np.nan, np.inf):
        with pytest.raises(DecodeError, match="not numbers"):
            tempered(np.array([[0, 1], [0, bad]], np.float32), 1.0)


def test_odds_are_spread_over_the_targets_vocabulary() -> None:
    odds = np.array([[0.25, 0.75], [1, 0]], np.float32)
    found = spread(odds, np.array([3, 1], np.int32), 5)
    assert found.tolist() == [[0, 0.75, 0, 0.25, 0], [0, 0, 0, 1, 0]]
    assert spread(odds, None, 2) is odds
    assert spread(odds, None, 3).tolist() == [[0.25, 0.75, 0], [1, 0, 0]]


def head(kind: str, d2t: IntArray | None) -> MarkovHead | PlainHead:
    rng = np.random.default_rng(5)

    def made(*shape: int) -> FloatArray:
        return rng.normal(size=shape).astype(np.float32)

    if kind == "plain":
        return PlainHead(d2t)
    width = V if d2t is None else len(d2t)
    if kind == "gated":
        return MarkovHead(made(V, R), made(width, R), d2t, None, Gated(made(R, D + R), made(R)))
    if kind == "rnn":
        joint = Recurrent(made(3 * R, D + 2 * R), made(3 * R))
        return MarkovHead(made(V, R), made(width, R), d2t, None, joint)
    return MarkovHead(made(V, R), made(width, R), d2t, Confidence(made(D + R), 0.5))


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn", "plain"])
@pytest.mark.parametrize("reduced", [False, True])
def test_chains_draw_from_their_odds(kind: str, reduced: bool) -> None:
    """Every position, by what was drawn before it."""
    d2t = np.array([10, 3, 7, 0, 5, 9], np.int32) if reduced else None
    width = V if d2t is None else len(d2t)
    ids_of = np.arange(V) if d2t is None else d2t
    rng = np.random.default_rng(6)
    base, hidden = (rng.normal(size=(L, n)).astype(np.float32) for n in (width, D))
    chosen = head(kind, d2t)
    rolled = dice(7)
    seen: dict[tuple[int, ...], list[int]] = {}
    odds_of: dict[tuple[int, ...], FloatArray] = {}
    for _ in range(3000):
        noise = roll(rolled, np.empty((L, width), np.float32))
        chain = chosen.chain(base, hidden, 4, noise)
        assert chain.odds is not None
        assert chain.odds.shape == (L, width)
        ids = tuple(chain.ids.tolist())
        for i in range(L):
            row = np.flatnonzero(ids_of == ids[i])[0]
            seen.setdefault(ids[:i], []).append(int(row))
            assert odds_of.setdefault(ids[:i], chain.odds[i]).tolist() == chain.odds[i].tolist()
    often = [before for before, drawn in seen.items() if len(drawn) > 150]
    assert {len(before) for before in often} >= {0, 1}
    for before in often:
        assert far(np.array(seen[before]), odds_of[before]) < 4.5


def test_noise_changes_choices_and_nothing_else() -> None:
    rng = np.random.default_rng(8)
    base, hidden = (rng.normal(size=(L, n)).astype(np.float32) for n in (V, D))
    chosen = head("vanilla", None)
    greedy = chosen.chain(base, hidden, 4)
    assert greedy.odds is None
    cold = chosen.chain(base, hidden, 4, roll(dice(9, 1e-6), np.empty((L, V), np.float32)))
    assert cold.ids.tolist() == greedy.ids.tolist()
    assert cold.confidence is not None
    assert greedy.confidence is not None
    assert cold.confidence.tolist() == greedy.confidence.tolist()
