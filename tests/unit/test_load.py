"""The simulation of serving: replays recorded rounds, at given costs, every time alike."""

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from llamaspec.bench.load import (
    Measured,
    Roofline,
    Run,
    check,
    check_lines,
    lines,
    simulate,
    sweep,
)
from llamaspec.bench.recorded import FORMAT, Moment, Recorded, Text, about
from llamaspec.errors import OptionError
from llamaspec.schedule.scaling import Scaling
from llamaspec.trace import Round

IDENTITY = Scaling((1.0,))
# a second a pass and nothing else
UNIT = Roofline(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def _text(truth: str, confidence: float = 0.9) -> Text:
    """A text in which the token after place i is drafted right where truth[i] is +, blocks of 3."""
    moments = []
    for start in range(len(truth)):
        left = truth[start : start + 3]
        accepted = len(list(itertools.takewhile(lambda c: c == "+", left)))
        committed = min(accepted + 1, len(truth) - start)
        moments.append(Moment((confidence,) * 3, min(accepted, committed), committed))
    return Text(tuple(range(len(truth))), tuple(moments))


def _recorded(seed: int = 1, texts: int = 20) -> Recorded:
    noise = random.Random(seed)
    found = []
    for _ in range(texts):
        sure = noise.choice([0.95, 0.3])
        truth = "".join("+" if noise.random() < sure else "-" for _ in range(40))
        found.append(_text(truth, sure))
    return Recorded(tuple(found), IDENTITY)


def test_a_round_of_any_width_gives_what_it_would_have_given() -> None:
    alone = Recorded((_text("++-+++"),), IDENTITY)
    # whole blocks: 2 accepted and the target's own; then 3 to the end of the text
    assert simulate(alone, UNIT, "full", 1, rounds=2).tau == 3.0
    # pairs of one proposal and the target's own token: the third misses, and so on
    assert simulate(alone, UNIT, "1", 1, rounds=4).tau == pytest.approx(6 / 4)
    assert simulate(alone, UNIT, "plain", 1, rounds=6).tau == 1.0
    # what goes past the end starts the text anew
    assert simulate(alone, UNIT, "full", 1, rounds=4).tau == 3.0


def test_seconds_are_those_of_the_costs() -> None:
    costs = Roofline(2.0, 0.5, 0.25, 0.125, 1.0, 0.25, 0.5, block=3)
    assert costs.verify(3, 2) == 0.125 + 2.0 + 0.5
    assert costs.verify(10, 2) == 0.125 + 5.0 + 0.5
    assert costs.draft(1) == 1.5
    assert costs.draft(4) == 0.5 + 3.0
    alone = Recorded((_text("++++++++"),), IDENTITY)
    found = simulate(alone, costs, "full", 1, rounds=2)
    assert found.throughput == pytest.approx(8 / 2 / (costs.verify(4, 1) + costs.draft(1)))
    plain = simulate(alone, costs, "plain", 1, rounds=8)
    assert plain.throughput == pytest.approx(1 / costs.verify(1, 1))
    four = simulate(alone, costs, "plain", 4, rounds=8)
    assert four.rows == 4
    assert four.per_user * 4 == pytest.approx(four.throughput)


def test_the_same_seed_gives_the_same_and_another_another() -> None:
    recorded = _recorded()
    runs = [simulate(recorded, Roofline(), "scheduled", 4, rounds=30, seed=s) for s in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_at_load_the_scheduler_beats_every_fixed_width() -> None:
    recorded = _recorded(3)
    costs = Roofline(1.0, 1 / 40, 0.0, 0.0, 0.05, 0.0, 0.0, block=3)
    for sequences in (1, 16, 32):
        found = {
            name: simulate(recorded, costs, name, sequences, rounds=60).throughput
            for name in ("plain", "1", "2", "full", "scheduled", "oracle")
        }
        assert found["scheduled"] >= 0.99 * max(found[n] for n in ("1", "2", "full"))
        assert found["oracle"] >= found["scheduled"]
    assert found["scheduled"] > 1.02 * max(found[n] for n in ("1", "2", "full"))


def test_a_sweep_has_every_policy_at_every_number() -> None:
    found = sweep(_recorded(), Roofline(block=3), sequences=(1, 8), rounds=5)
    names = ("plain", "1", "2", "full", "scheduled", "oracle")
    assert [(o.policy, o.sequences) for o in found] == list(itertools.product(names, (1, 8)))
    shown = lines(found)
    assert [line.split()[0] for line in shown[1:7]] == list(names)
    best = max(o.throughput for o in found if o.sequences == 8 and o.policy in names[:4])
    ratio = next(o.throughput for o in found if (o.policy, o.sequences) == ("scheduled", 8)) / best
    assert f"{ratio:.2f}" == shown[-2].split()[-1]


def test_measured_runs_are_replayed_at_measured_costs() -> None:
    recorded = _recorded()
    costs = Roofline(1.0, 0.1, 0.0, 0.0, 0.2, 0.1, 0.0, block=3)
    rows, slots = (1, 5, 10, 20, 40, 80), (1, 2, 4, 8)
    points = Measured(
        verify=tuple((float(n), costs.verify(n, 1)) for n in rows),
        draft=tuple((float(n), costs.draft(n)) for n in slots),
        runs=tuple(
            Run(name, n, simulate(recorded, costs, name, n, rounds=40).throughput)
            for name in ("plain", "full", "scheduled")
            for n in slots
        ),
    )
    found = check(points, recorded, rounds=40)
    assert [one.ratio for one in found] == pytest.approx([1.0] * len(found), abs=0.03)
    slower = replace(points, runs=(replace(points.runs[0], throughput=0.5),))
    (one,) = check(slower, recorded, rounds=40)
    assert one.ratio == pytest.approx(points.runs[0].throughput / 0.5, rel=0.03)
    assert check_lines([one])[-1] == f"mean distance {abs(one.ratio - 1):.1%}"


def test_what_cannot_be_simulated_is_refused() -> None:
    recorded = _recorded()
    with pytest.raises(OptionError, match="no policy 'best'"):
        simulate(recorded, Roofline(), "best", 1)
    with pytest.raises(OptionError, match="0 sequences"):
        simulate(recorded, Roofline(), "full", 0)
    with pytest.raises(OptionError, match="positive"):
        Roofline(floor_s=-1.0)
    with pytest.raises(OptionError, match="no measured runs"):
        check(Measured(((1.0, 1.0),), ((1.0, 1.0),)), recorded)
    with pytest.raises(OptionError, match="pairs of a whole number"):
        Measured(((1.5, 1.0),), ((1.0, 1.0),)).table()
    with pytest.raises(OptionError, match="rising"):
        Measured(((2.0, 1.0), (1.0, 1.0)), ((1.0, 1.0),)).table()


def test_recorded_rounds_are_those_of_a_trace(tmp_path: Path) -> None:
    rounds = [
        Round(10, 5, (1, 2), (0.9, 0.12345), accepted=1, committed=2),
        Round(12, 5, (1,), (0.5,), accepted=1, committed=1),
        Round(10, 5, (1, 2), (0.9, 0.12345), accepted=1, committed=2),
    ]
    text = Text.of(rounds)
    assert text.starts == (0, 2)
    assert text.at(1) == (2, Moment((0.5,), 1, 1))
    assert text.at(3) is None
    path = tmp_path / "rounds.json"
    Recorded((text,), Scaling((1.5,))).save(path)
    found = Recorded.load(path)
    assert found.scaling == Scaling((1.5,))
    assert found.texts[0].moments[0] == Moment((0.9, 0.1234), 1, 2)
    assert about(found) == {"texts": 1, "rounds": 2, "proposals": 2}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "x"}, "not recorded rounds"),
        ({"scaling": None}, "not a calibration"),
        ({"texts": []}, "holds no texts"),
        ({"texts": [[[0, 1]]]}, "two counts"),
        ({"texts": [[]]}, "rising starts"),
        ({"texts": [[[1, 0, 1], [1, 0, 1]]]}, "rising starts"),
        ({"texts": [[[0, 2, 3, 5000]]]}, "accepts 2 of 1"),
        ({"texts": [[[0, 1, 1, 20_000]]]}, "accepts 1 of 1"),
        ({"texts": [[[0, 0, 0, 5000]]]}, "accepts 0 of 1"),
        ({"texts": [["a"]]}, "texts"),
    ],
)
def test_a_file_of_something_else_is_refused(
    changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "rounds.json"
    good = {"format": FORMAT, "scaling": IDENTITY.as_json(), "texts": [[[0, 1, 2, 9000]]]}
    path.write_text(json.dumps(good | changes))
    with pytest.raises(OptionError, match=said) as caught:
        Recorded.load(path)
    assert str(caught.value).startswith(str(path))


def test_the_bundled_rounds_can_be_simulated() -> None:
    recorded = Recorded.load()
    assert about(recorded)["texts"] == 56
    found = {
        name: simulate(recorded, Roofline(), name, 64, rounds=40).throughput
        for name in ("plain", "full", "scheduled", "oracle")
    }
    assert found["oracle"] > found["scheduled"] > max(found["plain"], found["full"])
