"""DFlash's backbone: target features become keys and values, a block of masks reads them."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from tests.reference.checkpoint import FloatArray, IntArray
from tests.reference.layers import Layer, Memory, Shape, rms_norm


class Rows(NamedTuple):
    """Of a block: base logits [L, Vd], and the hidden rows [L, d] that the heads read."""

    base: FloatArray
    hidden: FloatArray


class Backbone(Protocol):
    """What a draft is before its head."""

    def context(self, features: FloatArray, position: IntArray) -> list[Memory]:
        """Every layer's keys and values of feature rows [n, taps * d_target]."""
        ...

    def rows(self, context: list[Memory], ids: IntArray, position: IntArray) -> Rows:
        """The rows of a block of tokens ids [L], which see the context and one another."""
        ...


@dataclass(frozen=True)
class DenseBackbone:
    """fc [d, taps * d_target], embedding [V, d], head [Vd, d]."""

    shape: Shape
    layers: tuple[Layer, ...]
    fc: FloatArray
    fc_norm: FloatArray
    norm: FloatArray
    embedding: FloatArray
    head: FloatArray
    embedding_scale: float = 1.0

    def context(self, features: FloatArray, position: IntArray) -> list[Memory]:
        fused = rms_norm(features @ self.fc.T, self.fc_norm, self.shape.eps)
        return [layer.remember(self.shape, fused, position) for layer in self.layers]

    def rows(self, context: list[Memory], ids: IntArray, position: IntArray) -> Rows:
        x = self.embedding[ids] * np.float32(self.embedding_scale)
        for layer, past in zip(self.layers, context, strict=True):
            x = layer.forward(self.shape, x, position, past)
        hidden = rms_norm(x, self.norm, self.shape.eps)
        return Rows(hidden @ self.head.T, hidden)
