"""A Qwen3 target: the inputs of its layers, which drafts read as features, and its logits."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.reference.checkpoint import Checkpoint, FloatArray
from tests.reference.layers import Layer, Memory, Shape, Sight, rms_norm
from tests.reference.packaging import flatten, make_layer, make_shape


@dataclass(frozen=True)
class Target:
    """embedding and head [V, d]."""

    shape: Shape
    layers: tuple[Layer, ...]
    norm: FloatArray
    embedding: FloatArray
    head: FloatArray

    def layer_inputs(self, ids: list[int]) -> list[FloatArray]:
        """The input [n, d] of every layer, and the last one's output, for tokens at 0, 1, ..."""
        position = np.arange(len(ids))
        inputs = [self.embedding[ids]]
        nothing = np.zeros((0, len(self.layers[0].k) // self.shape.head_dim, self.shape.head_dim))
        past = Memory(position[:0], nothing.astype(np.float32), nothing.astype(np.float32))
        for layer in self.layers:
            inputs.append(layer.forward(self.shape, inputs[-1], position, past))
        return inputs

    def features(self, ids: list[int], taps: tuple[int, ...]) -> FloatArray:
        """Feature rows [n, taps * d]."""
        inputs = self.layer_inputs(ids)
        return np.concatenate([inputs[tap] for tap in taps], axis=1)

    def output(self, last: FloatArray) -> FloatArray:
        """Logits [n, V] of rows of the last layer's output."""
        return rms_norm(last, self.norm, self.shape.eps) @ self.head.T


def load_target(folder: Path) -> Target:
    """Read a Qwen3ForCausalLM checkpoint."""
    weights = Checkpoint(folder)
    settings = flatten(weights.config)
    layers = (
        make_layer(weights, f"layers.{i}.", Sight(causal=True), gemma=False)
        for i in range(settings["num_hidden_layers"])
    )
    embedding = weights("embed_tokens.weight")
    head = weights.get("lm_head.weight")
    return Target(
        make_shape(settings, gemma=False),
        tuple(layers),
        weights("norm.weight"),
        embedding,
        embedding if head is None else head,
    )
