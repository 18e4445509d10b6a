"""Calibrations: fitted to rounds, monotone, kept in files, and refused where broken."""

import itertools
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamaspec.calibrating import calibrate, known, verdicts_of
from llamaspec.errors import OptionError
from llamaspec.schedule.fitting import GRID, LEAST_ROUNDS, Verdicts, fit, fit_verdicts
from llamaspec.schedule.reliability import ece, ece_by_chance, reliability, roc_auc
from llamaspec.schedule.scaling import MOST_KNOTS, Scaling, logit, read, sigmoid
from llamaspec.trace import Round

PLAIN = Scaling((2.0, 0.5, 1.0))
LEVELS = Scaling((1.5, 1.0), (((0.25, 0.125), (0.5, 0.5)), ()), (("draft", "d.gguf"),))
Rounds = tuple[list[list[float]], list[int]]


def _rounds(
    seed: int, count: int, temperatures: tuple[float, ...], *, ceiling: float = 1.0
) -> Rounds:
    """Rounds whose chances are the confidences after such temperatures, times the ceiling."""
    noise = random.Random(seed)
    confidences, accepted = [], []
    for _ in range(count):
        c = [sigmoid(noise.gauss(1.5, 2)) for _ in temperatures]
        chances = [ceiling * sigmoid(logit(x) / t) for x, t in zip(c, temperatures, strict=True)]
        hits = itertools.takewhile(lambda p: noise.random() < p, chances)
        confidences.append(c)
        accepted.append(len(list(hits)))
    return confidences, accepted


def _mean_ece(rounds: Rounds, scaling: Scaling) -> float:
    verdicts = Verdicts.of(*rounds)
    survivals = verdicts.survivals(scaling)
    return float(
        np.mean([ece(survivals[:, p], verdicts.survived(p)) for p in range(verdicts.positions)])
    )


def test_survival_is_the_product_of_tempered_confidences() -> None:
    c = [0.9, 0.3, 0.8]
    chances = [sigmoid(logit(x) / t) for x, t in zip(c, PLAIN.temperatures, strict=True)]
    assert PLAIN.survival(c) == pytest.approx(
        list(itertools.accumulate(chances, lambda a, b: a * b))
    )
    assert Scaling((1.0,)).survival([0.9, 0.5]) == pytest.approx([0.9, 0.45])
    assert PLAIN.survival([]) == []


def test_levels_are_read_linearly_and_the_next_position_goes_on_from_them() -> None:
    first, second = LEVELS.survival([0.5**0.5, 0.5])
    at = sigmoid(logit(0.5**0.5) / 1.5)
    assert at > 0.5
    assert (first, second) == pytest.approx((0.5, 0.25))
    knots = LEVELS.levels[0]
    found = [read(knots, x) for x in (0.0, 0.25, 0.375, 0.5, 1.0)]
    assert found == pytest.approx([0.125, 0.125, 0.3125, 0.5, 0.5])


def test_survival_falls_along_a_block_and_rises_with_every_confidence() -> None:
    noise = random.Random(5)
    scalings = [PLAIN, LEVELS, fit(*_rounds(1, 600, (2.0, 0.7, 1.0))), Scaling((0.01, 100.0))]
    for _ in range(500):
        scaling, width = noise.choice(scalings), noise.randint(1, 5)
        c = [noise.choice([0.0, 1.0, noise.random()]) for _ in range(width)]
        found = scaling.survival(c)
        assert all(0 <= b <= a <= 1 for a, b in itertools.pairwise([1.0, *found]))
        place = noise.randrange(width)
        larger = [min(1.0, x + 0.1) if i == place else x for i, x in enumerate(c)]
        assert all(a <= b for a, b in zip(found, scaling.survival(larger), strict=True))


@pytest.mark.parametrize("levels", [False, True])
def test_a_fit_keeps_the_order_of_a_positions_confidences(levels: bool) -> None:
    scaling = fit(*_rounds(2, 600, (2.0, 0.7)), levels=levels)
    assert bool(scaling.levels) == levels
    values = [i / 500 for i in range(1, 500)]
    found = [scaling.survival([c])[0] for c in values]
    assert all(a < b for a, b in itertools.pairwise(found))


def test_a_damaged_drafts_confidences_are_the_least() -> None:
    found = PLAIN.survival([math.nan, -1.0, math.inf])
    assert all(0 <= a <= 1e-3 for a in found)


def test_a_fit_finds_the_temperatures_that_made_the_rounds() -> None:
    true = (2.5, 0.5, 1.0)
    scaling = fit(*_rounds(3, 6000, true), levels=False)
    for found, wanted in zip(scaling.temperatures, true, strict=True):
        assert abs(math.log(found / wanted)) < 0.45
    other = _rounds(4, 6000, true)
    assert _mean_ece(other, scaling) < 0.015
    assert _mean_ece(other, Scaling((1.0,) * 3)) > 0.05


def test_levels_mend_what_a_temperature_cannot() -> None:
    rounds, other = (_rounds(seed, 8000, (1.0, 1.0), ceiling=0.7) for seed in (6, 7))
    plain, levels = (_mean_ece(other, fit(*rounds, levels=wanted)) for wanted in (False, True))
    assert levels < 0.02 < plain


def test_every_temperature_is_the_best_of_the_grid_with_those_before_it_fixed() -> None:
    rounds = _rounds(8, 800, (2.0, 0.6))
    scaling = fit(*rounds, levels=False)
    verdicts = Verdicts.of(*rounds)
    for position, chosen in enumerate(scaling.temperatures):
        errors = {}
        for t in (*GRID, chosen):
            other = Scaling((*scaling.temperatures[:position], float(t)))
            survivals = [other.survival(c[: position + 1])[-1] for c in rounds[0]]
            errors[float(t)] = ece(np.array(survivals), verdicts.survived(position))
        assert errors[chosen] <= min(errors.values()) + 0.00101


def test_positions_with_few_rounds_take_the_temperature_before_them() -> None:
    confidences, accepted = _rounds(9, 400, (3.0, 1.0))
    # a third position that few rounds have, a fourth that none survives
    longer = [[*c, 0.9, 0.9] if i < LEAST_ROUNDS - 1 else c for i, c in enumerate(confidences)]
    scaling = fit(longer, accepted)
    assert scaling.temperatures[2:] == scaling.temperatures[1:2] * 2
    assert scaling.levels[2:] == ((), ())
    assert fit([[0.5]] * 5, [1] * 5).temperatures == (1.0,)


def test_what_is_not_known_of_a_text_that_ended_is_left_out() -> None:
    ended = Round(0, 1, (5, 6, 7), (0.9, 0.8, 0.7), accepted=2, committed=2)
    whole = Round(0, 1, (5, 6, 7), (0.9, 0.8, 0.7), accepted=2, committed=3)
    assert (known(ended), known(whole)) == (2, 3)
    verdicts = verdicts_of([[ended, whole], [Round(0, 1, (), None, 0, 1)]])
    assert len(verdicts) == 2
    assert [verdicts.seen(p).tolist() for p in (1, 2)] == [[True, True], [False, True]]
    rounds = _rounds(10, 500, (1.0, 1.0))
    # of rounds whose outcome is unknown nothing is learnt, whatever they say
    more = [[*c] for c in rounds[0]] + [[0.99, 0.01]] * 300
    found = fit(more, rounds[1] + [0] * 300, [2] * 500 + [0] * 300)
    assert found == fit(*rounds)


def test_a_round_that_counts_twice_counts_as_two() -> None:
    confidences, accepted = _rounds(14, 300, (2.0, 1.0))
    weight = [1 + i % 3 for i in range(300)]
    verdicts = Verdicts.of(confidences, accepted, weight=weight)
    places = [i for i, w in enumerate(weight) for _ in range(w)]
    repeated = Verdicts.of([confidences[i] for i in places], [accepted[i] for i in places])
    for levels in (False, True):
        once, often = (fit_verdicts(v, levels=levels) for v in (verdicts, repeated))
        assert once.temperatures == often.temperatures
    assert ece(
        np.array([c[0] for c in confidences]), verdicts.survived(0), np.array(weight, float)
    ) == pytest.approx(ece(np.array([confidences[i][0] for i in places]), repeated.survived(0)))
    round_ = Round(0, 1, (5,), (0.9,), accepted=1, committed=2)
    assert verdicts_of([[round_, round_], [round_]]).weight.tolist() == [2, 1]


def test_rounds_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(OptionError, match="of 2 rounds"):
        fit([[0.5], [0.5]], [1])
    with pytest.raises(OptionError, match="more proposals than"):
        fit([[0.5]], [2])
    for count in (0, 1):
        with pytest.raises(OptionError, match="no rounds with confidences"):
            fit([[]] * count, [0] * count)


def test_a_file_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    fitted = fit(*_rounds(11, 600, (2.0, 1.0, 0.5)))
    assert 0 < len(fitted.levels[0]) <= MOST_KNOTS
    for scaling in (PLAIN, LEVELS, fitted):
        scaling.save(path)
        assert Scaling.load(path) == scaling


def _with(**changes: Any) -> dict[str, Any]:  # noqa: ANN401
    return LEVELS.as_json() | changes


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], "not a calibration"),
        (_with(format="llamaspec cost curve 1"), "not a calibration"),
        (_with(temperatures=None), "must have lists"),
        (_with(temperatures=[]), "0 temperatures"),
        (_with(temperatures=[1.0] * 257), "257 temperatures"),
        (_with(temperatures=[0.0, 1.0]), "temperature 0.0"),
        (_with(temperatures=[math.nan, 1.0]), "temperature nan"),
        (_with(temperatures=[math.inf, 1.0]), "temperature inf"),
        (_with(temperatures=["1", 1.0]), "temperature '1'"),
        (_with(temperatures=[True, 1.0]), "temperature True"),
        (_with(temperatures=[1.0]), "1 temperatures and levels of 2"),
        (_with(levels={}), "must have lists"),
        (_with(levels=[1, 2]), "lists of pairs"),
        (_with(levels=[[[0.5]], []]), "lists of pairs"),
        (_with(levels=[[["a", 0.5]], []]), "probabilities"),
        (_with(levels=[[[0.5, 1.5]], []]), "probabilities"),
        (_with(levels=[[[0.5, math.nan]], []]), "probabilities"),
        (_with(levels=[[[0.5, 0.5], [0.5, 0.6]], []]), "must rise"),
        (_with(levels=[[[0.5, 0.5], [0.6, 0.4]], []]), "must rise"),
        (_with(levels=[[[i / 300, 0.5] for i in range(300)], []]), "300 levels"),
        (_with(about=[1]), "names to texts"),
        (_with(about={"a": 1}), "names to texts"),
    ],
)
def test_what_is_no_calibration_is_refused(found: object, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Scaling.of_json(found)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\xff", '{"format": 1}'])
def test_a_file_that_is_no_calibration_is_named_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(OptionError, match=r"calibration\.json: ") as caught:
        Scaling.load(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(OptionError, match="cannot be read"):
        Scaling.load(tmp_path / "absent.json")
    with pytest.raises(OptionError, match="cannot be written"):
        PLAIN.save(tmp_path / "absent" / "calibration.json")


def test_ece_is_the_mean_gap_of_bins() -> None:
    predicted = np.array([0.05, 0.05, 0.95, 0.95])
    happened = np.array([True, False, True, True])
    assert ece(predicted, happened) == pytest.approx(0.25)
    low, high = reliability(predicted, happened, np.ones(4))
    assert (low.weight, low.happened) == (2, 0.5)
    assert low.predicted == pytest.approx(0.05)
    assert (high.weight, high.happened) == (2, 1.0)
    assert ece(np.array([1.0, 0.0]), np.array([True, False])) == 0
    assert ece(np.zeros(0), np.zeros(0, bool)) == ece_by_chance(np.zeros(0)) == 0
    with pytest.raises(OptionError, match="probabilities"):
        ece(np.array([1.5]), np.array([True]))


def test_equal_predictions_share_a_bin_of_equal_mass() -> None:
    predicted = np.array([0.1] * 15 + [0.9] * 5)
    happened = np.arange(20) % 2 == 0
    assert [b.weight for b in reliability(predicted, happened, np.ones(20), mass=True)] == [15, 5]
    spread = np.linspace(0.901, 0.999, 40)
    hits = np.arange(40) >= 20
    # one bin of equal width hides that the lower half never happened
    assert [b.weight for b in reliability(spread, hits, np.ones(40), mass=True)] == [4] * 10
    assert ece(spread, hits, mass=True) > ece(spread, hits) + 0.01


def test_right_probabilities_show_an_error_by_chance_that_falls_with_their_number() -> None:
    few, many = (ece_by_chance(np.random.default_rng(1).random(n)) for n in (100, 10_000))
    assert few > 5 * many > 0
    # the mean of |hits - n p| / n in one bin of fair coins is about sqrt(1 / (2 pi n))
    assert ece_by_chance(np.full(400, 0.5), draws=2000) == pytest.approx(0.01995, rel=0.1)


def test_roc_auc_counts_pairs() -> None:
    noise = np.random.default_rng(2)
    scores, happened = noise.integers(0, 6, 60).astype(float), noise.random(60) < 0.4
    pairs = [(a > b) + (a == b) / 2 for a in scores[happened] for b in scores[~happened]]
    assert roc_auc(scores, happened) == pytest.approx(np.mean(pairs))
    assert roc_auc(scores, np.ones(60, bool)) is None


def _traced(seed: int, prompts: int, each: int) -> list[list[Round]]:
    confidences, accepted = _rounds(seed, prompts * each, (1.0, 1.0), ceiling=0.7)
    rounds = [
        Round(i, 0, (1, 2), tuple(c), k, k + 1)
        for i, (c, k) in enumerate(zip(confidences, accepted, strict=True))
    ]
    return [rounds[i * each : (i + 1) * each] for i in range(prompts)]


def test_calibrating_judges_each_half_by_a_fit_on_the_other() -> None:
    rounds = _traced(12, 40, 100)
    found = calibrate(rounds, about=(("draft", "d"),))
    assert (found.prompts, found.rounds, found.kept) == (40, 4000, "levels")
    assert found.mean.levels < 0.03 < found.mean.temperatures < found.mean.before
    assert found.scaling.about == (("draft", "d"),)
    everything = verdicts_of(rounds)
    assert found.scaling.levels == fit_verdicts(everything).levels
    even, odd = (verdicts_of(rounds[i::2]) for i in (0, 1))
    survivals = even.survivals(fit_verdicts(odd))
    errors = [ece(survivals[:, p], even.survived(p)) for p in (0, 1)]
    assert found.halves[0].levels == pytest.approx(np.mean(errors))
    for position in found.positions:
        assert position.rounds == 4000
        assert position.auc_before is not None
        assert position.auc_after == pytest.approx(position.auc_before, abs=0.02)
    assert sum(b.weight for b in found.after) == 8000


def test_of_few_rounds_nothing_is_kept_that_is_worse_than_the_confidences() -> None:
    confidences, accepted = _rounds(13, 120, (1.0, 1.0))
    rounds = [
        [Round(0, 0, (1, 2), tuple(c), k, k + 1)]
        for c, k in zip(confidences, accepted, strict=True)
    ]
    found = calibrate(rounds)
    errors = (found.mean.before, found.mean.temperatures, found.mean.levels)
    chosen = ("confidences", "temperatures", "levels").index(found.kept)
    assert errors[chosen] == min(errors)
    assert calibrate(rounds, levels=False).kept != "levels"


def test_too_little_to_calibrate_on_is_refused() -> None:
    for rounds in ([], [[Round(0, 0, (1,), (0.5,), 1, 2)], [Round(0, 0, (), None, 0, 1)]]):
        with pytest.raises(OptionError, match="at least 2"):
            calibrate(rounds)
