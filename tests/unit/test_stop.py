"""Stop strings are cut at the same place however the text is divided."""

import random
from collections.abc import Sequence

import pytest

from llamaspec.errors import OptionError
from llamaspec.text.stop import StopMatcher


def reference(text: str, stops: Sequence[str]) -> str | None:
    """What is left of a text that a stop string ends; None where none occurs."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return None


def run(pieces: Sequence[str], stops: Sequence[str]) -> tuple[list[str], bool, int]:
    matcher = StopMatcher(stops)
    parts = []
    for piece in pieces:
        emit, stopped = matcher.push(piece)
        parts.append(emit)
        if stopped:
            assert matcher.push("more") == ("", True)
            assert matcher.flush() == ""
            return parts, True, matcher.kept
    return [*parts, matcher.flush()], False, matcher.kept


def kept(pieces: Sequence[str], length: int) -> int:
    """How many pieces it takes to write the first `length` characters."""
    count = total = 0
    for number, piece in enumerate(pieces, 1):
        if piece and total < length:
            count = number
        total += len(piece)
    return count


@pytest.mark.parametrize("alphabet", ["ab", "abc", "aé\n"])
def test_agrees_with_the_obvious_way(alphabet: str) -> None:
    rng = random.Random(alphabet)
    stopped_runs = 0
    for _ in range(4000):
        stops = [
            "".join(rng.choices(alphabet, k=rng.randint(1, 5))) for _ in range(rng.randint(1, 4))
        ]
        pieces = [
            "".join(rng.choices(alphabet, k=rng.randint(0, 4))) for _ in range(rng.randint(0, 8))
        ]
        parts, stopped, kept_ = run(pieces, stops)
        text, right = "".join(pieces), reference("".join(pieces), stops)
        assert stopped == (right is not None)
        assert "".join(parts) == (text if right is None else right)
        assert kept_ == kept(pieces, len("".join(parts)))
        stopped_runs += stopped
    assert 500 < stopped_runs < 3900


def test_holds_back_only_what_may_become_a_stop_string() -> None:
    matcher = StopMatcher(["</end>", "STOP"])
    assert matcher.push("text <") == ("text ", False)
    assert matcher.push("/en") == ("", False)
    assert matcher.push("d x ST") == ("</end x ", False)
    assert matcher.push("OPPED") == ("", True)
    assert matcher.kept == 3


def test_flush_gives_back_what_was_held() -> None:
    matcher = StopMatcher("###")
    assert matcher.push("a##") == ("a", False)
    assert matcher.flush() == "##"
    assert matcher.push("#") == ("", False)
    assert matcher.flush() == "#"


def test_the_longer_of_two_that_end_together_is_cut() -> None:
    assert StopMatcher(["b", "aab"]).push("xaab") == ("x", True)


@pytest.mark.parametrize("stop", ["", ["ok", ""], [5]])
def test_unusable_stop_strings(stop: str | list[str]) -> None:
    with pytest.raises(OptionError, match="stop string"):
        StopMatcher(stop)


def test_a_single_string_is_one_stop_string() -> None:
    assert StopMatcher("ab").push("xa") == ("x", False)
