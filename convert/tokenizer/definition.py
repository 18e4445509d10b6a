"""tokenizer.json, checked and typed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llamaspec.convert.tokenizer.files import Fields, fields, items, shown, whole
from llamaspec.convert.tokenizer.table import too_large
from llamaspec.errors import ModelLoadError


@dataclass(frozen=True)
class AddedToken:
    """A token that is cut out of the text before the model sees it."""

    id: int
    content: str
    special: bool
    normalized: bool


@dataclass(frozen=True)
class Outline:
    """What every tokenizer.json has, whatever its model.

    Attributes:
        path: of the file.
        added: by id.
        post_processors: steps, sequences flattened.
    """

    path: Path
    added: list[AddedToken]
    post_processors: list[Fields]


@dataclass(frozen=True)
class Definition(Outline):
    """A tokenizer.json with a BPE.

    Attributes:
        vocabulary: text to id, without the tokens that are only added.
        merges: pairs, most frequent first.
        model: the rest of the model's settings.
        normalizers, pre_tokenizers: steps, sequences flattened.
    """

    vocabulary: Mapping[str, int]
    merges: list[tuple[str, str]]
    model: Fields
    normalizers: list[Fields]
    pre_tokenizers: list[Fields]

    @property
    def merge_lines(self) -> list[str]:
        """The merges as a GGUF has them; a space within a token is written as GPT-2's byte is."""
        return [" ".join(part.replace(" ", "\u0120") for part in pair) for pair in self.merges]

    def base_rows(self, n_vocab: int) -> dict[int, str]:
        """The vocabulary by id.

        Raises ModelLoadError for an id above n_vocab, for one given twice, and for one below the
        largest that no token has: the tokenizers library numbers such added tokens anew.
        """
        top = max(self.vocabulary.values())
        if top >= n_vocab:
            raise too_large(self.path, top + 1, n_vocab)
        rows: dict[int, str] = {}
        added = {token.id: token.content for token in self.added}
        for text, token in self.vocabulary.items():
            other = rows.get(token, added.get(token, text))
            if other != text:
                raise _two_texts(self.path, token, other, text)
            rows[token] = text
        top = max([top, *added])
        hole = next((i for i in range(top) if i not in rows and i not in added), None)
        if hole is not None:
            raise ModelLoadError(f"{self.path}: no token has id {hole}, the largest id is {top}")
        return rows


def read_outline(path: Path, raw: Fields) -> Outline:
    """The added tokens and the post-processor of a tokenizer.json. Raises ModelLoadError."""
    steps = flattened(raw.get("post_processor"), "processors")
    return Outline(path, _added(path, raw.get("added_tokens")), steps)


def read_definition(path: Path, raw: Fields) -> Definition:
    """All of a tokenizer.json. Raises ModelLoadError, as where its model is no BPE."""
    outline = read_outline(path, raw)
    model = fields(raw.get("model"))
    # early files leave the model's type out
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind != "BPE":
        raise ModelLoadError(
            f"{path}: a tokenizer of kind {shown(kind)}; supported are BPE, and "
            "SentencePiece with a tokenizer.model"
        )
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise ModelLoadError(f"{path}: {key} is {shown(model[key])}, llama.cpp has no such")
    vocabulary = _vocabulary(path, model.get("vocab"))
    for token in outline.added:
        if vocabulary.get(token.content, token.id) != token.id:
            raise _two_ids(path, token.content, vocabulary[token.content], token.id)
    return Definition(
        path=path,
        added=outline.added,
        post_processors=outline.post_processors,
        vocabulary=vocabulary,
        merges=_merges(path, model.get("merges"), vocabulary),
        model={key: value for key, value in model.items() if key not in ("vocab", "merges")},
        normalizers=flattened(raw.get("normalizer"), "normalizers"),
        pre_tokenizers=flattened(raw.get("pre_tokenizer"), "pretokenizers"),
    )


def _vocabulary(path: Path, value: object) -> dict[str, int]:
    if not isinstance(value, dict) or not value:
        raise ModelLoadError(f"{path}: model.vocab is {shown(value)}, expected text to id")
    for text, token in value.items():
        if (number := whole(token)) is None or number < 0:
            raise ModelLoadError(f"{path}: the id of {text[:40]!r} is {shown(token)}")
    return value


def _merges(path: Path, value: object, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for index, item in enumerate(items(value)):
        parts = item.split(" ") if isinstance(item, str) else items(item)
        match parts:
            case [str(left), str(right)] if left and right:
                pairs.append((left, right))
            case _:
                raise ModelLoadError(f"{path}: merge {index} is {shown(item)}, expected a pair")
        for text in (left, right, left + right):
            if text not in vocabulary:
                raise ModelLoadError(f"{path}: merge {index} makes use of no token {text[:40]!r}")
    if not pairs:
        raise ModelLoadError(f"{path}: no merges, a BPE tokenizer needs them")
    return pairs


def _added(path: Path, value: object) -> list[AddedToken]:
    found: dict[int, AddedToken] = {}
    ids: dict[str, int] = {}
    for item in map(fields, items(value)):
        token, text = whole(item.get("id")), item.get("content")
        if token is None or token < 0 or not isinstance(text, str) or not text:
            raise ModelLoadError(f"{path}: an added token is {shown(item)}")
        if ids.setdefault(text, token) != token:
            raise _two_ids(path, text, ids[text], token)
        if token in found and found[token].content != text:
            raise _two_texts(path, token, found[token].content, text)
        normalized = item.get("normalized", True) is True
        found[token] = AddedToken(token, text, item.get("special") is True, normalized)
    return [found[token] for token in sorted(found)]


def _two_ids(path: Path, text: str, first: int, second: int) -> ModelLoadError:
    return ModelLoadError(f"{path}: {text[:40]!r} has two ids, {first} and {second}")


def _two_texts(path: Path, token: int, first: str, second: str) -> ModelLoadError:
    return ModelLoadError(f"{path}: id {token} is both {first[:40]!r} and {second[:40]!r}")


def flattened(value: object, inner: str) -> list[Fields]:
    """The steps of a chain, without the sequences that hold them."""
    waiting, steps = [value], list[Fields]()
    while waiting:
        step = fields(waiting.pop())
        if inner in step:
            waiting.extend(reversed(items(step[inner])))
        elif step:
            steps.append(step)
    return steps
