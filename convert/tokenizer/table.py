"""The rows of a vocabulary: text, score and type by token id."""

import re
from enum import IntEnum
from pathlib import Path

from llamaspec.errors import ModelLoadError

TokenizerValue = str | int | bool | list[str] | list[int] | list[float]
Metadata = dict[str, TokenizerValue]

BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
"""A token that stands for a byte outside the vocabulary."""


class TokenType(IntEnum):
    """llama.cpp's types of tokens (llama.h, `llama_token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Table:
    """A vocabulary of n_vocab rows while it is filled; rows left out become unused padding."""

    def __init__(self, source: Path, n_vocab: int, pad_score: float = 0.0) -> None:
        self.source = source
        self.n_vocab = n_vocab
        self._texts: list[str | None] = [None] * n_vocab
        self._types = [int(TokenType.UNUSED)] * n_vocab
        self._scores = [pad_score] * n_vocab

    def put(self, token: int, text: str, kind: TokenType, score: float = 0.0) -> None:
        """Set a row; token must be in [0, n_vocab)."""
        assert 0 <= token < self.n_vocab
        self._texts[token], self._types[token], self._scores[token] = text, int(kind), score

    def metadata(self, *, scores: bool) -> Metadata:
        """Return the arrays. Raises ModelLoadError for two tokens of one text and for text that is
        not valid Unicode; llama.cpp would end the process over the first.
        """
        texts = [f"[PAD{i}]" if text is None else text for i, text in enumerate(self._texts)]
        check_text(self.source, texts)
        seen: dict[str, int] = {}
        for token, text in enumerate(texts):
            # what llama.cpp sees: C strings, and a made-up text for an empty one
            shown = text.partition("\0")[0] or f"[EMPTY_{token}]"
            if seen.setdefault(shown, token) != token:
                raise ModelLoadError(
                    f"{self.source}: tokens {seen[shown]} and {token} are both {shown[:40]!r}"
                )
        result: Metadata = {"tokenizer.ggml.tokens": texts}
        if scores:
            result["tokenizer.ggml.scores"] = self._scores
        return result | {"tokenizer.ggml.token_type": self._types}


def check_text(source: Path, texts: list[str]) -> None:
    """Raise ModelLoadError where a text cannot be written as UTF-8."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ModelLoadError(f"{source}: a lone surrogate in {text[:40]!a}") from None


def too_large(source: Path, tokens: int, n_vocab: int) -> ModelLoadError:
    """The error of a vocabulary that does not fit the model."""
    return ModelLoadError(
        f"{source}: {tokens} tokens, the model has room for {n_vocab}: not this model's tokenizer"
    )


def looks_special(text: str) -> bool:
    """Whether llama.cpp's converter takes an added token for a control token by its text alone."""
    return text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]") or any(
        text.startswith(begin) and text.endswith(end)
        for begin, end in (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))
    )
