"""bench/many.py: arms that take turns, some of which fail."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from llamaspec import demo
from llamaspec.bench import many
from llamaspec.bench.arms import Ready
from llamaspec.errors import LlamaSpecError
from llamaspec.options import LoadOptions

pytestmark = pytest.mark.native


class Counted:
    """An arm that goes well until it has had so many turns."""

    def __init__(self, turns: int) -> None:
        self.left = turns

    def run(self, prompts: list[Ready]) -> tuple[list[many.Ids], dict[str, float]]:
        if self.left == 0:
            raise LlamaSpecError("llama-server failed a request (gone)")
        self.left -= 1
        return [(1, 2, 3) for _ in prompts], {"accept_rate": 0.5}


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_an_arm_that_fails_is_left_out_from_there_on(
    turns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # one turn is the warm-up
    arms = {"plain": Counted(99), "server@3": Counted(turns)}

    def opened(setting: many.Setting, arm: str, stack: ExitStack) -> Counted:
        return arms[arm]

    monkeypatch.setattr(many, "opened", opened)
    paths = demo.target_path(), Path("draft.gguf")
    setting = many.Setting(*paths, LoadOptions(threads=1), 8, 2, Path("tools"))
    prompts = [Ready(n, np.array([1, 2], np.int32), "") for n in range(4)]
    runs = list(many.measure(setting, list(arms), prompts, 5))
    assert [run.repeat for run in runs if run.arm == "plain"] == [0, 1, 2, 3, 4]
    assert [run.repeat for run in runs if run.arm == "server@3"] == [*range(turns - 1)]
    said = [line for line in capsys.readouterr().out.splitlines() if "server@3" in line]
    assert len(said) == 1
    assert "left out" in said[0]
    assert "(gone)" in said[0]
    table = "\n".join(many.table(runs, "plain"))
    assert ("8/8" in table) is (turns == 3)
    assert "20/20" in table
