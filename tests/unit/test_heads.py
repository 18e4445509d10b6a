"""The NumPy heads against the equations written out for single numbers."""

import numpy as np
import pytest

from llamaspec.draft.heads import Confidence, PlainHead, VanillaHead

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


@pytest.mark.parametrize("with_markov", [True, False])
def test_confidence_reads_the_hidden_row_and_the_previous_token(with_markov: bool) -> None:
    w1, w2, base, hidden = arrays(V)
    weight = RNG.normal(size=D + R if with_markov else D).astype(np.float32)
    chain = VanillaHead(w1, w2, None, Confidence(weight, 0.25)).chain(base, hidden, 4)
    assert chain.confidence is not None
    previous = [4, *chain.ids.tolist()]
    for i in range(L):
        inputs = [*hidden[i], *(w1[previous[i]] if with_markov else [])]
        score = sum(float(w) * float(x) for w, x in zip(weight, inputs, strict=True)) + 0.25
        assert pytest.approx(1 / (1 + np.exp(-score)), abs=1e-6) == float(chain.confidence[i])


def test_without_a_head_positions_are_independent_and_mapped() -> None:
    base = np.array([[0, 2, 1], [5, 1, 0]], np.float32)
    hidden = np.zeros((2, D), np.float32)
    assert PlainHead(None).chain(base, hidden, 9).ids.tolist() == [1, 0]
    mapped = PlainHead(np.array([30, 20, 10], np.int32)).chain(base, hidden, 9)
    assert mapped.ids.tolist() == [20, 30]
