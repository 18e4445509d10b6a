"""The NumPy heads against the equations written out for single numbers."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from llamaspec.draft.heads import (
    Confidence,
    DraftHead,
    Gated,
    MarkovHead,
    PlainHead,
    Recurrent,
    SelectorHead,
    load_head,
)
from llamaspec.runtime.gguf_file import GGUFFile
from tests.miniature import RANK, VOCABULARY, WIDTH, ramp, write_draft

RNG = np.random.default_rng(7)
V, R, D, L = 11, 3, 5, 4


def arrays(draft_vocabulary: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    shapes = [(V, R), (draft_vocabulary, R), (L, draft_vocabulary), (L, D)]
    w1, w2, base, hidden = (RNG.normal(size=s).astype(np.float32) for s in shapes)
    return w1, w2, base, hidden


Spoken = Callable[[int, list[float]], list[float]]
"""From a row's number and e, to what W2 multiplies."""


def by_hand(
    w1: np.ndarray,
    w2: np.ndarray,
    base: np.ndarray,
    d2t: list[int],
    anchor: int,
    spoken: Spoken = lambda i, e: e,
) -> list[int]:
    chosen, previous = [], anchor
    for i in range(L):
        u = spoken(i, w1[previous].tolist())
        scores = [
            float(base[i, j]) + sum(float(w2[j, k]) * u[k] for k in range(R))
            for j in range(len(w2))
        ]
        previous = d2t[scores.index(max(scores))]
        chosen.append(previous)
    return chosen


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def linear(weight: np.ndarray, bias: np.ndarray, inputs: list[float]) -> list[float]:
    products = [zip(row, inputs, strict=True) for row in weight.tolist()]
    return [sum(w * x for w, x in row) + b for row, b in zip(products, bias.tolist(), strict=True)]


def test_vanilla_chain_conditions_on_the_anchor_and_then_on_its_own_choices() -> None:
    for anchor in range(V):
        w1, w2, base, hidden = arrays(V)
        chain = MarkovHead(w1, w2, None, None).chain(base, hidden, anchor)
        assert by_hand(w1, w2, base, list(range(V)), anchor) == chain.ids.tolist()
        assert chain.confidence is None


def test_a_reduced_vocabulary_chains_on_target_ids() -> None:
    d2t = [10, 3, 7, 0, 5, 9]
    for anchor in range(V):
        w1, w2, base, hidden = arrays(len(d2t))
        head = MarkovHead(w1, w2, np.array(d2t, np.int32), None)
        assert by_hand(w1, w2, base, d2t, anchor) == head.chain(base, hidden, anchor).ids.tolist()


def test_a_gated_head_weighs_the_previous_token_by_the_hidden_row() -> None:
    for anchor in range(V):
        w1, w2, base, hidden = arrays(V)
        gate = RNG.normal(size=(R, D + R)).astype(np.float32)
        bias = RNG.normal(size=R).astype(np.float32)

        def spoken(
            i: int,
            e: list[float],
            gate: np.ndarray = gate,
            bias: np.ndarray = bias,
            hidden: np.ndarray = hidden,
        ) -> list[float]:
            read = linear(gate, bias, [*hidden[i].tolist(), *e])
            return [sigmoid(g) * x for g, x in zip(read, e, strict=True)]

        found = MarkovHead(w1, w2, None, None, Gated(gate, bias)).chain(base, hidden, anchor)
        assert by_hand(w1, w2, base, list(range(V)), anchor, spoken) == found.ids.tolist()


def test_a_recurrent_head_keeps_a_state_through_a_block_and_not_beyond() -> None:
    w1, w2, base, hidden = arrays(V)
    joint = RNG.normal(size=(3 * R, D + 2 * R)).astype(np.float32)
    bias = RNG.normal(size=3 * R).astype(np.float32)
    head = MarkovHead(w1, w2, None, None, Recurrent(joint, bias))
    for anchor in range(V):
        states = [[0.0] * R]

        def spoken(i: int, e: list[float], states: list[list[float]] = states) -> list[float]:
            read = linear(joint, bias, [*states[-1], *e, *hidden[i].tolist()])
            gate, candidate, out = read[:R], read[R : 2 * R], read[2 * R :]
            state = [
                sigmoid(g) * s + (1 - sigmoid(g)) * math.tanh(c)
                for g, s, c in zip(gate, states[-1], candidate, strict=True)
            ]
            states.append(state)
            return [math.tanh(o) for o in out]

        expected = by_hand(w1, w2, base, list(range(V)), anchor, spoken)
        assert expected == head.chain(base, hidden, anchor).ids.tolist()


def test_a_selector_takes_of_the_best_the_one_that_follows() -> None:
    top_k, d2t = 3, [10, 3, 7, 0, 5, 9]
    for anchor in range(V):
        predecessor, _, base, hidden = arrays(len(d2t))
        successor, gate = (RNG.normal(size=s).astype(np.float32) for s in ((V, R), (R, D)))
        head = SelectorHead(predecessor, successor, gate, top_k, np.array(d2t, np.int32))
        expected, previous = [], anchor
        for i in range(L):
            rows = sorted(range(len(d2t)), key=lambda j, i=i: -base[i, j])[:top_k]  # type: ignore[misc]
            read = linear(gate, np.zeros(R), hidden[i].tolist())
            scores = {
                d2t[j]: float(base[i, j])
                + sum(
                    float(successor[d2t[j], k]) * float(predecessor[previous, k]) * read[k]
                    for k in range(R)
                )
                for j in rows
            }
            previous = max(scores, key=lambda t, scores=scores: scores[t])  # type: ignore[misc]
            expected.append(previous)
        assert expected == head.chain(base, hidden, anchor).ids.tolist()


def test_confidence_reads_the_hidden_row_and_the_previous_token() -> None:
    w1, w2, base, hidden = arrays(V)
    weight = RNG.normal(size=D + R).astype(np.float32)
    chain = MarkovHead(w1, w2, None, Confidence(weight, 0.25)).chain(base, hidden, 4)
    assert chain.confidence is not None
    previous = [4, *chain.ids.tolist()]
    for i in range(L):
        inputs = [*hidden[i], *w1[previous[i]]]
        score = sum(float(w) * float(x) for w, x in zip(weight, inputs, strict=True)) + 0.25
        assert pytest.approx(1 / (1 + np.exp(-score)), abs=1e-6) == float(chain.confidence[i])


def test_without_a_head_positions_are_independent_and_mapped() -> None:
    base = np.array([[0, 2, 1], [5, 1, 0]], np.float32)
    hidden = np.zeros((2, D), np.float32)
    assert PlainHead(None).chain(base, hidden, 9).ids.tolist() == [1, 0]
    mapped = PlainHead(np.array([30, 20, 10], np.int32)).chain(base, hidden, 9)
    assert mapped.ids.tolist() == [20, 30]


def loaded(path: Path) -> DraftHead:
    with GGUFFile.open(path) as file:
        return load_head(file)


def test_ids_beyond_what_float32_holds_are_read_exactly(tmp_path: Path) -> None:
    ids = np.array([1, 2**24 + 1, 2**31 - 1], np.int64)
    for bare in ({}, {"markov_w1.weight": None}):
        d2t = loaded(write_draft(tmp_path / "d.gguf", {}, {"d2t": ids, **bare})).d2t
        assert d2t is not None
        assert d2t.dtype == np.int32
        assert d2t.tolist() == ids.tolist()


def test_a_head_is_read_by_the_tensors_that_there_are(tmp_path: Path) -> None:
    path = tmp_path / "d.gguf"
    gate = {"markov_gate.weight": ramp(RANK, WIDTH + RANK)}
    joint = {"markov_joint.weight": ramp(3 * RANK, WIDTH + 2 * RANK)}
    for tensors, kind in ((gate, Gated), (joint, Recurrent)):
        (weight,) = tensors.values()
        (name,) = tensors
        head = loaded(write_draft(path, {}, tensors))
        assert isinstance(head, MarkovHead)
        assert isinstance(head.kind, kind)
        assert np.array_equal(head.kind.weight, weight)
        assert head.kind.bias.tolist() == [0] * len(weight)
        bias = {name.replace("weight", "bias"): ramp(len(weight))}
        head = loaded(write_draft(path, {}, tensors | bias))
        assert isinstance(head, MarkovHead)
        assert isinstance(head.kind, kind)
        assert head.kind.bias.tolist() == list(range(len(weight)))
    tables = {f"selector_{n}.weight": ramp(VOCABULARY, 3) for n in ("predecessor", "successor")}
    tables["selector_hidden.weight"] = ramp(3, WIDTH)
    head = loaded(write_draft(path, {"dflash.selector_top_k": 4}, tables))
    assert isinstance(head, SelectorHead)
    assert (head.top_k, head.gate.shape) == (4, (3, WIDTH))
