"""A draft's context for many sequences, fed with features directly: blocks of any widths in one
pass, also over caches and batch sizes that llamaspec itself does not choose.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from llamaspec.ffi import lib
from llamaspec.runtime import context as context_module
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import ALL_OUTPUT, Batch
from llamaspec.runtime.context import ContextShape, TargetContext
from llamaspec.runtime.describe import DraftDescription, describe
from llamaspec.runtime.draft_context import DraftContext
from llamaspec.runtime.model import Model


class Wanted(NamedTuple):
    """A block to decode: of a sequence, with its anchor and ids to propose."""

    seq: int
    anchor: int
    width: int


class Found(NamedTuple):
    """The ids of a block, and a confidence each or None."""

    ids: list[int]
    confidence: list[float] | None


@dataclass(frozen=True)
class Native:
    """What llamaspec leaves alone in llama.cpp's context: its own cache for every sequence, and the
    rows that are computed at a time, 0 for all of a batch.
    """

    unified: bool = True
    at_a_time: int = 0


class _Changed:
    """The native library, with a context that is made differently."""

    def __init__(self, native: Native) -> None:
        self._native = native

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(lib, name)

    def ls_context_new(self, model: Any, params: Any) -> Any:  # noqa: ANN401
        params.kv_unified = self._native.unified
        params.kv_apart = False
        params.n_ubatch = self._native.at_a_time or params.n_ubatch
        return lib.ls_context_new(model, params)


@dataclass
class Rig:
    """A draft over the features [n, taps * d] of each of its sequences, at positions 0 to n - 1."""

    context: DraftContext
    draft: DraftDescription
    lengths: list[int]

    def decode(self, blocks: list[Wanted]) -> list[Found]:
        """Propose for blocks of any widths in one pass."""
        batch = Batch.create(64 * len(blocks))
        starts = []
        for block in blocks:
            rows = block.width + self.draft.first_row
            assert self.draft.mask_token_id is not None
            tokens = [block.anchor] + [self.draft.mask_token_id] * (rows - 1)
            start = self.lengths[block.seq]
            row = batch.add_tokens(tokens, start=start, seq=block.seq, output=ALL_OUTPUT)
            starts.append(row + self.draft.first_row)
        ids, scores = self.pass_over(batch)
        spans = [(s, s + b.width) for s, b in zip(starts, blocks, strict=True)]
        return [Found(ids[a:b], None if scores is None else scores[a:b]) for a, b in spans]

    def pass_over(self, batch: Batch) -> tuple[list[int], list[float] | None]:
        """Ids and confidences of all rows of a batch."""
        if self.draft.selector is not None:
            return self.context.decode_lattice(batch, self.draft.selector.top_k), None
        confidence = self.draft.has_confidence_head
        return self.context.decode_block(batch, batch.size, confidence=confidence)


@contextmanager
def rig(
    draft_gguf: Path, target_gguf: Path, lengths: list[int], native: Native | None = None
) -> Iterator[Rig]:
    """Open a draft with random features for as many sequences as there are lengths: on the CPU, one
    thread, f32 caches, no flash attention.
    """
    found = describe(draft_gguf).draft
    assert found is not None, "not a draft"
    shape = ContextShape(1024 * len(lengths), 512, len(lengths), 512, 1, "off", "f32")
    model = Model.load(draft_gguf)
    target = Model.load(target_gguf)
    try:
        other = TargetContext.create(target, shape)
        with pytest.MonkeyPatch.context() as patch:
            if native is not None:
                patch.setattr(context_module, "lib", _Changed(native))
            context = DraftContext.create(model, shape, other)
        context.configure(
            feature_width=found.feature_width,
            causal=found.causal,
            confidence=found.has_confidence_head,
            lattice=found.selector is not None,
        )
        for seq, n in enumerate(lengths):
            _inject(context, random_features(found, seq, n), seq)
        yield Rig(context, found, lengths)
    finally:
        model.close()
        target.close()


def random_features(draft: DraftDescription, seq: int, n: int) -> FloatArray:
    """Feature rows [n, taps * d] of a sequence."""
    rows = np.random.default_rng(seq).normal(scale=3, size=(n, draft.feature_width))
    return rows.astype(np.float32)


def _inject(context: DraftContext, features: FloatArray, seq: int) -> None:
    # few at a time, so that they fit whatever is computed at a time
    for start in range(0, len(features), 8):
        part = np.ascontiguousarray(features[start : start + 8])
        rows = Batch.create(len(part), features.shape[1])
        rows.set_embeddings(part, list(range(start, start + len(part))), [seq] * len(part))
        context.decode(rows)
