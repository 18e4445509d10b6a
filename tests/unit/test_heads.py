"""The NumPy heads against the equations written out for single numbers."""

from pathlib import Path

import numpy as np
import pytest

from llamaspec.draft.heads import Confidence, MarkovHead, PlainHead, VanillaHead, load_head
from llamaspec.errors import ModelLoadError
from llamaspec.runtime.gguf_file import GGUFFile
from tests.miniature import RANK, WIDTH, ramp, write_draft

RNG = np.random.default_rng(7)
V, R, D, L = 11, 3, 5, 4


def arrays(draft_vocabulary: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    shapes = [(V, R), (draft_vocabulary, R), (L, draft_vocabulary), (L, D)]
    w1, w2, base, hidden = (RNG.normal(size=s).astype(np.float32) for s in shapes)
    return w1, w2, base, hidden


def by_hand(
    w1: np.ndarray, w2: np.ndarray, base: np.ndarray, d2t: list[int], anchor: int
) -> list[int]:
    chosen, previous = [], anchor
    for i in range(L):
        best, best_score = -1, -np.inf
        for j in range(len(w2)):
            score = float(base[i, j]) + sum(
                float(w2[j, k]) * float(w1[previous, k]) for k in range(R)
            )
            if score > best_score:
                best, best_score = j, score
        previous = d2t[best]
        chosen.append(previous)
    return chosen


def test_vanilla_chain_conditions_on_the_anchor_and_then_on_its_own_choices() -> None:
    for anchor in range(V):
        w1, w2, base, hidden = arrays(V)
        chain = VanillaHead(w1, w2, None, None).chain(base, hidden, anchor)
        assert by_hand(w1, w2, base, list(range(V)), anchor) == chain.ids.tolist()
        assert chain.confidence is None


def test_a_reduced_vocabulary_chains_on_target_ids() -> None:
    d2t = [10, 3, 7, 0, 5, 9]
    for anchor in range(V):
        w1, w2, base, hidden = arrays(len(d2t))
        head = VanillaHead(w1, w2, np.array(d2t, np.int32), None)
        assert by_hand(w1, w2, base, d2t, anchor) == head.chain(base, hidden, anchor).ids.tolist()


def test_confidence_reads_the_hidden_row_and_the_previous_token() -> None:
    w1, w2, base, hidden = arrays(V)
    weight = RNG.normal(size=D + R).astype(np.float32)
    chain = VanillaHead(w1, w2, None, Confidence(weight, 0.25)).chain(base, hidden, 4)
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


def loaded(path: Path) -> MarkovHead:
    with GGUFFile.open(path) as file:
        return load_head(file)


def test_ids_beyond_what_float32_holds_are_read_exactly(tmp_path: Path) -> None:
    ids = np.array([1, 2**24 + 1, 2**31 - 1], np.int64)
    for bare in ({}, {"markov_w1.weight": None}):
        d2t = loaded(write_draft(tmp_path / "d.gguf", {}, {"d2t": ids, **bare})).d2t
        assert d2t is not None
        assert d2t.dtype == np.int32
        assert d2t.tolist() == ids.tolist()


@pytest.mark.parametrize("name", ["markov_gate.weight", "markov_gate.bias", "markov_joint.weight"])
def test_a_head_that_is_none_of_these_is_refused(tmp_path: Path, name: str) -> None:
    path = write_draft(tmp_path / "d.gguf", {}, {name: ramp(RANK, WIDTH + RANK)})
    with pytest.raises(ModelLoadError, match=f"Markov head .{name}.: not supported yet"):
        loaded(path)
