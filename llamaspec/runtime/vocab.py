"""Text to token ids and back, through the model's own tokenizer."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from llamaspec.errors import OptionError
from llamaspec.ffi import ffi, lib
from llamaspec.runtime.arrays import IntArray

if TYPE_CHECKING:
    from llamaspec.runtime.model import Model


class Vocab:
    """The vocabulary of a model; usable as long as the model is open."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._ptr = lib.llama_model_get_vocab(model.ptr)
        self.size: int = lib.llama_vocab_n_tokens(self._ptr)
        count = ffi.new("int32_t *")
        lib.llama_vocab_get_suppress_tokens(self._ptr, count)
        self.suppresses = count[0] > 0
        """The file names tokens that must never be chosen."""
        self.bos_text = self._special_text(lib.llama_vocab_bos(self._ptr))

    @cached_property
    def ends(self) -> frozenset[int]:
        """The tokens that end a generation: EOS, EOT and the like."""
        _ = self._model.ptr
        return frozenset(t for t in range(self.size) if lib.llama_vocab_is_eog(self._ptr, t))

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> IntArray:
        """Return the token ids [n] (int32) of `text`.

        add_special adds what the model wants around a prompt (BOS); parse_special reads
        "<|...|>" as special tokens.
        """
        _ = self._model.ptr
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise OptionError(
                "the prompt is no valid text: it has a lone surrogate, as from bytes that are not "
                "UTF-8"
            ) from None
        size = len(data) + 8
        ids = np.empty(size, np.int32)
        buffer = ffi.from_buffer("int32_t[]", ids)
        count = lib.ls_tokenize(
            self._ptr, data, len(data), buffer, size, add_special, parse_special
        )
        if count < 0:
            raise OptionError(f"the prompt of {len(text)} characters cannot be tokenised")
        return ids[:count].copy()

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes that a token adds to the text; control tokens give b"" unless
        `special`.
        """
        size = 256
        text = ffi.new("char[]", size)
        length = lib.ls_token_piece(self._ptr, token, text, size, special)
        if length < 0:
            size = -length
            text = ffi.new("char[]", size)
            length = lib.ls_token_piece(self._ptr, token, text, size, special)
        return bytes(ffi.buffer(text, max(length, 0)))

    def _special_text(self, token: int) -> str:
        return self.piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""
