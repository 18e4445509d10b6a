"""A stream of pieces gives the text of all bytes, and never half a character."""

import random
import time

import pytest

from llamaspec.text.detokenize import Pieces, StreamDetokenizer

TEXTS = [
    "plain ascii",
    "naïve café, Größe",
    "你好世界。日本語テスト",
    "emoji 👩‍👩‍👧‍👦 flags 🇩🇪 and 𝄞",
    "",
]


def stream(pieces: list[bytes]) -> list[str]:
    detokenizer = StreamDetokenizer(Pieces(pieces.__getitem__))
    return [*(detokenizer.push(token) for token in range(len(pieces))), detokenizer.flush()]


def cut(raw: bytes, rng: random.Random) -> list[bytes]:
    pieces = []
    while raw:
        size = rng.randint(0, 5)
        pieces.append(raw[:size])
        raw = raw[size:]
    return pieces


@pytest.mark.parametrize("text", TEXTS)
def test_valid_text_in_any_division(text: str) -> None:
    rng = random.Random(1)
    for _ in range(200):
        parts = stream(cut(text.encode(), rng))
        assert "".join(parts) == text
        assert not any("\ufffd" in part for part in parts)
        assert parts[-1] == ""


def test_arbitrary_bytes_equal_one_decoding() -> None:
    rng = random.Random(2)
    alphabet = [b"a", b"\xc3", b"\xa9", b"\xf0\x9f", b"\x92\xa9", b"\xff", b"\xe2\x82", b"\xed\xa0"]
    for _ in range(3000):
        raw = b"".join(rng.choices(alphabet, k=rng.randint(0, 12)))
        assert "".join(stream(cut(raw, rng))) == raw.decode("utf-8", "replace")


def test_a_character_appears_with_its_last_byte() -> None:
    euro = "€".encode()
    assert stream([euro[:1], euro[1:2], euro[2:] + b"!", b"?"]) == ["", "", "€!", "?", ""]


def test_an_unfinished_end_is_replaced_and_the_next_stream_is_clean() -> None:
    detokenizer = StreamDetokenizer(Pieces([b"ok\xf0\x9f", b"fine"].__getitem__))
    assert detokenizer.push(0) == "ok"
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.push(1) == "fine"
    assert detokenizer.flush() == ""


def test_pieces_are_asked_for_once_and_repeats_are_cheap() -> None:
    asked: list[int] = []

    def piece(token: int) -> bytes:
        asked.append(token)
        return b" word"

    detokenizer = StreamDetokenizer(Pieces(piece))
    start = time.perf_counter()
    for token in range(100_000):
        detokenizer.push(token % 64)
    each = (time.perf_counter() - start) / 100_000
    assert asked == list(range(64))
    assert each < 2e-6
