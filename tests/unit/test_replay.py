"""bench/replay.py: choices over recorded blocks, by prices alone."""

import json
import random
from dataclasses import asdict
from pathlib import Path

import pytest

from llamaspec import load
from llamaspec.bench.replay import Block, Blocks, Costs, Recorded, fixed, played, record, speedups
from llamaspec.bench.workloads import Prompt
from llamaspec.demo import draft_path, target_path
from llamaspec.errors import OptionError
from llamaspec.options import LoadOptions
from llamaspec.schedule.cost import CostCurve, Surface

WIDTH = 5


def costs(rows: tuple[float, ...], draft: float) -> Costs:
    verify = Surface((0,), tuple(range(1, len(rows) + 1)), (rows,))
    curve = CostCurve(verify, Surface((0,), (1, WIDTH), ((draft, draft),)))
    return Costs.of(curve, WIDTH, 0.0, 0.0)


def text(dice: random.Random, category: str, chance: float, places: int = 40) -> Blocks:
    """Blocks whose confidences are right."""
    blocks = []
    for width in range(1, WIDTH + 1):
        row = []
        for _ in range(places):
            accepted = 0
            while accepted < width and dice.random() < chance:
                accepted += 1
            row.append(Block((chance,) * width, accepted))
        blocks.append(tuple(row))
    return Blocks(category, 20, tuple(blocks))


def texts() -> Recorded:
    dice = random.Random(1)
    kinds = {"code": 0.9, "prose": 0.6, "noise": 0.05}
    return Recorded(tuple(text(dice, name, c) for _ in range(12) for name, c in kinds.items()))


def test_the_pace_is_between_the_best_width_and_hindsight() -> None:
    found = played(texts(), costs((1.0, 1.1, 1.2, 1.3, 1.4, 1.5), 0.3))
    best = max(ratios["all"] for name, ratios in found.items() if name.startswith("width"))
    assert best <= found["pace"]["all"] < found["hindsight"]["all"]
    assert found["pace"]["code"] > 2
    assert found["pace"]["noise"] > 0.9 > found["whole blocks"]["noise"]
    assert found["hindsight"]["noise"] >= 1


def test_where_drafting_cannot_pay_hindsight_is_plain_decoding_and_the_pace_is_close() -> None:
    found = played(texts(), costs((1.0, 2.0, 3.0, 4.0, 5.0, 6.0), 1.0))
    assert set(found["hindsight"].values()) == {1.0}
    assert min(found["pace"].values()) > 0.95
    assert found["whole blocks"]["all"] < 0.7


def test_a_width_takes_what_its_rounds_take() -> None:
    one = Blocks("x", 0, (tuple(Block((0.9,), 1) for _ in range(4)),) * WIDTH)
    # five tokens: two rounds of two, and the last alone
    prices = costs((1.0, 1.25, 9.0, 9.0, 9.0, 9.0), 0.25)
    assert one.rounds == 5
    assert speedups([one], fixed(1, prices), prices) == {"x": 5 / 4, "all": 5 / 4}


@pytest.mark.parametrize("broken", ['{"texts": [], "format": "llamaspec blocks 1"}', "[]", "{"])
def test_a_file_that_holds_no_blocks_is_refused(tmp_path: Path, broken: str) -> None:
    (tmp_path / "blocks.json").write_text(broken)
    with pytest.raises(OptionError, match=r"blocks\.json"):
        Recorded.read(tmp_path / "blocks.json")


@pytest.mark.native
def test_blocks_of_the_bundled_pair(tmp_path: Path) -> None:
    options = LoadOptions(threads=1, context=256)
    prompts = [Prompt("code", "1", ("Write a function that adds two numbers.",))]
    with load(target_path(), draft_path(), options=options) as session:
        found = record(session, prompts, 40)
        message = [{"role": "user", "content": prompts[0].text}]
        done = session.generate(message, max_tokens=40, draft_max=session.draft_limit)
        width = session.draft_limit
    (one,) = found.texts
    assert one.rounds == len(done.token_ids) - 1
    assert [len(b[0].confidence) for b in one.blocks] == list(range(1, width + 1))
    # rounds of whole blocks accept what was recorded at their places
    place = 0
    for each in done.rounds:
        block = one.at(place, width)
        if len(each.draft) == width and block is not None:
            assert each.accepted == block.accepted
        place += each.committed
    assert place == one.rounds
    file = tmp_path / "blocks.json"
    file.write_text(json.dumps(asdict(found)))
    assert Recorded.read(file) == found
