"""A vanilla Markov head, computed on the CPU beside the draft's graph."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from llamaspec.ffi import ffi, lib
from llamaspec.runtime.arrays import IntArray, float_pointer, int_pointer
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.handle import NativeHandle

MOST_KNOWN = 16384
"""Tokens of which a chain remembers what W2 makes of them: 8 MiB."""
_W1, _W2 = "markov_w1.weight", "markov_w2.weight"
_OTHERS = "markov_gate.weight", "markov_joint.weight", "markov_w2.scale"


@dataclass(frozen=True, slots=True)
class ChainShape:
    """first: the slot of a block's first proposal. d2t [Vd]: target ids of the draft's rows, None
    for a full vocabulary.
    """

    first: int
    threads: int
    d2t: IntArray | None = None


class Chain(NativeHandle):
    """Chooses a block's tokens from base logits and hidden rows: logits_i = base_i + W2 W1[p_i],
    p_0 the anchor, p_i the token chosen at i - 1.

    What the graph's chain chooses, but for rounding, at a fraction of the cost: of a token p that
    came before, the largest of W2 W1[p] are known and a bound of all others, so that few of W2's
    rows are read again. The weights are those of the draft's file, wherever llama.cpp has put its
    own.
    """

    _weights: list[npt.NDArray[np.uint8]]

    @classmethod
    def create(cls, path: Path, shape: ChainShape) -> Self | str:
        """Of a draft GGUF that `check_pair` has passed. Returns the reason where it cannot be:
        another kind of head, or weights of a type that is not read here.
        """
        file = GGUFFile.open(path)
        try:
            found = cls._of(file, shape)
        except BaseException:
            file.close()
            raise
        if isinstance(found, str):
            file.close()
        return found

    @classmethod
    def _of(cls, file: GGUFFile, shape: ChainShape) -> Self | str:
        tensors = file.tensors
        if _W1 not in tensors or _W2 not in tensors or any(name in tensors for name in _OTHERS):
            return "the draft has no vanilla Markov head in one file"
        kinds = [GGMLQuantizationType[tensors[name].type].value for name in (_W1, _W2)]
        (n_tokens, rank), (n_draft, _) = tensors[_W1].shape, tensors[_W2].shape
        weights = [file.view(name) for name in (_W1, _W2)]
        head = ffi.new("struct ls_head *")
        head.w1, head.w2 = (ffi.from_buffer("char[]", part) for part in weights)
        head.w1_type, head.w2_type = kinds
        head.n_tokens, head.n_draft, head.rank, head.first = n_tokens, n_draft, rank, shape.first
        if "conf_proj.weight" in tensors:
            confidence = np.ascontiguousarray(file.array("conf_proj.weight").reshape(-1))
            head.confidence, head.width = float_pointer(confidence), confidence.size - rank
            if "conf_proj.bias" in tensors:
                head.confidence_bias = file.array("conf_proj.bias").item(0)
        if shape.d2t is not None:
            head.d2t = int_pointer(shape.d2t)
        ptr = lib.ls_chain_new(head, shape.threads, MOST_KNOWN)
        if not ptr:
            return str(ffi.string(lib.ls_last_error()).decode("utf-8", "replace"))
        chain = cls(ptr, lib.ls_chain_free)
        # mapped memory lives as long as something looks at it
        chain._weights = weights
        return chain
