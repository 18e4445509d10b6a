"""The probe's figures from known rows, and what is remembered of them."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.store import file_identity
from llamaspec.verify import known
from llamaspec.verify.probe import SAFETY, Comparison, Exactness, judge

pytestmark = pytest.mark.native

ROWS = 20


def rows() -> FloatArray:
    """Rows whose largest logit is 5, the next 4, and so on in steps of a hundredth."""
    logits = np.tile(np.linspace(-3, 3, 50, dtype=np.float32), (ROWS, 1))
    logits[:, 7], logits[:, 9] = 5.0, 4.0
    return logits


def test_equal_rows_are_bitwise_and_need_no_bound() -> None:
    found = judge([Comparison(w, rows(), rows()) for w in (2, 3, 4)])
    assert found.bitwise
    assert (found.deviation, found.bound, found.near_ties, found.changed) == (0, 0, 0, 0)
    assert (found.widths, found.unequal, found.rows) == ((2, 3, 4), (), ROWS)
    assert "bitwise" in str(found)
    assert "2 to 4" in str(found)


def test_the_deviation_is_that_of_a_gap_not_of_a_logit() -> None:
    block = rows() + np.float32(1)  # all logits moved alike: no choice can change
    block[3, 9] += np.float32(0.25)
    found = judge([Comparison(2, rows(), rows()), Comparison(4, rows(), block)])
    assert not found.bitwise
    assert found.unequal == (4,)
    assert found.deviation == pytest.approx(0.25, abs=1e-5)
    assert found.bound == pytest.approx(0.25 * SAFETY, abs=1e-4)
    assert "widths 4" in str(found)


def test_a_far_competitor_that_moves_counts_not() -> None:
    block = rows()
    block[3, 0] += 2.0
    found = judge([Comparison(2, rows(), block)])
    assert not found.bitwise
    assert found.deviation == 0


def test_the_share_of_near_ties_and_of_changed_choices() -> None:
    single, block = rows(), rows()
    single[:5, 9] = block[:5, 9] = 4.95
    block[0, 9] = 5.05
    found = judge([Comparison(2, single, block)])
    assert found.near_ties == pytest.approx(5 / ROWS)
    assert found.changed == pytest.approx(1 / ROWS)


def test_what_is_no_number_bounds_nothing() -> None:
    block = rows()
    block[2, 7] = np.nan
    found = judge([Comparison(2, rows(), block)])
    assert math.isinf(found.bound)
    assert found.near_ties == 1


FOUND = Exactness(False, 0.1, 0.4, 0.05, 0.01, (4, 8), (2, 4, 8), 48)


def test_what_was_found_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMASPEC_CACHE", str(tmp_path))
    asked = []

    def find() -> Exactness:
        asked.append(1)
        return FOUND

    settings = [("threads", "2")]
    first = known.known_or("a model", settings, find)
    assert known.known_or("a model", settings, find) == first
    assert first == dataclasses.replace(FOUND, settings=(("threads", "2"),))
    assert len(asked) == 1
    known.known_or("a model", [("threads", "1")], find)
    known.known_or("another", settings, find)
    assert len(asked) == 3


@pytest.mark.parametrize("damage", ["", "{}", "[1]", '{"bitwise": true}', "\0\1", "null"])
def test_a_damaged_memory_is_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setenv("LLAMASPEC_CACHE", str(tmp_path))
    known.known_or("a model", [], lambda: FOUND)
    (file,) = (tmp_path / "exactness").iterdir()
    file.write_text(damage)
    other = dataclasses.replace(FOUND, rows=7)
    assert known.known_or("a model", [], lambda: other).rows == 7


def test_a_memory_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLAMASPEC_CACHE", str(tmp_path / "file"))
    assert known.known_or("a model", [], lambda: FOUND) == FOUND


def test_another_file_has_another_identity(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" + bytes(100))
    before = file_identity(file, 104)
    assert file_identity(file, 104) == before
    file.write_bytes(b"GGUF" + bytes(99) + b"\1")
    assert file_identity(file, 104) != before
