"""A draft's context: blocks over what was injected, and what its rows give."""

from typing import Any, Protocol

from llamaspec.ffi import ffi, lib
from llamaspec.runtime.arrays import ByteArray, FloatArray, byte_pointer, float_pointer
from llamaspec.runtime.batch import Batch
from llamaspec.runtime.chain import Chain
from llamaspec.runtime.context import Context


class BlockShape(Protocol):
    """What of a draft's layout decides the passes; `draft.block.BlockLayout` has it."""

    @property
    def proposals(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def mask(self) -> int: ...
    @property
    def confidence(self) -> bool: ...
    @property
    def candidates(self) -> int: ...


class DraftContext(Context):
    """A draft's context: non-causal blocks over injected features."""

    feature_width: int
    _chain: Chain | None = None

    def configure(
        self,
        *,
        feature_width: int,
        causal: bool,
        confidence: bool = False,
        lattice: bool = False,
        base: bool = False,
        chain: Chain | None = None,
    ) -> None:
        """Say what the draft reads and, of at most one kind, what its rows give beside logits.

        confidence: a number a row. lattice: a DFlash2 selector's candidates and scores. base: leave
        the head to the caller (logits in draft-vocabulary order, hidden rows). chain: have that
        choose and be sure in place of the graph; it needs base.
        """
        assert confidence + lattice + base <= 1, "rows of one kind at a time"
        assert base or chain is None, "a chain reads base logits"
        self.feature_width = feature_width
        self._chain = chain
        kinds = {lib.LS_CONFIDENCE: confidence, lib.LS_LATTICE: lattice, lib.LS_BASE: base}
        rows = next((kind for kind, wanted in kinds.items() if wanted), lib.LS_LOGITS)
        self._check(lib.ls_draft_setup(self.ptr, causal, rows))

    def decode_block(
        self, batch: Batch, n_rows: int, *, confidence: bool
    ) -> tuple[list[int], list[float] | None]:
        """As `decode_choose`, with P(accepted | accepted so far) of every row where the draft has a
        confidence head. The rows leave the KV cache again, also where decoding fails.
        """
        assert n_rows <= self.shape.n_outputs, "more rows than the context puts out"
        scores = self._floats if confidence else ffi.NULL
        self._compute(lib.ls_decode_block, batch, self.chain_ptr(), n_rows, self._ints, scores)
        ids: list[int] = ffi.unpack(self._ints, n_rows)
        return ids, ffi.unpack(scores, n_rows) if confidence else None

    def decode_drawn(
        self, batch: Batch, noise: FloatArray, drawn: ByteArray, *, confidence: bool
    ) -> tuple[list[int], list[float] | None]:
        """As `decode_block` for all rows, each of which is put out: of those with drawn [rows] not
        0, the id with the largest sum of logit and noise [rows, vocabulary], which is also what the
        next row of the block follows. The noise of the others must be 0.

        `logits_view` gives the logits without noise.
        """
        n_rows = batch.size
        assert n_rows <= self.shape.n_outputs, "more rows than the context puts out"
        assert noise.shape == (n_rows, self._logits_width), "noise for other rows"
        scores = self._floats if confidence else ffi.NULL
        arguments = self.chain_ptr(), float_pointer(noise), byte_pointer(drawn)
        self._compute(lib.ls_decode_drawn, batch, *arguments, self._ints, scores)
        ids: list[int] = ffi.unpack(self._ints, n_rows)
        return ids, ffi.unpack(scores, n_rows) if confidence else None

    def chain_ptr(self) -> Any:  # noqa: ANN401
        """The native chain, NULL where the graph has the head."""
        return ffi.NULL if self._chain is None else self._chain.ptr

    def decode_lattice(self, batch: Batch, candidates: int) -> list[int]:
        """As `decode_block`, for a DFlash2 draft that gives a lattice of so many candidates a row:
        the ids along the best scores, one a row; those of anchors mean nothing.
        """
        assert batch.size <= self.shape.n_outputs, "more rows than the context puts out"
        self._compute(lib.ls_decode_lattice, batch, candidates, self._ints)
        ids: list[int] = ffi.unpack(self._ints, batch.size)
        return ids
