"""Byte-level BPE: GPT-2, Qwen, Llama 3 and what followed them."""

from contextlib import suppress

from llamaspec.convert.tokenizer.definition import AddedToken, Definition
from llamaspec.convert.tokenizer.files import Fields
from llamaspec.convert.tokenizer.pretokenizer import pre_name
from llamaspec.convert.tokenizer.special import role_texts
from llamaspec.convert.tokenizer.table import Metadata, Table, TokenType, looks_special, too_large


def _alphabet() -> dict[str, int]:
    """The character that stands for each byte (GPT-2's `bytes_to_unicode`)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}


_BYTES = _alphabet()


def metadata(definition: Definition, settings: Fields, n_vocab: int) -> Metadata:
    """Return the `gpt2` model of a byte-level BPE.

    settings: of tokenizer_config.json. Raises ModelLoadError.
    """
    special = role_texts(settings)
    pre = pre_name(definition)
    table = Table(definition.path, n_vocab)
    for token, text in definition.base_rows(n_vocab).items():
        table.put(token, text, TokenType.CONTROL if text in special else TokenType.NORMAL)
    for added in definition.added:
        if added.id >= n_vocab:
            raise too_large(definition.path, added.id + 1, n_vocab)
        table.put(added.id, *_text_and_type(added, special))
    return (
        {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre}
        | table.metadata(scores=False)
        | {"tokenizer.ggml.merges": definition.merge_lines}
    )


def _text_and_type(added: AddedToken, special: set[str]) -> tuple[str, TokenType]:
    """llama.cpp looks for added tokens in the text itself, so theirs is text, not bytes."""
    text = added.content
    if not added.normalized and all(char in _BYTES for char in text):
        # where it is no text, it was meant as it stands
        with suppress(UnicodeDecodeError):
            text = bytes(_BYTES[char] for char in text).decode()
    if added.special or added.content in special or looks_special(text):
        return text, TokenType.CONTROL
    return text.replace("\u2581", " "), TokenType.USER_DEFINED
