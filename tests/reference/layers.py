"""Transformer layers, as targets and drafts share them."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from tests.reference.checkpoint import FloatArray, IntArray
from tests.reference.rope import Rope


def rms_norm(x: FloatArray, weight: FloatArray | None, eps: float) -> FloatArray:
    """x / rms(x) * weight over the last axis."""
    scaled: FloatArray = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
    return scaled if weight is None else scaled * weight


def sigmoid(x: FloatArray) -> FloatArray:
    return (1 / (1 + np.exp(-x))).astype(np.float32)


def silu(x: FloatArray) -> FloatArray:
    return x * sigmoid(x)


def gelu(x: FloatArray) -> FloatArray:
    """The tanh approximation."""
    bent: FloatArray = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return 0.5 * x * (1 + bent)


@dataclass(frozen=True)
class Memory:
    """Keys and values [n, kv_heads, head_dim] of rows at position [n]."""

    position: IntArray
    keys: FloatArray
    values: FloatArray

    def until(self, position: int) -> Self:
        """The rows at smaller positions."""
        kept = self.position < position
        return type(self)(self.position[kept], self.keys[kept], self.values[kept])

    def __add__(self, other: Self) -> Self:
        return type(self)(
            np.concatenate([self.position, other.position]),
            np.concatenate([self.keys, other.keys]),
            np.concatenate([self.values, other.values]),
        )


@dataclass(frozen=True)
class Sight:
    """Which rows a layer's rows see, of those in memory.

    window: at most window - 1 positions back, as llama.cpp's standard window (`is_masked_swa`);
    it counts from every row's own position, inside its block too, and does not reach forward.
    causal: nothing at later positions.
    """

    window: int | None = None
    causal: bool = False

    def hides(self, position: IntArray, memory: IntArray) -> npt.NDArray[np.bool_]:
        back = position[:, None] - memory[None, :]
        hidden: npt.NDArray[np.bool_] = (back < 0) & self.causal
        return hidden if self.window is None else hidden | (back >= self.window)


def attend(
    queries: FloatArray,
    position: IntArray,
    memory: Memory,
    sight: Sight,
    scale: float,
    sinks: FloatArray | None,
) -> FloatArray:
    """Attention of queries [L, heads, head_dim] over the memory, [L, heads * head_dim].

    sinks [heads] are scores that take their share of the softmax and add no value.
    """
    group = queries.shape[1] // memory.keys.shape[1]
    keys = np.repeat(memory.keys, group, axis=1).transpose(1, 2, 0)
    score = queries.transpose(1, 0, 2) @ keys * np.float32(scale)
    score[:, sight.hides(position, memory.position)] = -np.inf
    top = score.max(axis=-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None, None])
    weight = np.exp(score - top)
    total = weight.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[:, None, None] - top)
    values = np.repeat(memory.values, group, axis=1).transpose(1, 0, 2)
    mixed: FloatArray = weight / total @ values
    return mixed.transpose(1, 0, 2).reshape(len(queries), -1)


@dataclass(frozen=True)
class Convolution:
    """DFlash2's local convolution: a kernel over the rows before, in the block, made of a learned
    part, base [2, taps, d], and one read off the row, projection [2 * taps * groups, d].

    Side 0 comes before attention or feed-forward, side 1 after it.
    """

    base: FloatArray
    projection: FloatArray

    def kernels(self, x: FloatArray) -> FloatArray:
        """[L, 2, taps, d] from the normalised rows [L, d]."""
        _, taps, d = self.base.shape
        groups = len(self.projection) // (2 * taps)
        read = (x @ self.projection.T).reshape(len(x), 2, taps, groups)
        return self.base + np.repeat(read, d // groups, axis=-1)

    @staticmethod
    def apply(kernel: FloatArray, x: FloatArray) -> FloatArray:
        """y_t = sum_j kernel[t, j] x_{t-j}, kernel [L, taps, d], nothing before the block."""
        out = np.zeros_like(x)
        for j in range(min(kernel.shape[1], len(x))):
            out[j:] += kernel[j:, j] * x[: len(x) - j]
        return out


@dataclass(frozen=True)
class Shape:
    """What the layers of a model have in common. value_norm: V is normalised, without weight."""

    head_dim: int
    eps: float
    rope: Rope
    attention_scale: float
    value_scale: float = 1.0
    value_norm: bool = False
    gelu: bool = False


@dataclass(frozen=True)
class Layer:
    """Weights of one layer, [rows out, rows in]; v is None where V is K before norm and RoPE."""

    attn_norm: FloatArray
    q: FloatArray
    k: FloatArray
    v: FloatArray | None
    o: FloatArray
    q_norm: FloatArray
    k_norm: FloatArray
    ffn_norm: FloatArray
    gate: FloatArray
    up: FloatArray
    down: FloatArray
    attn_post_norm: FloatArray | None = None
    ffn_post_norm: FloatArray | None = None
    scale: FloatArray | None = None
    sinks: FloatArray | None = None
    attn_conv: Convolution | None = None
    ffn_conv: Convolution | None = None
    sight: Sight = Sight()

    def remember(self, shape: Shape, x: FloatArray, position: IntArray) -> Memory:
        """Keys and values of rows [n, d] that are features, or normalised already."""
        raw = (x @ self.k.T).reshape(len(x), len(self.k) // shape.head_dim, shape.head_dim)
        values = raw if self.v is None else (x @ self.v.T).reshape(raw.shape)
        if shape.value_norm:
            values = rms_norm(values, None, shape.eps)
        return Memory(position, shape.rope(rms_norm(raw, self.k_norm, shape.eps), position), values)

    def forward(self, shape: Shape, x: FloatArray, position: IntArray, past: Memory) -> FloatArray:
        """Rows [L, d] through the layer, over the past and over one another."""
        eps = shape.eps

        def attention(y: FloatArray) -> FloatArray:
            heads = (y @ self.q.T).reshape(len(y), -1, shape.head_dim)
            queries = shape.rope(rms_norm(heads, self.q_norm, eps), position)
            memory = past + self.remember(shape, y, position)
            scale = shape.attention_scale
            mixed = attend(queries, position, memory, self.sight, scale, self.sinks)
            return np.float32(shape.value_scale) * (mixed @ self.o.T)

        def feed_forward(y: FloatArray) -> FloatArray:
            act = gelu if shape.gelu else silu
            return (act(y @ self.gate.T) * (y @ self.up.T)) @ self.down.T

        def around(conv: Convolution | None, y: FloatArray, first: bool) -> FloatArray:
            if conv is None:
                return attention(y) if first else feed_forward(y)
            kernels = conv.kernels(y)
            y = conv.apply(kernels[:, 0], y)
            return conv.apply(kernels[:, 1], attention(y) if first else feed_forward(y))

        y = around(self.attn_conv, rms_norm(x, self.attn_norm, eps), True)
        x = x + (y if self.attn_post_norm is None else rms_norm(y, self.attn_post_norm, eps))
        y = around(self.ffn_conv, rms_norm(x, self.ffn_norm, eps), False)
        x = x + (y if self.ffn_post_norm is None else rms_norm(y, self.ffn_post_norm, eps))
        return x if self.scale is None else x * self.scale
