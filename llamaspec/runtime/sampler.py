"""llama.cpp's samplers: how the next token is chosen where it is not simply the likeliest."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from llamaspec.constraint import check_grammar
from llamaspec.errors import OptionError, SamplingError
from llamaspec.ffi import ffi, lib
from llamaspec.options import GenerateOptions
from llamaspec.runtime import log
from llamaspec.runtime.arrays import FloatArray, IntArray, float_pointer, int_pointer
from llamaspec.runtime.context import Context
from llamaspec.runtime.handle import NativeHandle
from llamaspec.runtime.model import Model

_MOST_REASON = 200


class Sampler(NativeHandle):
    """The samplers of one text, in the order of llama.cpp's common_sampler: grammar, logit_bias,
    penalties, DRY, top_k, typical_p, top_p, min_p, temperature, draw.

    Random numbers, penalties, DRY and grammar advance once for every token of the text.
    """

    @classmethod
    def create(
        cls, model: Model, options: GenerateOptions, *, seed: int, prompt: IntArray, n_ctx: int
    ) -> Self:
        """Take the options, and the prompt's token ids [n]: they count for penalties and DRY, as
        with llama-server, but not for the grammar.

        n_ctx: the most tokens that a text can have, to which penalties may look back. Raises
        OptionError for a token outside the vocabulary and for a grammar or schema that llama.cpp
        cannot use, with its reason.
        """
        for token in options.logit_bias:
            if token >= model.vocab.size:
                raise OptionError(
                    f"logit_bias names token {token}, outside the vocabulary of {model.vocab.size}"
                )
        native, keep = _native(options, seed, n_ctx)
        log.drain()
        ptr = lib.ls_sampler_new(model.ptr, native)
        lines = log.drain()
        del keep
        if not ptr:
            what = "json_schema" if options.json_schema is not None else "grammar"
            raise OptionError(f"{what} cannot be used: {_reason(lines)}")
        sampler = cls(ptr, lib.ls_sampler_free, model)
        if len(prompt):
            lib.ls_sampler_prompt(ptr, int_pointer(prompt), len(prompt))
        return sampler

    def draw(self, context: Context, row: int, index: int) -> int:
        """Choose the token at `index` of the text from the output row of batch row `row` of the
        last decode. Asked for again, it is what it was.

        Raises SamplingError where no token is left.
        """
        token = int(lib.ls_sampler_draw(self.ptr, context.ptr, row, index))
        if token < 0:
            raise SamplingError(f"the text cannot go on after {index} tokens: {_reason([])}")
        return token

    def take(self, token: int, index: int) -> None:
        """The token at `index` of the text was chosen otherwise: penalties, DRY and grammar advance
        as if it had been drawn, random numbers do not. Nothing happens where it is known already.

        Raises SamplingError where the one before is not known yet.
        """
        if lib.ls_sampler_take(self.ptr, token, index) < 0:
            raise SamplingError(f"token {index} of the text cannot be {token}: {_reason([])}")

    def odds(self, context: Context, row: int, ids: Sequence[int], index: int) -> FloatArray:
        """The distributions [m, vocabulary] that `draw` would draw from: the token at `index` from
        output row `row`, then those after ids[0], ids[1], ... from the rows after it. Nothing of
        the sampler moves. A token that is known has all of its row's odds.

        m is len(ids) + 1; less where row i is the last one because ids[i] has no odds in it or
        ends the text, or because no token can come after it. Raises SamplingError where no token
        is left in the first row.
        """
        found = np.empty((len(ids) + 1, context.model.vocab.size), np.float32)
        pointer = float_pointer(found)
        rows = lib.ls_sampler_odds(self.ptr, context.ptr, row, list(ids), len(ids), index, pointer)
        if rows < 0:
            raise SamplingError(f"the text cannot go on after {index} tokens: {_reason([])}")
        return found[:rows]


def needs_sampler(options: GenerateOptions, model: Model) -> bool:
    """Whether the next token can be another than the one with the largest logit."""
    return (
        options.temperature > 0
        or options.typical_p < 1
        or options.has_penalties
        or options.dry_multiplier > 0
        or bool(options.logit_bias)
        or options.has_grammar
        or model.vocab.suppresses
    )


def schema_grammar(schema: str) -> str:
    """A JSON schema, as JSON text, as GBNF, by llama.cpp's own converter.

    Raises OptionError where it is no schema or has parts that the converter cannot express; what
    it does not know, such as "multipleOf", it passes over.
    """
    found = lib.ls_schema_to_grammar(schema.encode())
    if found == ffi.NULL:
        raise OptionError(f"json_schema cannot be used: {_reason([])}")
    return str(ffi.string(found).decode())


def _native(options: GenerateOptions, seed: int, n_ctx: int) -> tuple[Any, list[Any]]:
    """A ls_sampling, and what it points to."""
    grammar = options.grammar
    if options.json_schema is not None:
        grammar = schema_grammar(options.json_schema)
        check_grammar(grammar, "json_schema as a grammar")
    breakers = [ffi.new("char[]", text.encode()) for text in options.dry_sequence_breakers]
    pointers = ffi.new("const char *[]", breakers)
    ids = ffi.new("int32_t[]", list(options.logit_bias))
    bias = ffi.new("float[]", list(options.logit_bias.values()))
    text = ffi.NULL if grammar is None else ffi.new("char[]", grammar.encode())
    native = ffi.new("struct ls_sampling *")
    for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty"):
        setattr(native, name, getattr(options, name))
    for name in ("presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base"):
        setattr(native, name, getattr(options, name))
    native.seed = seed
    native.repeat_last_n = _look_back(options.repeat_last_n, n_ctx)
    native.dry_allowed_length = options.dry_allowed_length
    native.dry_last_n = _look_back(options.dry_penalty_last_n, n_ctx)
    native.dry_breakers, native.n_dry_breakers = pointers, len(breakers)
    native.bias_ids, native.bias, native.n_bias = ids, bias, len(options.logit_bias)
    native.grammar = text
    return native, [breakers, pointers, ids, bias, text]


def _look_back(last_n: int, n_ctx: int) -> int:
    # the samplers reserve memory for that many tokens
    return n_ctx if last_n < 0 else min(last_n, n_ctx)


def _reason(lines: list[str]) -> str:
    text = " ".join(log.reason(lines).split())
    text = text.removeprefix("parse: error parsing grammar: ")
    return text if len(text) <= _MOST_REASON else text[:_MOST_REASON] + " ..."
