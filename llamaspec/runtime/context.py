"""A KV cache and its compute buffers, on one model."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from llamaspec.errors import DecodeError, IncompatibleDraftError, LlamaSpecError
from llamaspec.ffi import ffi, lib
from llamaspec.options import CacheType, FlashAttention
from llamaspec.runtime import log
from llamaspec.runtime.arrays import (
    FloatArray,
    IntArray,
    float_pointer,
    int_pointer,
)
from llamaspec.runtime.batch import Batch
from llamaspec.runtime.cache import KVCache
from llamaspec.runtime.handle import NativeHandle
from llamaspec.runtime.model import Model

_FLASH = {
    "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
_CACHE = {
    "f32": lib.GGML_TYPE_F32,
    "f16": lib.GGML_TYPE_F16,
    "bf16": lib.GGML_TYPE_BF16,
    "q8_0": lib.GGML_TYPE_Q8_0,
}
# graphs of passes of a few rows that are computed again (patch 0011): a block or a verify pass of
# every width, each with a compute buffer of its own
KEPT_GRAPHS, KEPT_ROWS = 16, 16
LONGEST_RUN = 64
"""Most passes of `TargetContext.decode_run`."""
_DECODE_FAILURES = {1: "no room in the KV cache", 2: "aborted", -1: "invalid batch"}


@dataclass(frozen=True, slots=True)
class ContextShape:
    """Sizes and types of a context. n_ctx counts the rows of all sequences together, of which each
    has its share; snapshots: how many positions a recurrent state can go back, at the price of a
    state each.
    """

    n_ctx: int
    n_batch: int
    n_seq: int
    n_outputs: int
    threads: int
    flash_attention: FlashAttention
    cache_type: CacheType
    snapshots: int = 0


class Context(KVCache):
    """One llama_context. Not thread-safe: whoever owns it serialises the calls.

    `seconds` is the wall time spent inside native compute calls since creation. `apart`: every
    sequence has a KV cache of its own, and is computed as it is alone (patch 0014).
    """

    shape: ContextShape
    seconds: float
    apart: bool
    _logits_width: int
    _ints: Any
    _floats: Any

    @classmethod
    def create(cls, model: Model, shape: ContextShape, other: "Context | None" = None) -> Self:
        """Make a context; `other` is the target's, for a draft that uses its embedding and head.

        Raises LlamaSpecError with llama.cpp's reason, for instance where memory is short.
        """
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = shape.n_ctx, shape.n_seq
        params.n_batch = params.n_ubatch = shape.n_batch
        params.n_outputs_max = shape.n_outputs
        params.n_rs_seq = shape.snapshots
        params.n_threads = params.n_threads_batch = shape.threads
        params.flash_attn_type = _FLASH[shape.flash_attention]
        params.type_k = params.type_v = _CACHE[shape.cache_type]
        params.kv_unified = True
        # where it is possible; otherwise one cache for all
        params.kv_apart = shape.n_seq > 1 and not model.recurrent
        params.swa_full = True
        params.no_perf = True
        owners: tuple[NativeHandle, ...] = (model,)
        if other is not None:
            params.ctx_other = other.ptr
            owners = (model, other)
        native = ffi.new("struct llama_context_params *", params)
        ptr = lib.ls_context_new(model.ptr, native)
        lines = log.drain()
        if not ptr:
            model.check_servers()
            raise LlamaSpecError(
                f"{model.path.name}: no context of {shape.n_ctx} positions: {log.reason(lines)}"
            )
        context = cls(ptr, lib.llama_free, *owners)
        context.model, context.shape, context.seconds = model, shape, 0.0
        context.apart = shape.n_seq == 1 or lib.llama_n_ctx_seq(ptr) < lib.llama_n_ctx(ptr)
        model.check_servers()
        context._memory = lib.llama_get_memory(ptr)
        context._logits_width = model.vocab.size
        context._ints = ffi.new("int32_t[]", shape.n_outputs)
        context._floats = ffi.new("float[]", shape.n_outputs)
        lib.ls_keep_graphs(ptr, KEPT_GRAPHS, KEPT_ROWS)
        return context

    def decode(self, batch: Batch) -> None:
        """Compute the rows of `batch` and add them to the KV cache.

        Raises DecodeError; the cache is as before then, but for what llama.cpp calls fatal.
        """
        self._compute(lib.ls_decode, batch)

    def decode_choose(self, batch: Batch, n_rows: int) -> list[int]:
        """As `decode`; return the largest logit's index of each of the n_rows output rows."""
        return self._choices(batch, n_rows, ffi.NULL, 0, ffi.NULL)

    def _choices(self, batch: Batch, n_rows: int, *features: Any) -> list[int]:  # noqa: ANN401
        assert n_rows <= self.shape.n_outputs, "more rows than the context puts out"
        self._compute(lib.ls_decode_choose, batch, n_rows, self._ints, *features)
        found: list[int] = ffi.unpack(self._ints, n_rows)
        return found

    def top2(self, n_rows: int) -> tuple[IntArray, FloatArray]:
        """The largest logit's index of each of the first n_rows output rows of the last decode, and
        how far the second largest lies below, both [n_rows].
        """
        ids, gap = np.empty(n_rows, np.int32), np.empty(n_rows, np.float32)
        pointers = int_pointer(ids), float_pointer(gap)
        self._check(self._timed(lib.ls_top2, n_rows, *pointers))
        return ids, gap

    def logprobs(
        self, rows: list[int], tokens: list[int], n_top: int
    ) -> tuple[FloatArray, IntArray, FloatArray]:
        """Of the output rows of the batch rows `rows` of the last decode: the log-probability of
        each row's token [n], and the n_top likeliest ids and theirs [n, n_top].

        Probabilities are the softmax of the logits as they are: the model's own, at temperature 1.
        """
        n = len(rows)
        found = np.empty(n, np.float32)
        ids, top = np.empty((n, n_top), np.int32), np.empty((n, n_top), np.float32)
        pointers = float_pointer(found), int_pointer(ids), float_pointer(top)
        self._check(self._timed(lib.ls_logprobs, rows, tokens, n, n_top, *pointers))
        return found, ids, top

    def logits_view(self, n_rows: int) -> FloatArray:
        """The first n_rows output rows [n_rows, vocabulary]: native memory, valid until the next
        decode.
        """
        return self._view(lib.llama_get_logits(self.ptr), n_rows, self._logits_width)

    def hidden_view(self, n_rows: int) -> FloatArray:
        """The draft's hidden rows [n_rows, width] in base mode: native memory, valid until the
        next decode.
        """
        return self._view(lib.ls_hidden(self.ptr), n_rows, self.model.n_embd)

    def _compute(self, function: Callable[..., int], batch: Batch, *arguments: Any) -> None:  # noqa: ANN401
        ptr, rows = self.ptr, batch.ptr
        self.model.check_servers()
        started = time.perf_counter()
        code = function(ptr, rows, *arguments)
        self.seconds += time.perf_counter() - started
        self.model.check_servers()
        if code != 0:
            raise self.failure(code, f"decoding {batch.size} rows")

    def failure(self, code: int, what: str) -> DecodeError:
        """Why something native failed just now, by its code and llama.cpp's log."""
        lines = log.drain()
        reason = _DECODE_FAILURES.get(code) or log.reason(lines)
        return DecodeError(f"{self.model.path.name}: {what} failed ({code}): {reason}", code)

    def _timed(self, function: Callable[..., int], *arguments: Any) -> int:  # noqa: ANN401
        ptr = self.ptr
        started = time.perf_counter()
        code = function(ptr, *arguments)
        self.seconds += time.perf_counter() - started
        return code

    def _view(self, ptr: Any, n_rows: int, width: int) -> FloatArray:  # noqa: ANN401
        if not ptr:
            raise DecodeError(f"{self.model.path.name}: the last decode left no such rows")
        flat = np.frombuffer(ffi.buffer(ptr, n_rows * width * 4), np.float32)
        return flat.reshape(n_rows, width)

    def _check(self, code: int) -> None:
        if code != 0:
            raise DecodeError(f"{self.model.path.name}: {log.reason(log.drain())}", code)


class TargetContext(Context):
    """A target's context: publishes the layer inputs that a draft reads."""

    taps: tuple[int, ...] = ()
    rows_alike: bool = False
    recurrent: bool
    snapshots: int
    _tapping: bool = False
    _taps_pointer: Any = ffi.NULL
    # rows whose features the last decode has put where `features_view` would
    _gathered: int = 0
    _run_ids: Any
    _run_count: Any
    _reach: dict[int, tuple[int, int]]

    @classmethod
    def create(cls, model: Model, shape: ContextShape, other: Context | None = None) -> Self:
        """As `Context.create`. `snapshots` is how many there are: llama.cpp keeps none for an
        architecture that cannot go back.
        """
        context = super().create(model, shape, other)
        context.recurrent = model.recurrent
        context.snapshots = int(lib.llama_n_rs_seq(context.ptr))
        context._run_ids = ffi.new("int32_t[]", LONGEST_RUN * shape.n_seq)
        context._run_count = ffi.new("int32_t *")
        # by sequence: the length that a state can go back to, and its length; none while in doubt
        context._reach = {}
        return context

    def can_truncate(self, seq: int, length: int) -> bool:
        """Whether `truncate` to so many positions is possible and leaves all of them there: in one
        cache for all sequences, cells that no window sees any longer are given to others.
        """
        low, high = self._reach.get(seq, (-1, -1))
        if self.model.sliding and not self.recurrent and length:
            return bool(lib.llama_memory_seq_pos_min(self._memory, seq) == 0)
        return not self.recurrent or length == 0 or low <= length <= high

    def truncate(self, seq: int, length: int) -> bool:
        """Drop the positions from `length` on of sequence `seq`. Returns False where a recurrent
        state cannot go back there: the sequence is empty then, to be computed anew.

        A state goes back by `snapshots` positions at most, once a pass, and never behind the pass:
        llama.cpp would agree to that, and go on from what the pass before left in the snapshot.
        """
        if not self.recurrent:
            return super().truncate(seq, length)
        # whatever interrupts this, the sequence has no length until it is known again
        low, high = self._reach.pop(seq, (-1, -1))
        if low <= length < high and length > 0:
            super().truncate(seq, length)
            low = high = length
        elif length != high:
            super().truncate(seq, 0)
            low = high = 0
        self._reach[seq] = low, high
        return length == high

    def _compute(self, function: Callable[..., int], batch: Batch, *arguments: Any) -> None:  # noqa: ANN401
        if not self.recurrent:
            return super()._compute(function, batch, *arguments)
        spans = batch.spans()
        for seq, (start, _) in spans.items():
            if start != self._reach.get(seq, (0, 0))[1]:
                raise DecodeError(
                    f"{self.model.path.name}: sequence {seq} holds no state to go on from at "
                    f"position {start}"
                )
        assert self.snapshots == 0 or len({end - start for start, end in spans.values()}) == 1, (
            "llama.cpp would split passes of unequal widths, and lose snapshots"
        )
        for seq in spans:
            self._reach[seq] = (-1, -1)
        super()._compute(function, batch, *arguments)
        for seq, (start, end) in spans.items():
            self._reach[seq] = max(start + 1, end - self.snapshots), end
        return None

    def set_taps(self, taps: tuple[int, ...]) -> None:
        """Choose the layer inputs that make up a feature row; a tap equal to the number of layers
        is what leaves the last.

        Raises IncompatibleDraftError where the target's graph does not have one as a row of the
        model's width for every token. llama.cpp would end the process at the next decode.
        """
        for tap in taps:
            there = lib.ls_has_layer_input(self.ptr, tap)
            self._check(min(there, 0))
            if not there:
                raise IncompatibleDraftError(
                    f"the draft reads the input of layer {tap}, and {self.model.path.name} of "
                    f"{self.model.n_layer} layers gives none of width {self.model.n_embd} there; "
                    "run it without a draft"
                )
        self.taps = taps
        self._taps_pointer = ffi.new("int32_t[]", taps)
        self._features = np.zeros((self.shape.n_batch, self.feature_width), np.float32)
        self._features_pointer = float_pointer(self._features)

    def compute_rows_alike(self) -> None:
        """From now on compute the rows of passes that put out all their rows as single rows are.

        On the CPU such passes then round as passes over one row do; 256 rows at most (patches 0008
        and 0014).
        """
        lib.ls_set_rows_alike(self.ptr, 1)
        self.rows_alike = True

    def publish(self, wanted: bool) -> None:
        """Turn the publication of features on or off; plain decoding need not pay for it."""
        if wanted == self._tapping or not self.taps:
            return
        self._check(lib.ls_set_taps(self.ptr, self._taps_pointer, len(self.taps), wanted))
        self._tapping = wanted

    def decode(self, batch: Batch) -> None:
        self._gathered = 0
        super().decode(batch)

    def decode_choose(self, batch: Batch, n_rows: int) -> list[int]:
        self._gathered = 0
        if not self._tapping or batch.size != n_rows:
            return super().decode_choose(batch, n_rows)
        n_taps = len(self.taps)
        found = self._choices(batch, n_rows, self._taps_pointer, n_taps, self._features_pointer)
        self._gathered = n_rows
        return found

    def decode_run(
        self, batch: Batch, most: int, ends: Collection[int], seconds: float
    ) -> list[list[int]]:
        """Decode the rows of `batch`, each of a sequence of its own, then the greedy choices after
        them, and so on. Return the choices of every row [rows, passes]: of `most` passes, at most
        `LONGEST_RUN` and as many as n_batch holds rows of, or of fewer where one of the ids in
        `ends` is chosen, `seconds` have gone, or a pass fails that is not the first.

        While features are published, `run_features` has those of every row, pass by pass. Raises
        DecodeError as `decode` does.
        """
        assert not self.recurrent, "a recurrent state would lose its snapshots"
        rows = batch.size
        assert rows <= self.shape.n_seq, "more rows than there are sequences"
        self._gathered = 0
        taps, n_taps = self._taps_pointer, len(self.taps) if self._tapping else 0
        features = self._features_pointer if n_taps else ffi.NULL
        out = features, self._run_ids, self._run_count
        most = min(most, LONGEST_RUN, self.shape.n_batch // rows)
        self._compute(
            lib.ls_decode_run, batch, most, seconds, list(ends), len(ends), taps, n_taps, *out
        )
        found: list[int] = ffi.unpack(self._run_ids, self._run_count[0] * rows)
        return [found[row::rows] for row in range(rows)]

    def lend_features(self) -> tuple[Any, Any, int]:
        """Memory for the feature rows of a pass, where `run_features` finds them, and what they are
        made of: pointers to it and to the taps, and their number. Features are published.
        """
        assert self._tapping, "rows without features"
        self._gathered = 0
        return self._features_pointer, self._taps_pointer, len(self.taps)

    def run_features(self, count: int) -> FloatArray:
        """The feature rows [count, taps * width] of the last run: memory of this context, valid
        until the next call.
        """
        return self._features[:count]

    @property
    def feature_width(self) -> int:
        return len(self.taps) * self.model.n_embd

    def features_view(self, rows: list[int]) -> FloatArray:
        """The feature rows [n, taps * width] of the given rows of the last batch: memory of this
        context, valid until the next call.
        """
        assert len(rows) <= len(self._features), "more rows than a batch holds"
        first, count = rows[0], len(rows)
        if rows[-1] < self._gathered and rows[-1] - first + 1 == count:
            return self._features[first : first + count]
        arguments = self._taps_pointer, len(self.taps), rows, len(rows), self._features_pointer
        self._check(self._timed(lib.ls_gather_features, *arguments))
        return self._features[: len(rows)]
