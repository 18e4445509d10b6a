"""What `run --explain` says of how confidences are read."""

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest

from llamaspec.cli.explain import explanation
from llamaspec.options import GenerateOptions
from llamaspec.trace import Round
from tests.unit.test_pace import STAIRS, WIDTH, pace


def said(spread: float | None) -> str:
    """The last line, after rounds whose confidences are drawn by lot, or say how it will be."""
    chooser, dice = pace(STAIRS["flat"], 0.1), random.Random(2)
    confidence: tuple[float, ...] = ()
    for _ in range(300):
        accepted = next((i for i in range(WIDTH) if dice.random() >= 0.7), WIDTH)
        confidence = tuple(0.95 if i < accepted else 0.05 for i in range(WIDTH))
        if spread is not None:
            confidence = tuple(1 / (1 + math.exp(-dice.gauss(0, spread))) for _ in range(WIDTH))
        chooser.calibration.learn(confidence, accepted, WIDTH)
    rounds = (Round(5, 1, (2,), confidence[:1], 1, 2, offered=WIDTH),)
    stats = SimpleNamespace(prompt_tokens=5, completion_tokens=2, widths=(0, 1))
    done: Any = SimpleNamespace(stats=stats, rounds=rounds)
    session: Any = SimpleNamespace(draft_limit=WIDTH, pace=chooser, schedule="auto")
    return explanation(done, session, GenerateOptions())[-1]


def test_confidences_that_foretell_are_shown_as_they_count() -> None:
    assert said(None).startswith("confidences 0.1, 0.3, 0.5")


@pytest.mark.parametrize("spread", [2.0, 3.0])
def test_rates_are_shown_where_confidences_foretell_little(spread: float) -> None:
    line = said(spread)
    assert line.startswith("confidences foretell little here; by position 0.")
    assert line.count("0.") == WIDTH
