"""BPE over text in which a space is U+2581, with tokens for bytes: Llama 2 and Gemma as a
tokenizer.json.
"""

from llamaspec.convert.tokenizer.definition import Definition
from llamaspec.convert.tokenizer.files import Fields, fields, shown
from llamaspec.convert.tokenizer.special import role_texts
from llamaspec.convert.tokenizer.table import BYTE, Metadata, Table, TokenType
from llamaspec.errors import ModelLoadError

_SPACE = "\u2581"
_ADDED_SCORE = -1000.0
_UNREACHED = -1e6
# Gemma 4's marks of channels and tool calls: its chat parser has to see them in the text
_VISIBLE = frozenset(
    f"{begin}{name}{end}"
    for name in ("channel", "tool_call", "tool_response")
    for begin, end in (("<|", ">"), ("<", "|>"))
) | {'<|"|>'}


def metadata(definition: Definition, settings: Fields, n_vocab: int) -> Metadata:
    """Return the `llama` model where the text gets a space in front, else `gemma4`.

    llama.cpp's `llama` merges by score, so a token's score is minus the rank of its first merge:
    the same tokens as by merges that were made from a SentencePiece model's scores, as these are.
    Raises ModelLoadError.
    """
    prefixed = _space_in_front(definition)
    scores = _scores(definition) if prefixed else {}
    table = Table(definition.path, n_vocab, _ADDED_SCORE)
    rows = definition.base_rows(n_vocab)
    special = role_texts(settings)
    for token, text in rows.items():
        kind = _type(text, special, visible=not prefixed)
        table.put(token, text, kind, scores.get(text, _UNREACHED) if prefixed else _ADDED_SCORE)
    for added in definition.added:
        # some text-only models have fewer rows than their tokenizer has added tokens
        if added.id < n_vocab:
            kind = TokenType.USER_DEFINED
            if added.id in rows or added.content in special:
                kind = _type(added.content, special, visible=not prefixed)
            table.put(added.id, added.content, kind, _ADDED_SCORE)
    rest = table.metadata(scores=True)
    if prefixed:
        return {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default"} | rest
    return (
        {"tokenizer.ggml.model": "gemma4"}
        | rest
        | {
            "tokenizer.ggml.merges": definition.merge_lines,
            "tokenizer.ggml.add_space_prefix": False,
            "tokenizer.ggml.add_bos_token": True,
        }
    )


def _space_in_front(definition: Definition) -> bool:
    """Whether the text gets a space in front; ModelLoadError where it is treated otherwise."""
    path, prefixed, replaced = definition.path, False, False
    for step in definition.normalizers:
        match step.get("type"), step.get("prepend"), step.get("content"):
            case "Prepend", "\u2581", _:
                prefixed = True
            case "Replace", _, "\u2581" if fields(step.get("pattern")).get("String") == " ":
                replaced = True
            case _:
                raise ModelLoadError(f"{path}: normalizer {shown(step)} is unknown to llama.cpp")
    for step in definition.pre_tokenizers:
        match step.get("type"):
            case "Metaspace" if step.get("replacement") == _SPACE and step.get("split") is False:
                replaced = True
                prefixed = prefixed or step.get("prepend_scheme", "always") != "never"
            # nothing to split at: the spaces are gone
            case "Split" if replaced and fields(step.get("pattern")).get("String") == " ":
                pass
            case _:
                raise ModelLoadError(
                    f"{path}: pre-tokenizer {shown(step)} is unknown to llama.cpp here"
                )
    if not replaced:
        raise ModelLoadError(
            f"{path}: byte_fallback without spaces as {_SPACE}, llama.cpp has no such tokenizer"
        )
    return prefixed


def _scores(definition: Definition) -> dict[str, float]:
    scores: dict[str, float] = {}
    for rank, (left, right) in enumerate(definition.merges):
        scores.setdefault(left + right, float(-rank))
    return scores


def _type(text: str, special: set[str], *, visible: bool) -> TokenType:
    if visible and text in _VISIBLE:
        return TokenType.USER_DEFINED
    if BYTE.fullmatch(text):
        return TokenType.BYTE
    return TokenType.CONTROL if text in special else TokenType.NORMAL
