"""Gemma 3 in NumPy, from a GGUF whose weights are dequantised: what enters every layer.

"Gemma 3 Technical Report" (2025), and the released configuration: embeddings times sqrt(width),
four norms a layer, norms of queries and keys, every sixth layer with global attention and its own
RoPE base, GELU by the tanh approximation. llama.cpp's converter has added the 1 to norms' weights.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from llamaspec.runtime.gguf_file import GGUFFile
from tests.reference.checkpoint import FloatArray, IntArray
from tests.reference.layers import gelu, rms_norm

LOCAL_BASE = 10000.0
GLOBAL_EVERY = 6


@dataclass(frozen=True)
class Gemma3:
    """A model whose weights are read when they are needed."""

    file: GGUFFile
    layers: int
    width: int
    heads: int
    window: int
    global_base: float
    eps: float

    @classmethod
    def open(cls, path: Path) -> Self:
        """The model in a GGUF of that architecture."""
        file = GGUFFile.open(path)

        def value(name: str) -> Any:  # noqa: ANN401
            return file.metadata[f"gemma3.{name}"]

        return cls(
            file=file,
            layers=value("block_count"),
            width=value("embedding_length"),
            heads=value("attention.head_count"),
            window=value("attention.sliding_window"),
            global_base=value("rope.freq_base"),
            eps=value("attention.layer_norm_rms_epsilon"),
        )

    def layer_inputs(self, ids: IntArray) -> FloatArray:
        """[layers + 1, n, width]: what enters each layer, and the final norm."""
        x = self._rows("token_embd", ids) * np.float32(math.sqrt(self.width))
        found = [x]
        for layer in range(self.layers):
            x = x + self._norm(layer, "post_attention_norm", self._attend(layer, x))
            x = x + self._norm(layer, "post_ffw_norm", self._feed(layer, x))
            found.append(x)
        return np.stack(found)

    def _attend(self, layer: int, x: FloatArray) -> FloatArray:
        h, n = self._norm(layer, "attn_norm", x), len(x)
        local = (layer + 1) % GLOBAL_EVERY != 0
        base = LOCAL_BASE if local else self.global_base
        q = self._linear(layer, "attn_q", h).reshape(n, self.heads, -1)
        k, v = (self._linear(layer, f"attn_{p}", h).reshape(n, -1, q.shape[-1]) for p in "kv")
        q = rotate(self._norm(layer, "attn_q_norm", q), base) / np.float32(math.sqrt(q.shape[-1]))
        k = rotate(self._norm(layer, "attn_k_norm", k), base)
        shared = self.heads // k.shape[1]
        k, v = np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k)
        seen = np.tri(n, dtype=bool)
        if local:
            # the row itself and what is less than a window back
            seen &= ~np.tri(n, k=-self.window, dtype=bool)
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, v).reshape(n, -1)
        return self._linear(layer, "attn_output", mixed)

    def _feed(self, layer: int, x: FloatArray) -> FloatArray:
        h = self._norm(layer, "ffn_norm", x)
        gate = gelu(self._linear(layer, "ffn_gate", h))
        return self._linear(layer, "ffn_down", gate * self._linear(layer, "ffn_up", h))

    def _norm(self, layer: int, name: str, x: FloatArray) -> FloatArray:
        return rms_norm(x, self._rows(f"blk.{layer}.{name}"), self.eps)

    def _linear(self, layer: int, name: str, x: FloatArray) -> FloatArray:
        return x @ self._rows(f"blk.{layer}.{name}").T

    def _rows(self, name: str, rows: IntArray | None = None) -> FloatArray:
        name, read = f"{name}.weight", self.file.rows
        if rows is not None:
            return np.concatenate([read(name, row, row + 1) for row in rows.tolist()])
        shape = self.file.tensors[name].shape
        return read(name, 0, shape[0]).reshape(shape)


def rotate(x: FloatArray, base: float) -> FloatArray:
    """RoPE of rows [n, heads, width] at positions 0 to n - 1, halves of the width paired."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * base ** (-np.arange(half) / half)
    cos, sin = (f(angles).astype(np.float32)[:, None] for f in (np.cos, np.sin))
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
