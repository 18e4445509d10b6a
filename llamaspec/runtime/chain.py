"""A vanilla Markov head, computed on the CPU beside the draft's graph."""

from typing import Self

from llamaspec.ffi import ffi, lib
from llamaspec.runtime.arrays import IntArray, int_pointer
from llamaspec.runtime.handle import NativeHandle
from llamaspec.runtime.model import Model


class Chain(NativeHandle):
    """Chooses a block's tokens from base logits and hidden rows: logits_i = base_i + W2 W1[p_i],
    p_0 the anchor, p_i the token chosen at i - 1.

    What the graph's chain chooses, but for rounding, at a fraction of the cost: of a token p that
    came before, the largest of W2 W1[p] are known and a bound of all others, so that few of W2's
    rows are read again.
    """

    @classmethod
    def create(
        cls, model: Model, d2t: IntArray | None, n_draft: int, first: int, threads: int
    ) -> Self | str:
        """Of a draft with n_draft rows in its vocabulary, whose target ids are d2t [n_draft], None
        where it has all, and whose blocks propose from slot `first` on. Returns the reason where it
        cannot be: another kind of head, or weights that are not in plain host memory.
        """
        ids = ffi.NULL if d2t is None else int_pointer(d2t)
        ptr = lib.ls_chain_new(model.ptr, ids, n_draft, first, threads)
        if not ptr:
            return str(ffi.string(lib.ls_last_error()).decode("utf-8", "replace"))
        return cls(ptr, lib.ls_chain_free, model)
