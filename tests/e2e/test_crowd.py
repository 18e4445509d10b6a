"""Several texts at once, of which each leaves open how much is drafted: on the bundled pair, with
costs given as files, so that nothing depends on how fast passes are here.
"""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llamaspec.bench.pairs import PROMPTS
from llamaspec.completion import Completion
from llamaspec.errors import OptionError
from llamaspec.options import GenerateSettings
from llamaspec.schedule.cost import FORMAT
from llamaspec.session import Session, load
from llamaspec.text.prompt import Prompt
from tests.e2e.terminal import refusal, together
from tests.rounds import BLOCK, widths

pytestmark = pytest.mark.native

TEXTS = 8
ASKED: list[Prompt] = [
    [{"role": "user", "content": PROMPTS[i % len(PROMPTS)][1]}] for i in range(TEXTS)
]
# seconds of a row, in passes of one second and more; and of a proposal of a draft's pass
COSTS = {"flat": (0.001, 0.0001), "line": (0.05, 0.005), "steep": (1.0, 0.01), "never": (0.0, 9.0)}


def written(folder: Path, name: str) -> str:
    """The file of a curve, for one text and for several."""
    row, proposal = COSTS[name]

    def passes(texts: int) -> dict[str, Any]:
        sizes = [texts * n for n in range(1, BLOCK + 2)]
        return {"depths": [0], "sizes": sizes, "seconds": [[1 + row * n for n in sizes]]}

    def blocks(texts: int) -> dict[str, Any]:
        widths = [*range(1, BLOCK + 1)]
        seconds = [0.01 + proposal * texts * n for n in widths]
        return {"depths": [0], "sizes": widths, "seconds": [seconds]}

    many = {
        "verify": [{"texts": n, "verify": passes(n)} for n in (2, TEXTS)],
        "draft": [{"texts": n, "draft": blocks(n)} for n in (2, TEXTS)],
    }
    path = folder / f"{name}.json"
    curve = {"format": FORMAT, "verify": passes(1), "draft": blocks(1), "many": many}
    path.write_text(json.dumps(curve))
    return str(path)


def opened(folder: Path, name: str, **settings: Any) -> Session:  # noqa: ANN401
    curve = written(folder, name)
    given = {"threads": 1, "context": 256, "cost_curve": curve, "max_sequences": TEXTS}
    return load(**{**given, **settings})


def at_once(session: Session, settings: Sequence[GenerateSettings]) -> list[Completion]:
    """Complete a prompt for each of the settings, all at the same time."""
    done: dict[int, Completion] = {}
    ready = threading.Barrier(len(settings))

    def work(number: int) -> None:
        ready.wait()
        done[number] = session.generate(ASKED[number], **settings[number])

    workers = [threading.Thread(target=work, args=(n,)) for n in range(len(settings))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return [done[number] for number in range(len(settings))]


@pytest.fixture(scope="module")
def plain() -> list[tuple[int, ...]]:
    with load(threads=1, context=256) as session:
        return [session.generate(asked, max_tokens=64, draft_max=0).token_ids for asked in ASKED]


def test_widths_follow_what_rows_cost_and_texts_do_not(
    tmp_path: Path, plain: list[tuple[int, ...]]
) -> None:
    seen = {}
    for name in COSTS:
        with opened(tmp_path, name) as session:
            found = [at_once(session, [{"max_tokens": 64}] * TEXTS) for _ in range(2)]
        for turn in found:
            assert [one.token_ids for one in turn] == plain
        counts = widths([one for turn in found for one in turn])
        seen[name] = sum(n * count for n, count in counts.items()) / counts.total()
    assert seen["flat"] > 4
    assert seen["flat"] > seen["line"] > seen["never"]
    assert seen["steep"] < 0.7
    assert seen["never"] < 0.3


def test_who_asks_for_a_number_gets_it_beside_others(
    tmp_path: Path, plain: list[tuple[int, ...]]
) -> None:
    settings: list[GenerateSettings] = [
        {"max_tokens": 64, "draft_max": most} for most in (0, 1, 3, BLOCK)
    ]
    settings += [{"max_tokens": 64}, {"max_tokens": 64, "temperature": 0.8, "seed": 3}]
    with opened(tmp_path, "line") as session:
        found = at_once(session, settings)
    assert [one.token_ids for one in found[:5]] == plain[:5]
    for one, most in zip(found, (0, 1, 3, BLOCK), strict=False):
        assert set(widths([one])) == {most}


def test_a_seed_gives_one_text_beside_others(tmp_path: Path) -> None:
    asked: GenerateSettings = {"max_tokens": 40, "temperature": 1.0, "cache_prompt": False}
    for rule in ("residual", "block"):
        drawn: GenerateSettings = {**asked, "accept": rule, "seed": 1}
        free: GenerateSettings = {**asked, "accept": rule}
        with opened(tmp_path, "line", max_sequences=4) as session:
            alone = session.generate(ASKED[0], **drawn)
            together = at_once(session, [drawn, free, free, {"max_tokens": 40}])
        assert together[0].token_ids == alone.token_ids
        assert set(widths(together[:1])) == {BLOCK}


def test_a_text_that_is_alone_is_paced_as_in_a_session_of_one(tmp_path: Path) -> None:
    found = []
    for most in (1, TEXTS):
        with opened(tmp_path, "line", max_sequences=most) as session:
            found.append([session.generate(asked, max_tokens=64) for asked in ASKED[:3]])
    for one, other in zip(*found, strict=True):
        assert one.rounds == other.rounds


@pytest.mark.parametrize("many", [1, 4])
def test_a_schedule_can_be_fixed(many: int, plain: list[tuple[int, ...]]) -> None:
    settings: list[GenerateSettings] = [{"max_tokens": 64}] * many
    with load(threads=1, context=256, max_sequences=many, schedule="full") as session:
        assert session.pace is None
        found = at_once(session, settings)
        assert set(widths(found)) == {BLOCK}
        assert [one.token_ids for one in found] == plain[:many]
    with load(threads=1, context=256, max_sequences=many, schedule=0.8) as session:
        found = at_once(session, settings)
        assert [one.token_ids for one in found] == plain[:many]
        assert len(widths(found)) > 2
        for record in (r for one in found for r in one.rounds):
            assert all(c >= 0.8 for c in record.confidence or ())
        told = at_once(session, [{"max_tokens": 64, "draft_max": 3}] * many)
        assert set(widths(told)) == {3}


@pytest.mark.parametrize("value", ["fast", 0, 1, 1.5, -0.5, float("nan"), True, None])
def test_a_schedule_that_is_none_is_refused(value: Any) -> None:  # noqa: ANN401
    with pytest.raises(OptionError, match="must be auto, full or a number between 0 and 1"):
        load(schedule=value)


def test_costs_of_many_texts_are_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMASPEC_CACHE", str(tmp_path))
    found = []
    for _ in range(2):
        with load(threads=1, context=256, max_sequences=3) as session:
            crowd = session._pair.engine.pacing.crowd
            assert crowd is not None
            assert not crowd.prices.pinned
            found.append(crowd.prices.many)
            done = at_once(session, [{"max_tokens": 16}] * 3)
            assert all(len(one.token_ids) == 16 for one in done)
    assert found[0] is not None
    assert found[0] == found[1]
    assert found[0].verify[-1][0] == 3
    assert len([*(tmp_path / "costs of many").iterdir()]) == 1


@pytest.mark.parametrize(
    ("many", "said"),
    [
        ([], "must be an object"),
        ({}, "need verify seconds"),
        ({"verify": [{"texts": 1}]}, "must have texts, 2 or more"),
        ({"verify": [{"texts": 2}]}, "must have texts, 2 or more"),
    ],
)
def test_a_file_with_broken_costs_of_many_texts_is_one_line(
    tmp_path: Path, many: object, said: str
) -> None:
    path = Path(written(tmp_path, "line"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "many": many}))
    with pytest.raises(OptionError) as refused:
        load(threads=1, context=256, max_sequences=2, cost_curve=str(path))
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"{path}: ")
    assert said in line


def test_the_command_line_fixes_a_schedule() -> None:
    quick = ("run", "-t", 1, "-n", 24, "--explain", PROMPTS[2][1])
    found = together(
        {
            name: (*quick[:-1], "--schedule", name, quick[-1])
            for name in ("full", "0.9", "fast", "1.5")
        }
    )
    for name, said in (("full", "whole blocks"), ("0.9", "up to the first less sure")):
        assert found[name].returncode == 0
        assert f"widths: {said}, as --schedule {name} says" in found[name].stderr
    assert found["full"].stdout == found["0.9"].stdout
    for name, shown in (("fast", "'fast'"), ("1.5", "1.5")):
        assert f"schedule is {shown}; it must be auto, full or" in refusal(found[name])
