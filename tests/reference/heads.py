"""Heads that turn base logits [L, Vd] and hidden rows [L, d] into a proposal.

p_0 is the anchor, p_i the token chosen at i - 1, as target id. Equations: Cheng et al., "DSpark"
(2026).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from tests.reference.checkpoint import Checkpoint, FloatArray, IntArray
from tests.reference.layers import sigmoid


class Chain(NamedTuple):
    """Target ids [L], the logits [L, Vd] they are the largest of, confidences [L] or None."""

    ids: list[int]
    logits: FloatArray
    confidence: list[float] | None


class Head(Protocol):
    def chain(self, base: FloatArray, hidden: FloatArray, anchor: int) -> Chain: ...


@dataclass(frozen=True)
class PlainHead:
    """DFlash: positions are independent."""

    d2t: IntArray | None = None

    def chain(self, base: FloatArray, hidden: FloatArray, anchor: int) -> Chain:
        chosen = base.argmax(axis=1)
        return Chain((chosen if self.d2t is None else self.d2t[chosen]).tolist(), base, None)


@dataclass(frozen=True)
class Linear:
    """y = W x + b, b zero where it is None."""

    weight: FloatArray
    bias: FloatArray | None

    def __call__(self, *parts: FloatArray) -> FloatArray:
        """Of the concatenated parts."""
        y = self.weight @ np.concatenate(parts)
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True)
class MarkovHead:
    """w1 [V, r], w2 [Vd, r]; with e_i = W1[p_i] the logits are base_i + W2 u_i, and u_i is e_i
    (vanilla), sigmoid(gate [h_i; e_i]) e_i (gated), or an RNN's output (joint).

    confidence: sigmoid(w . [h_i; e_i] + b) for every type of head, without e_i where w is d wide.
    d2t [Vd] holds the target id of every draft row, None for a full vocabulary.
    """

    w1: FloatArray
    w2: FloatArray
    gate: Linear | None = None
    joint: Linear | None = None
    confidence: Linear | None = None
    d2t: IntArray | None = None

    def chain(self, base: FloatArray, hidden: FloatArray, anchor: int) -> Chain:
        ids, rows, scores = [anchor], [], []
        state = np.zeros(self.w1.shape[1], np.float32)
        for base_row, h in zip(base, hidden, strict=True):
            e = u = self.w1[ids[-1]]
            if self.gate is not None:
                u = sigmoid(self.gate(h, e)) * e
            elif self.joint is not None:
                keep, new, out = np.split(self.joint(state, e, h), 3)
                state = sigmoid(keep) * state + (1 - sigmoid(keep)) * np.tanh(new)
                u = np.tanh(out)
            rows.append(base_row + self.w2 @ u)
            if self.confidence is not None:
                wide = self.confidence.weight.shape[1] > len(h)
                read = self.confidence(h, e) if wide else self.confidence(h)
                scores.append(float(sigmoid(read)[0]))
            chosen = int(rows[-1].argmax())
            ids.append(chosen if self.d2t is None else int(self.d2t[chosen]))
        logits = np.array(rows, np.float32).reshape(base.shape)
        return Chain(ids[1:], logits, None if self.confidence is None else scores)


@dataclass(frozen=True)
class SelectorHead:
    """DFlash2: of the top_k tokens of every position, the one that follows its predecessor best.

    The score of b after a at i is logit_i[b] + successor[b] . (predecessor[a] * (gate h_i)), with
    predecessor and successor [V, r], gate [r, d]; logits are multiplied, then soft-capped.
    """

    predecessor: FloatArray
    successor: FloatArray
    gate: FloatArray
    top_k: int
    multiplier: float = 1.0
    softcap: float = 0.0

    def chain(self, base: FloatArray, hidden: FloatArray, anchor: int) -> Chain:
        logits, ids = base * np.float32(self.multiplier), [anchor]
        if self.softcap:
            logits = np.tanh(logits / np.float32(self.softcap)) * np.float32(self.softcap)
        for row, h in zip(logits, hidden, strict=True):
            candidates = np.argsort(-row, kind="stable")[: self.top_k]
            link = self.successor[candidates] @ (self.predecessor[ids[-1]] * (self.gate @ h))
            ids.append(int(candidates[np.argmax(row[candidates] + link)]))
        return Chain(ids[1:], logits, None)


def make_head(draft: Checkpoint, settings: dict[str, Any], at: str = "") -> Head:
    """The head by the tensors that there are, their names beginning with `at`."""
    d2t = None
    if "d2t" in draft:
        offsets = draft.integers("d2t")
        d2t = offsets + np.arange(len(offsets))
    if "candidate_selector.predecessor_codebook" in draft:
        return SelectorHead(
            draft("candidate_selector.predecessor_codebook"),
            draft("candidate_selector.successor_codebook"),
            draft("candidate_selector.hidden_projection.weight"),
            settings["selector_top_k"],
            settings.get("output_multiplier") or 1.0,
            settings.get("final_logit_softcapping") or 0.0,
        )
    if f"{at}markov_head.markov_w1.weight" not in draft:
        return PlainHead(d2t)
    confidence = _linear(draft, f"{at}confidence_head.proj")
    return MarkovHead(
        draft(f"{at}markov_head.markov_w1.weight"),
        draft(f"{at}markov_head.markov_w2.weight"),
        gate=_linear(draft, f"{at}markov_head.gate_proj"),
        joint=_linear(draft, f"{at}markov_head.joint_proj"),
        confidence=confidence or _linear(draft, f"{at}confidence_proj"),
        d2t=d2t,
    )


def _linear(draft: Checkpoint, name: str) -> Linear | None:
    weight = draft.get(f"{name}.weight")
    return None if weight is None else Linear(weight, draft.get(f"{name}.bias"))
