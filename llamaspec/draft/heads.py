"""The sequential heads in NumPy: the readable definition, and the place to try a new head.

Shapes: d draft width, r Markov rank, V target vocabulary, Vd draft vocabulary. Equations: Cheng
et al., "DSpark" (2026).
"""

from dataclasses import dataclass

import numpy as np

from llamaspec.errors import ModelLoadError
from llamaspec.runtime.arrays import FloatArray, IntArray
from llamaspec.runtime.gguf_file import GGUFFile


@dataclass(frozen=True)
class Chain:
    """Ids in target vocabulary [L] and, with a confidence head, confidences [L]."""

    ids: IntArray
    confidence: FloatArray | None


@dataclass(frozen=True)
class Confidence:
    """c_i = sigmoid(w . [h_i ; W1[p_i]] + b), w [d + r]."""

    weight: FloatArray
    bias: float

    def __call__(self, hidden: FloatArray, embedding: FloatArray) -> np.float32:
        d = len(hidden)
        score = self.weight[:d] @ hidden + self.weight[d:] @ embedding + self.bias
        return np.float32(1.0 / (1.0 + np.exp(-score)))


@dataclass(frozen=True)
class VanillaHead:
    """logits_i = base_i + W2 W1[p_i], p_0 the anchor, p_i the token chosen at i - 1; w1 [V, r],
    w2 [Vd, r].

    d2t [Vd] holds the target id of every draft row, None for a full vocabulary.
    """

    w1: FloatArray
    w2: FloatArray
    d2t: IntArray | None
    confidence: Confidence | None

    def chain(self, base: FloatArray, hidden: FloatArray, anchor: int) -> Chain:
        """Choose greedily, left to right, from base logits [L, Vd] and hidden rows [L, d]."""
        ids = np.empty(len(base), np.int32)
        scores = np.empty(len(base), np.float32)
        previous = anchor
        for i, row in enumerate(base):
            embedding = self.w1[previous]
            chosen = int(np.argmax(row + self.w2 @ embedding))
            if self.confidence is not None:
                scores[i] = self.confidence(hidden[i], embedding)
            # the chain runs on target ids: a reduced vocabulary maps every choice before it is
            # looked up in W1
            previous = chosen if self.d2t is None else int(self.d2t[chosen])
            ids[i] = previous
        return Chain(ids, None if self.confidence is None else scores)


@dataclass(frozen=True)
class PlainHead:
    """No Markov head (rank 0, DFlash): positions are independent."""

    d2t: IntArray | None

    def chain(self, base: FloatArray, hidden: FloatArray, anchor: int) -> Chain:
        """Choose the largest base logit of every row [L, Vd]."""
        chosen = np.argmax(base, axis=1).astype(np.int32)
        return Chain(chosen if self.d2t is None else self.d2t[chosen], None)


MarkovHead = VanillaHead | PlainHead


def load_head(file: GGUFFile) -> MarkovHead:
    """Read the head of a draft GGUF. Raises ModelLoadError for a head that is none of these."""
    for name in file.tensors:
        if name.startswith(("markov_gate", "markov_joint")):
            kind = "gated" if name.startswith("markov_gate") else "rnn"
            raise ModelLoadError(f"{file.path}: {kind} Markov head ({name}): not supported yet")
    d2t = _d2t(file)
    if "markov_w1.weight" not in file.tensors:
        return PlainHead(d2t)
    confidence = None
    if "conf_proj.weight" in file.tensors:
        bias = file.array("conf_proj.bias") if "conf_proj.bias" in file.tensors else np.zeros(1)
        confidence = Confidence(file.array("conf_proj.weight").reshape(-1), float(bias[0]))
    return VanillaHead(
        file.array("markov_w1.weight"), file.array("markov_w2.weight"), d2t, confidence
    )


def _d2t(file: GGUFFile) -> IntArray | None:
    if "d2t" not in file.tensors:
        return None
    return file.integers("d2t").astype(np.int32)
