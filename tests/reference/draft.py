"""A whole draft: features in, a block of proposals out."""

from dataclasses import dataclass

import numpy as np

from tests.reference.backbone import Backbone
from tests.reference.checkpoint import FloatArray
from tests.reference.heads import Head
from tests.reference.layers import Memory


@dataclass(frozen=True)
class Block:
    """Of all L rows: base logits [L, Vd] and hidden rows [L, d]; of the rows that propose: target
    ids, confidences (or None), and the logits [L - first, Vd] with the head's part added.
    """

    base: FloatArray
    hidden: FloatArray
    ids: list[int]
    confidence: list[float] | None
    logits: FloatArray


@dataclass(frozen=True)
class Draft:
    """taps: the target layers whose input makes a feature row, in order. first: the row of the
    first proposal, 0 in the anchor-first layout and 1 in the bonus-anchor layout.
    """

    backbone: Backbone
    head: Head
    taps: tuple[int, ...]
    block_size: int
    first: int
    mask: int

    def context(self, features: FloatArray) -> list[Memory]:
        """What a block sees of feature rows [n, taps * d_target] at positions 0 to n - 1."""
        return self.backbone.context(features, np.arange(len(features)))

    def block(self, context: list[Memory], anchor: int, position: int, length: int) -> Block:
        """A block of `length` rows, the anchor at `position` and masks after it, over the context
        before that position.
        """
        ids = np.array([anchor] + [self.mask] * (length - 1))
        seen = [memory.until(position) for memory in context]
        base, hidden = self.backbone.rows(seen, ids, position + np.arange(length))
        chain = self.head.chain(base[self.first :], hidden[self.first :], anchor)
        return Block(base, hidden, chain.ids, chain.confidence, chain.logits)
