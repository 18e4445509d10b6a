"""A tokenizer that cannot be read ends in one line, whatever the files hold."""

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llamaspec.convert.tokenizer import MAX_VOCABULARY, files, read_tokenizer
from llamaspec.errors import ModelLoadError
from tests.unit.test_tokenizer import (
    byte_level,
    kind_folder,
    recorded,
    spaced_folder,
    write_folder,
)

Document = dict[str, Any]


def refused(folder: Path, *parts: str, n_vocab: int = 1000) -> None:
    """Every part must be in the one line."""
    with pytest.raises(ModelLoadError) as caught:
        read_tokenizer(folder, n_vocab)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert str(folder) in message
    for part in parts:
        assert part in message


def document(kind: str = "qwen2") -> Document:
    case = recorded()["kinds"][kind]
    found: Document = json.loads(json.dumps(byte_level(case["document"])))
    return found


def put(*keys: str | int, value: object) -> Callable[[Document], None]:
    """A change that sets one place of a tokenizer.json."""

    def change(doc: Document) -> None:
        place: Any = doc
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


def added(token: object, content: object, **more: object) -> Callable[[Document], None]:
    return lambda doc: doc["added_tokens"].append({"id": token, "content": content} | more)


def split(regex: str, **more: object) -> Document:
    step = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [step | more, level]}


QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"}
BAD: dict[str, tuple[Callable[[Document], None], tuple[str, ...]]] = {
    "WordPiece": (put("model", "type", value="WordPiece"), ("WordPiece", "BPE")),
    "Unigram": (put("model", "type", value="Unigram"), ("Unigram", "tokenizer.model")),
    "no model": (put("model", value=None), ("kind None",)),
    "no vocabulary": (put("model", "vocab", value={}), ("model.vocab",)),
    "a list for vocabulary": (put("model", "vocab", value=[["a", 0]]), ("model.vocab",)),
    "text id": (put("model", "vocab", "!", value="0"), ("'!'", "'0'")),
    "true for id": (put("model", "vocab", "!", value=True), ("'!'", "True")),
    "negative id": (put("model", "vocab", "!", value=-1), ("'!'", "-1")),
    "fractional id": (put("model", "vocab", "!", value=0.5), ("'!'", "0.5")),
    "id twice": (put("model", "vocab", "!", value=1), ("id 1 is both",)),
    "hole": (put("model", "vocab", "!", value=905), ("no token has id 0", "905")),
    "id beyond": (put("model", "vocab", "!", value=10**12), ("1000000000001", "1000")),
    "merge of no token": (put("model", "merges", 3, value="\u0120 \u4e16"), ("merge 3", "\u4e16")),
    "merge into no token": (put("model", "merges", 3, value=["!", "?!"]), ("merge 3", "'?!'")),
    "merge of three": (put("model", "merges", 3, value="a b c"), ("merge 3", "pair")),
    "merge of a number": (put("model", "merges", 3, value=7), ("merge 3", "7")),
    "no merges": (put("model", "merges", value=[]), ("no merges",)),
    "subword prefix": (put("model", "continuing_subword_prefix", value="##"), ("'##'",)),
    "added id taken": (added(5, "<x>"), ("id 5 is both", "<x>")),
    "added text twice": (added(904, "<tool>"), ("two ids", "903", "904")),
    "added text of the vocabulary": (added(904, "!"), ("'!' has two ids", "904")),
    "added hole": (added(990, "<x>"), ("no token has id 904", "990")),
    "added beyond": (added(10**10, "<x>"), ("no token has id 904",)),
    "added without text": (added(904, None), ("added token",)),
    "added by name": (added("904", "<x>"), ("added token", "'904'")),
    "one text for two rows": (added(904, "[PAD950]"), ("904", "950", "[PAD950]")),
    "one C string for two rows": (added(904, "<tool>\0x"), ("903", "904", "'<tool>'")),
    "one empty C string": (added(904, "[EMPTY_905]\0"), ("904", "905")),
    "half a character": (added(904, "<\ud83d>"), ("surrogate", "\\ud83d")),
    "unknown split": (put("pre_tokenizer", value=split(r"\w+|\W+")), (r"\\w+|\\W+",)),
    "split that drops": (put("pre_tokenizer", value=split(QWEN, behavior="Removed")), ("Removed",)),
    "matches alone": (
        put("pre_tokenizer", value=split(QWEN, behavior="Removed", invert=True)),
        ("Removed",),
    ),
    "space in front": (
        put("pre_tokenizer", value={"type": "ByteLevel", "add_prefix_space": True}),
        ("add_prefix_space", "True"),
    ),
    "words": (put("pre_tokenizer", value={"type": "Whitespace"}), ("Whitespace",)),
    "no bytes": (
        put("pre_tokenizer", value={"type": "Digits", "individual_digits": True}),
        ("byte-level",),
    ),
    "no pre-tokenizer": (put("pre_tokenizer", value=None), ("byte-level",)),
    "lower case": (put("normalizer", value={"type": "Lowercase"}), ("normalizer", "Lowercase")),
    "bytes and spaces": (put("model", "byte_fallback", value=True), ("normalizer", "NFC")),
}


@pytest.mark.parametrize("name", BAD)
def test_a_tokenizer_json_that_does_not_fit(name: str, tmp_path: Path) -> None:
    change, parts = BAD[name]
    doc = document()
    assert read_tokenizer(write_folder(tmp_path / "good", {"tokenizer.json": doc}), 1000)
    change(doc)
    # the rows 904 on are padding, but for what is added
    if name == "one empty C string":
        doc["added_tokens"].append({"id": 905, "content": "\0"})
    refused(write_folder(tmp_path / "bad", {"tokenizer.json": doc}), *parts)


SPACED: dict[str, tuple[Callable[[Document], None], str]] = {
    "no spaces": (put("normalizer", value=None), "byte_fallback"),
    "another mark": (
        put("normalizer", value={"type": "Replace", "pattern": {"String": " "}, "content": "_"}),
        "Replace",
    ),
    "another prefix": (put("normalizer", "normalizers", 0, "prepend", value="x"), "Prepend"),
    "word by word": (put("pre_tokenizer", value=METASPACE), "Metaspace"),
    "digits": (put("pre_tokenizer", value={"type": "Digits"}), "Digits"),
}


@pytest.mark.parametrize("name", SPACED)
def test_spaced_text_that_llama_cpp_would_treat_otherwise(name: str, tmp_path: Path) -> None:
    change, part = SPACED[name]
    case = recorded()["spaced"]["llama_json"]
    doc = json.loads(json.dumps(case["files"]["tokenizer.json"]))
    change(doc)
    refused(write_folder(tmp_path, {"tokenizer.json": doc}), part)


def test_gemma_without_a_token_to_begin_with(tmp_path: Path) -> None:
    folder = spaced_folder(tmp_path, "gemma_json")
    write_folder(folder, {"tokenizer_config.json": {}, "config.json": {}})
    doc = json.loads((folder / "tokenizer.json").read_text())
    write_folder(folder, {"tokenizer.json": doc | {"post_processor": None}})
    refused(folder, "bos_token")


def test_too_many_tokens_names_both_sizes(tmp_path: Path) -> None:
    refused(kind_folder(tmp_path / "a", "qwen2"), "900 tokens", "899", n_vocab=899)
    refused(kind_folder(tmp_path / "b", "qwen2"), "903 tokens", "902", n_vocab=902)
    assert read_tokenizer(tmp_path / "b", 904)
    refused(spaced_folder(tmp_path / "c", "gemma"), "800 tokens", "799", n_vocab=799)


@pytest.mark.parametrize("n_vocab", [0, -1, MAX_VOCABULARY + 1, 10**15])
def test_a_size_that_no_model_has(n_vocab: int, tmp_path: Path) -> None:
    refused(kind_folder(tmp_path, "qwen2"), str(n_vocab), n_vocab=n_vocab)


def test_no_tokenizer_at_all(tmp_path: Path) -> None:
    refused(tmp_path / "absent", "no tokenizer.json or tokenizer.model")
    refused(write_folder(tmp_path, {"tekken.json": {}}), "save its tekken.json")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "malformed JSON"),
        ('{"model": ', "malformed JSON"),
        ("[1]", "list"),
        ('{"a": ' + "[" * 100_000, "nested"),
        ('{"a": ' * 100_000, "nested"),
        ('{"added_tokens": [{"id": ' + "9" * 5000 + "}]}", "malformed JSON"),
    ],
)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_json_that_is_none(name: str, text: str, part: str, tmp_path: Path) -> None:
    refused(write_folder(kind_folder(tmp_path, "qwen2"), {name: text}), name, part)


SMALL = {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
DEEP: list[Document] = [
    {"model": {"type": "DEEP"}},
    {"model": {"vocab": {"a": "DEEP"}, "merges": []}},
    {"model": SMALL, "normalizer": {"type": "DEEP"}},
    {"model": SMALL, "pre_tokenizer": {"type": "DEEP"}},
    {"added_tokens": [{"id": "DEEP"}]},
]


@pytest.mark.parametrize("case", range(len(DEEP)))
def test_nesting_that_json_still_reads(case: int, tmp_path: Path) -> None:
    text = json.dumps(DEEP[case])
    # at the lower of these depths the file is read, and what is wrong in it is deep
    for depth in range(900, 1100, 2):
        deep = text.replace('"DEEP"', "[" * depth + "]" * depth)
        refused(write_folder(tmp_path, {"tokenizer.json": deep}))


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
def test_text_that_is_none(name: str, tmp_path: Path) -> None:
    folder = kind_folder(tmp_path, "qwen2")
    refused(write_folder(folder, {name: b'{"a": "\xff"}'}), name, "not UTF-8 at byte 7")


def test_a_file_of_no_sane_size(tmp_path: Path) -> None:
    for name, limit in (
        ("tokenizer_config.json", files.MAX_SETTINGS),
        ("tokenizer.json", files.MAX_TOKENIZER),
        ("tokenizer.model", files.MAX_TOKENIZER),
    ):
        folder = kind_folder(tmp_path / name, "qwen2")
        with (folder / name).open("wb") as file:
            file.truncate(limit + 1)
        refused(folder, name, str(limit))


@pytest.mark.parametrize(
    "value",
    [{"x": AttributeError}, {"1": {}}, {"-1": {"content": "a"}}, {"9" * 5000: {"content": "a"}}],
)
def test_added_pieces_that_are_none(value: Document, tmp_path: Path) -> None:
    settings = {"added_tokens_decoder": json.loads(json.dumps(value, default=str))}
    folder = write_folder(spaced_folder(tmp_path, "gemma"), {"tokenizer_config.json": settings})
    refused(folder, "tokenizer_config.json")


def field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


def piece(text: bytes, score: float = 0.0, kind: int = 1) -> bytes:
    value = field(1, text) + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind])
    return field(1, value)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "no pieces"),
        (piece(b"a")[:-3], "ends within field 1"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "ends within field 1"),
        (b"\xff" * 20, "more than 10 bytes"),
        (b"\xff", "ends within a number"),
        (b"\x0b\x0c", "wire type 3"),
        (piece(b"\xff"), "not UTF-8"),
        (piece(b""), "piece ''"),
        (piece(b"a", kind=9), "type 9"),
        (piece(b"a", float("nan")), "score nan"),
        (piece(b"a", kind=6), "no byte"),
    ],
)
def test_a_tokenizer_model_that_is_none(data: bytes, part: str, tmp_path: Path) -> None:
    good = piece(b"a", -1.0) + piece(b"b", -2.0) + piece(b"<0x0A>", kind=6)
    found = read_tokenizer(write_folder(tmp_path / "good", {"tokenizer.model": good}), 3)
    assert found["tokenizer.ggml.tokens"] == ["a", "b", "<0x0A>"]
    assert found["tokenizer.ggml.scores"] == [-1.0, -2.0, 0.0]
    assert found["tokenizer.ggml.token_type"] == [1, 1, 6]
    refused(write_folder(tmp_path / "bad", {"tokenizer.model": data}), part)


def test_one_piece_twice(tmp_path: Path) -> None:
    refused(write_folder(tmp_path, {"tokenizer.model": piece(b"a") * 2}), "tokens 0 and 1")


JUNK: list[object] = [None, True, -1, 10**30, 0.5, "", "x", [], [[]], {}, {"type": 3}, ["a", 1]]


def mangled(doc: Any, dice: random.Random) -> None:  # noqa: ANN401
    """Put junk at a random place."""
    place, step = doc, None
    for _ in range(dice.randrange(1, 7)):
        inner = place if step is None else place[step]
        if not inner or not isinstance(inner, dict | list):
            break
        place = inner
        step = dice.choice(list(place)) if isinstance(place, dict) else dice.randrange(len(place))
    if step is not None:
        place[step] = json.loads(json.dumps(dice.choice(JUNK)))


def attempt(folder: Path) -> str | None:
    """Read a folder; None where it is read, else the refusal."""
    try:
        found = read_tokenizer(folder, 1000)
    except ModelLoadError as error:
        return str(error)
    assert len(found["tokenizer.ggml.tokens"]) == 1000  # type: ignore[arg-type]
    return None


@pytest.mark.parametrize("seed", range(40))
def test_junk_in_any_place_is_read_or_refused(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    case = recorded()["converter"]["abcfhij"[seed % 7]]
    good = {"tokenizer.json": byte_level(case["document"])} | case["files"]
    if seed % 4 == 0:
        good = recorded()["spaced"]["gemma_json"]["files"]
    for _ in range(10):
        bad = json.loads(json.dumps(good))
        for _ in range(dice.randrange(1, 4)):
            mangled(bad, dice)
        said = attempt(write_folder(tmp_path, bad))
        assert said is None or len(said.splitlines()) == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_changed_byte_of_a_tokenizer_model_is_read_or_refused(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    folder = spaced_folder(tmp_path, "llama_bare")
    good = (folder / "tokenizer.model").read_bytes()
    for _ in range(5):
        bad = bytearray(good[: dice.randrange(1, len(good))] if dice.random() < 0.3 else good)
        for _ in range(dice.randrange(1, 6)):
            bad[dice.randrange(len(bad))] = dice.randrange(256)
        (folder / "tokenizer.model").write_bytes(bytes(bad))
        said = attempt(folder)
        assert said is None or len(said.splitlines()) == 1
