"""Runs one block of a draft GGUF natively, on given features, and hands out everything it gives."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import ALL_OUTPUT, Batch
from llamaspec.runtime.context import ContextShape, TargetContext
from llamaspec.runtime.describe import DraftDescription, describe
from llamaspec.runtime.draft_context import DraftContext
from llamaspec.runtime.model import Model

_PADDING = 256


@dataclass(frozen=True)
class NativeBlock:
    """Of all L rows: base logits [L, Vd] before the head and the hidden rows [L, d] that it reads,
    and logits [L, V] after it, -inf where a reduced vocabulary has no row (None with a selector,
    which gives none). Of the rows that propose: target ids, and confidences or None.
    """

    base: FloatArray
    hidden: FloatArray
    logits: FloatArray | None
    ids: list[int]
    confidence: list[float] | None


def run_block(
    draft_gguf: Path, target_gguf: Path, features: FloatArray, anchor: int, length: int
) -> NativeBlock:
    """Inject feature rows [n, taps * d] at positions 0 to n - 1 and decode one block at position n:
    the anchor and length - 1 masks. On the CPU, one thread, f32 caches, no flash attention.

    target_gguf is loaded only where the draft has no embedding of its own.
    """
    found = describe(draft_gguf).draft
    assert found is not None, "not a draft"
    rows = max(len(features), length)
    n_ctx = -(-(len(features) + length) // _PADDING) * _PADDING
    shape = ContextShape(n_ctx, rows, 1, length, 1, "off", "f32")
    model = Model.load(draft_gguf)
    target = None if found.own_embedding else Model.load(target_gguf)
    try:
        other = None if target is None else TargetContext.create(target, shape)
        context = DraftContext.create(model, shape, other)
        return _run(context, found, features, anchor, length)
    finally:
        model.close()
        if target is not None:
            target.close()


def _run(
    context: DraftContext, draft: DraftDescription, features: FloatArray, anchor: int, length: int
) -> NativeBlock:
    n, width = len(features), draft.feature_width
    block = Batch.create(length)
    assert draft.mask_token_id is not None, "the draft states no mask token"
    masks = [draft.mask_token_id] * (length - 1)
    block.add_tokens([anchor, *masks], start=n, seq=0, output=ALL_OUTPUT)

    causal, first = draft.causal, draft.first_row
    context.configure(feature_width=width, causal=causal, base=True)
    if n:
        inject = Batch.create(n, width)
        inject.set_embeddings(np.ascontiguousarray(features, np.float32), list(range(n)), [0] * n)
        context.decode(inject)
    context.decode(block)
    base = context.logits_view(length)[:, : draft.draft_vocabulary].copy()
    hidden = context.hidden_view(length).copy()
    context.truncate(0, n)
    if draft.selector is not None:
        context.configure(feature_width=width, causal=causal, lattice=True)
        ids = context.decode_lattice(block, draft.selector.top_k)
        return NativeBlock(base, hidden, None, ids[first:], None)
    wants = draft.has_confidence_head
    context.configure(feature_width=width, causal=causal, confidence=wants)
    ids, scores = context.decode_block(block, length, confidence=wants)
    logits = context.logits_view(length).copy()
    return NativeBlock(base, hidden, logits, ids[first:], scores[first:] if scores else None)
