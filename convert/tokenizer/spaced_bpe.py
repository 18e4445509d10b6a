"""BPE over text in which a space is U+2581, with tokens for bytes: Llama 2 and Gemma as a
tokenizer.json.
"""

import re

from llamaspec.convert.tokenizer.definition import Definition
from llamaspec.convert.tokenizer.files import Fields, content, fields, items
from llamaspec.convert.tokenizer.table import Metadata, Table, TokenType
from llamaspec.errors import ModelLoadError

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
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
    special = _special_texts(settings)
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
                raise ModelLoadError(f"{path}: normalizer {_shown(step)} is unknown to llama.cpp")
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
                    f"{path}: pre-tokenizer {_shown(step)} is unknown to llama.cpp here"
                )
    if not replaced:
        raise ModelLoadError(
            f"{path}: byte_fallback without spaces as {_SPACE}, llama.cpp has no such tokenizer"
        )
    return prefixed


def _scores(definition: Definition) -> dict[str, float]:
    scores: dict[str, float] = {}
    for rank, (left, right) in enumerate(definition.merges):
        scores.setdefault(left + right, -float(rank))
    return scores


def _type(text: str, special: set[str], *, visible: bool) -> TokenType:
    if visible and text in _VISIBLE:
        return TokenType.USER_DEFINED
    if _BYTE.fullmatch(text):
        return TokenType.BYTE
    return TokenType.CONTROL if text in special else TokenType.NORMAL


def _special_texts(settings: Fields) -> set[str]:
    """The tokens that tokenizer_config.json gives a role, which transformers calls special."""
    named = [value for key, value in settings.items() if key.endswith("_token")]
    for key in ("extra_special_tokens", "additional_special_tokens"):
        named += [*items(settings.get(key)), *fields(settings.get(key)).values()]
    return {text for text in map(content, named) if text}


def _shown(step: Fields) -> str:
    return repr(dict(step))[:300]
