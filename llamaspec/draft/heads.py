"""The sequential heads in NumPy: the readable definition, and the place to try a new head.

Shapes: d draft width, r Markov rank, V target vocabulary, Vd draft vocabulary. Equations: Cheng
et al., "DSpark" (2026).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from llamaspec.draft.chance import Noise, tempered
from llamaspec.runtime.arrays import FloatArray, IntArray
from llamaspec.runtime.gguf_file import GGUFFile


@dataclass(frozen=True)
class Chain:
    """Ids in target vocabulary [L] and, with a confidence head, confidences [L].

    odds [L, Vd]: of drawn ids, the distribution over draft rows that each was drawn from.
    """

    ids: IntArray
    confidence: FloatArray | None
    odds: FloatArray | None = None


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
class Vanilla:
    """u_i = e_i."""

    def rows(self, rank: int) -> "Step":
        """A step for one block."""
        return lambda hidden, embedding: embedding


@dataclass(frozen=True)
class Gated:
    """u_i = sigmoid(G [h_i ; e_i] + b) * e_i, weight G [r, d + r], bias b [r]."""

    weight: FloatArray
    bias: FloatArray

    def rows(self, rank: int) -> "Step":
        """A step for one block."""

        def step(hidden: FloatArray, embedding: FloatArray) -> FloatArray:
            gate = self.weight @ np.concatenate((hidden, embedding)) + self.bias
            return _sigmoid(gate) * embedding

        return step


@dataclass(frozen=True)
class Recurrent:
    """u_i = tanh(o), where J [s ; e_i ; h_i] + b is [g ; c ; o], with weight J [3r, d + 2r], bias
    b [3r]; the state s [r], 0 before a block, becomes sigmoid(g) * s + (1 - sigmoid(g)) * tanh(c).
    """

    weight: FloatArray
    bias: FloatArray

    def rows(self, rank: int) -> "Step":
        """A step for one block; it keeps the block's state."""
        state = np.zeros(rank, np.float32)

        def step(hidden: FloatArray, embedding: FloatArray) -> FloatArray:
            nonlocal state
            read = self.weight @ np.concatenate((state, embedding, hidden)) + self.bias
            gate, candidate, output = np.split(read, 3)
            keep = _sigmoid(gate)
            state = keep * state + (1 - keep) * np.tanh(candidate)
            spoken: FloatArray = np.tanh(output)
            return spoken

        return step


Step = Callable[[FloatArray, FloatArray], FloatArray]
"""From h_i [d] and e_i [r], rows of a block in order, to what W2 multiplies, u_i [r]."""


@dataclass(frozen=True)
class MarkovHead:
    """logits_i = base_i + W2 u_i, with e_i = W1[p_i], p_0 the anchor, p_i the token chosen at
    i - 1, and u_i by the kind of head; w1 [V, r], w2 [Vd, r].

    d2t [Vd] holds the target id of every draft row, None for a full vocabulary.
    """

    w1: FloatArray
    w2: FloatArray
    d2t: IntArray | None
    confidence: Confidence | None
    kind: Vanilla | Gated | Recurrent = Vanilla()

    def chain(
        self, base: FloatArray, hidden: FloatArray, anchor: int, noise: Noise | None = None
    ) -> Chain:
        """Choose left to right, from base logits [L, Vd] and hidden rows [L, d]: greedily, or with
        noise by argmax_j logits_i[j] + noise_i[j].
        """
        ids = np.empty(len(base), np.int32)
        scores = np.empty(len(base), np.float32)
        logits = np.empty(base.shape, np.float32)
        step = self.kind.rows(self.w1.shape[1])
        previous = anchor
        for i, row in enumerate(base):
            embedding = self.w1[previous]
            np.add(row, self.w2 @ step(hidden[i], embedding), out=logits[i])
            chosen = int(np.argmax(logits[i] if noise is None else logits[i] + noise.rows[i]))
            if self.confidence is not None:
                scores[i] = self.confidence(hidden[i], embedding)
            # the chain runs on target ids: a reduced vocabulary maps every choice before it is
            # looked up in W1
            previous = chosen if self.d2t is None else int(self.d2t[chosen])
            ids[i] = previous
        return Chain(ids, None if self.confidence is None else scores, _odds(logits, noise))


@dataclass(frozen=True)
class SelectorHead:
    """DFlash2: of the top_k tokens with the largest logits, the t that maximises
    base_i[t] + S[t] . (P[p_i] * (G h_i)); predecessor P and successor S [V, r], gate G [r, d].
    """

    predecessor: FloatArray
    successor: FloatArray
    gate: FloatArray
    top_k: int
    d2t: IntArray | None

    def chain(
        self, base: FloatArray, hidden: FloatArray, anchor: int, noise: Noise | None = None
    ) -> Chain:
        """Choose left to right, from base logits [L, Vd] and hidden rows [L, d]; greedily, whatever
        the noise.
        """
        ids = np.empty(len(base), np.int32)
        previous = anchor
        for i, row in enumerate(base):
            best = np.argpartition(row, -self.top_k)[-self.top_k :]
            tokens = best if self.d2t is None else self.d2t[best]
            link = self.successor[tokens] @ (self.predecessor[previous] * (self.gate @ hidden[i]))
            previous = int(tokens[np.argmax(row[best] + link)])
            ids[i] = previous
        return Chain(ids, None)


@dataclass(frozen=True)
class PlainHead:
    """No Markov head (rank 0, DFlash): positions are independent."""

    d2t: IntArray | None

    def chain(
        self, base: FloatArray, hidden: FloatArray, anchor: int, noise: Noise | None = None
    ) -> Chain:
        """Choose the largest base logit of every row [L, Vd], with the noise added."""
        chosen = np.argmax(base if noise is None else base + noise.rows, axis=1).astype(np.int32)
        ids = chosen if self.d2t is None else self.d2t[chosen]
        return Chain(ids, None, _odds(base, noise))


DraftHead = MarkovHead | SelectorHead | PlainHead


def _odds(logits: FloatArray, noise: Noise | None) -> FloatArray | None:
    return None if noise is None else tempered(logits, noise.temperature)


def load_head(file: GGUFFile) -> DraftHead:
    """Read the head of a draft GGUF that `check_pair` has passed."""
    d2t = load_d2t(file)
    if "selector_hidden.weight" in file.tensors:
        top_k = file.metadata["dflash.selector_top_k"]
        assert isinstance(top_k, int), "check_pair refuses a selector without its sizes"
        return SelectorHead(
            file.array("selector_predecessor.weight"),
            file.array("selector_successor.weight"),
            file.array("selector_hidden.weight"),
            top_k,
            d2t,
        )
    if "markov_w1.weight" not in file.tensors:
        return PlainHead(d2t)
    confidence = None
    if "conf_proj.weight" in file.tensors:
        weight = file.array("conf_proj.weight").reshape(-1)
        confidence = Confidence(weight, float(_bias(file, "conf_proj", 1)[0]))
    w1, w2 = file.array("markov_w1.weight"), file.array("markov_w2.weight")
    return MarkovHead(w1, w2, d2t, confidence, _kind(file))


def _kind(file: GGUFFile) -> Vanilla | Gated | Recurrent:
    for name, kind in (("markov_gate", Gated), ("markov_joint", Recurrent)):
        if f"{name}.weight" in file.tensors:
            weight = file.array(f"{name}.weight")
            return kind(weight, _bias(file, name, len(weight)))
    return Vanilla()


def _bias(file: GGUFFile, name: str, rows: int) -> FloatArray:
    if f"{name}.bias" in file.tensors:
        return file.array(f"{name}.bias")
    return np.zeros(rows, np.float32)


def _sigmoid(x: FloatArray) -> FloatArray:
    return (1 / (1 + np.exp(-x))).astype(np.float32)


def load_d2t(file: GGUFFile) -> IntArray | None:
    """The target id of every draft row [Vd]; None for a full vocabulary."""
    if "d2t" not in file.tensors:
        return None
    return file.integers("d2t").astype(np.int32)
