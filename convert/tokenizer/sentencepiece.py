"""SentencePiece's tokenizer.model: a protobuf, read here field by field.

Numbers of fields and types are those of sentencepiece_model.proto (google/sentencepiece).
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llamaspec.convert.tokenizer.files import (
    MAX_SETTINGS,
    MAX_TOKENIZER,
    Fields,
    content,
    fields,
    read_bytes,
    read_object,
    shown,
    whole,
)
from llamaspec.convert.tokenizer.table import (
    BYTE,
    Metadata,
    Table,
    TokenType,
    looks_special,
    too_large,
)
from llamaspec.errors import ModelLoadError

KNOWN = ("bos", "eos")
"""Roles that llama.cpp's `llama` model gives ids, 1 and 2, where a GGUF does not."""

_PIECE, _NORMALIZER = 1, 3
_TEXT, _SCORE, _TYPE = 1, 2, 3
_DUMMY_PREFIX = 3
_USER_DEFINED = 4
_PAD_SCORE, _ADDED_SCORE = -10000.0, -1000.0


@dataclass(frozen=True)
class Pieces:
    """A SentencePiece model.

    Attributes:
        path: of the file.
        rows: text, score and type by id.
        space_in_front: whether a text gets a space in front of it.
    """

    path: Path
    rows: list[tuple[str, float, TokenType]]
    space_in_front: bool


class _WireError(ValueError):
    """Not a protobuf of this kind."""


def read_pieces(path: Path, *, required: bool) -> Pieces | None:
    """Read a tokenizer.model, None where there is none.

    required: whether a file that is not SentencePiece's is an error; else the result is None, for
    some checkpoints have another vocabulary under that name, beside their tokenizer.json. Raises
    ModelLoadError.
    """
    data = read_bytes(path, MAX_TOKENIZER)
    if data is None:
        return None
    try:
        rows, prefix = _parse(memoryview(data))
    except _WireError as error:
        if required:
            raise ModelLoadError(f"{path}: no SentencePiece model: {error}") from None
        return None
    return Pieces(path, rows, prefix)


def metadata(folder: Path, pieces: Pieces, settings: Fields, n_vocab: int) -> Metadata:
    """Return the `llama` model: the pieces, and over them what added_tokens.json and
    tokenizer_config.json add, as far as the model has rows. Raises ModelLoadError.
    """
    if len(pieces.rows) > n_vocab:
        raise too_large(pieces.path, len(pieces.rows), n_vocab)
    table = Table(pieces.path, n_vocab, _PAD_SCORE)
    for token, (text, score, kind) in enumerate(pieces.rows):
        table.put(token, text, kind, score)
    _put_added(table, folder, settings)
    result: Metadata = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default"}
    result |= table.metadata(scores=True)
    given = settings.get("add_prefix_space")
    if isinstance(given, bool) or not pieces.space_in_front:
        result["tokenizer.ggml.add_space_prefix"] = pieces.space_in_front and given is not False
    return result


def _put_added(table: Table, folder: Path, settings: Fields) -> None:
    path = folder / "added_tokens.json"
    for text, number in (read_object(path, MAX_SETTINGS) or {}).items():
        token = _id(path, number)
        if token < table.n_vocab:
            table.put(token, text, TokenType.USER_DEFINED, _ADDED_SCORE)
    path = folder / "tokenizer_config.json"
    for key, value in fields(settings.get("added_tokens_decoder")).items():
        token = _id(path, int(key) if key.isascii() and key.isdigit() and len(key) < 10 else key)
        if (added := content(value)) is None:
            raise ModelLoadError(f"{path}: added token {token} has no content")
        if token >= table.n_vocab:
            continue
        if fields(value).get("special") or looks_special(added):
            table.put(token, added, TokenType.CONTROL, _ADDED_SCORE)
        else:
            text = added.replace("\u2581", " ")
            table.put(token, text, TokenType.USER_DEFINED, _ADDED_SCORE)


def _id(path: Path, value: object) -> int:
    number = whole(value)
    if number is None or number < 0:
        raise ModelLoadError(f"{path}: {shown(value)} is no id of a token")
    return number


def _parse(data: memoryview) -> tuple[list[tuple[str, float, TokenType]], bool]:
    rows: list[tuple[str, float, TokenType]] = []
    space_in_front = True
    for number, value in _messages(data):
        if number == _PIECE and isinstance(value, memoryview):
            rows.append(_piece(value))
        elif number == _NORMALIZER and isinstance(value, memoryview):
            for inner, flag in _messages(value):
                if inner == _DUMMY_PREFIX:
                    space_in_front = bool(flag)
    if not rows:
        raise _WireError("it has no pieces")
    return rows, space_in_front


def _piece(data: memoryview) -> tuple[str, float, TokenType]:
    text, score, kind = "", 0.0, int(TokenType.NORMAL)
    for number, value in _messages(data):
        if number == _TEXT and isinstance(value, memoryview):
            try:
                text = bytes(value).decode()
            except UnicodeDecodeError:
                raise _WireError("a piece is not UTF-8") from None
        elif number == _SCORE and isinstance(value, float):
            score = value
        elif number == _TYPE and isinstance(value, int):
            kind = value
    if not text or not TokenType.NORMAL <= kind <= TokenType.BYTE or not math.isfinite(score):
        raise _WireError(f"piece {text[:40]!r} of type {kind} with score {score}")
    if kind == TokenType.BYTE and not BYTE.fullmatch(text):
        raise _WireError(f"piece {text[:40]!r} stands for no byte")
    # llama.cpp's converter leaves these normal unless they are among the added tokens
    return text, score, TokenType(TokenType.NORMAL if kind == _USER_DEFINED else kind)


def _messages(data: memoryview) -> Iterator[tuple[int, int | float | memoryview]]:
    """The fields of a message: number, and an integer, a float32 or the bytes."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire == 2:
            size, position = _varint(data, position)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise _WireError(f"wire type {wire} at byte {position}")
        part = data[position : position + size]
        if len(part) != size or number == 0:
            raise _WireError(f"it ends within field {number}")
        position += size
        yield number, struct.unpack("<f", part)[0] if wire == 5 else part


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position == len(data):
            raise _WireError("it ends within a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise _WireError(f"a number of more than 10 bytes before byte {position}")
