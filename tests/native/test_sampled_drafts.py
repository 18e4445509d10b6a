"""Drafts drawn from the draft's own distribution: in the graph, in NumPy, and by counting."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from llamaspec.draft.block import BlockDrafter, BlockLayout
from llamaspec.draft.drafter import Anchor, Dice, Features, Proposal, Span
from llamaspec.draft.heads import load_d2t, load_head
from llamaspec.errors import DecodeError
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import ALL_OUTPUT, Batch
from llamaspec.runtime.gguf_file import GGUFFile
from tests.chi_square import far
from tests.native.test_ragged import TRAINED
from tests.native.test_ragged import pairs as pairs
from tests.native_rig import Native, Rig, random_features, rig
from tests.rewrite import rewrite

pytestmark = pytest.mark.native

LENGTHS = [0, 5, 33, 12, 7, 20]
WIDTHS = [3, 7, 1, 6, 5, 7]
TEMPERATURES = [0.5, None, 1.0, 2.0, None, 0.2]
HEADS = [*TRAINED, "gated", "rnn", "deepseek4"]
COUNTED = ["tiny-dspark", "tiny-dspark-speculators", "tiny-dflash", "rnn"]
# both sides sum in float32, in different orders
TOLERANCE = 1e-3

Pairs = dict[str, tuple[Path, Path]]


@pytest.fixture(params=HEADS)
def one(request: pytest.FixtureRequest, pairs: Pairs) -> Iterator[tuple[Rig, Path]]:
    draft, target = pairs[request.param]
    with rig(draft, target, [0] * len(LENGTHS)) as of:
        yield of, draft


def layout(of: Rig, path: Path, *, python: bool) -> BlockLayout:
    draft = of.draft
    with GGUFFile.open(path) as file:
        d2t = load_d2t(file)
    assert draft.mask_token_id is not None
    return BlockLayout(
        draft.proposals,
        draft.first_row,
        draft.mask_token_id,
        draft.draft_vocabulary,
        draft.has_confidence_head,
        draft.selector.top_k if draft.selector and not python else 0,
        d2t,
    )


def drafter(of: Rig, path: Path, *, python: bool = False) -> BlockDrafter:
    """A drafter over the rig's context, which knows features of every sequence's LENGTHS rows."""
    draft = of.draft
    of.context.configure(
        feature_width=draft.feature_width,
        causal=draft.causal,
        confidence=draft.has_confidence_head and not python,
        lattice=draft.selector is not None and not python,
        base=python,
    )
    head = None
    if python:
        with GGUFFile.open(path) as file:
            head = load_head(file)
    made = BlockDrafter(of.context, layout(of, path, python=python), head)
    for seq, n in enumerate(LENGTHS):
        made.keep(seq, 0)
        if n:
            rows = random_features(draft, seq, n)
            made.commit(Features(rows, [Span(seq, 0, n)]))
    return made


def dice(temperature: float | None, seed: int) -> Dice | None:
    return None if temperature is None else Dice(temperature, np.random.default_rng(seed))


def anchors(of: Rig, temperatures: list[float | None], seed: int = 0) -> list[Anchor]:
    most = of.draft.proposals
    return [
        Anchor(seq, 17 + 5 * seq, LENGTHS[seq], width, width, (), dice(temperature, seed + seq))
        for seq, (width, temperature) in enumerate(
            zip([min(w, most) for w in WIDTHS], temperatures, strict=True)
        )
    ]


def same(found: Proposal, expected: Proposal) -> None:
    """Bit for bit."""
    assert found[:2] == expected[:2]
    assert (found.odds is None) == (expected.odds is None)
    if found.odds is not None and expected.odds is not None:
        assert np.array_equal(found.odds, expected.odds)


NOBODY: list[float | None] = [None] * len(LENGTHS)


def test_the_graph_draws_what_numpy_draws(one: tuple[Rig, Path]) -> None:
    of, path = one
    graph = drafter(of, path).propose(anchors(of, TEMPERATURES))
    python = drafter(of, path, python=True).propose(anchors(of, TEMPERATURES))
    greedy = drafter(of, path).propose(anchors(of, NOBODY))
    assert [p.ids for p in graph] == [p.ids for p in python]
    assert [p.ids for p in graph] != [p.ids for p in greedy]
    for a, b, temperature in zip(graph, python, TEMPERATURES, strict=True):
        assert len(a.ids) > 0
        assert (a.confidence is None) == (b.confidence is None)
        if a.confidence is not None:
            assert a.confidence == pytest.approx(b.confidence, abs=1e-4)
        assert (a.odds is None) == (b.odds is None) == (temperature is None)
        if a.odds is None or b.odds is None:
            continue
        assert a.odds.dtype == np.float32
        assert a.odds.shape == (len(a.ids), of.context.model.vocab.size)
        assert np.abs(a.odds - b.odds).max() < TOLERANCE
        assert a.odds.sum(axis=1) == pytest.approx(1, abs=1e-5)
        assert min(a.odds[range(len(a.ids)), a.ids]) > 0


def test_odds_are_of_what_was_drawn_before(one: tuple[Rig, Path]) -> None:
    """Against the logits of a block whose chain goes the same way: noise that decides alone."""
    of, path = one
    made = drafter(of, path)
    for found, asked in zip(
        made.propose(anchors(of, TEMPERATURES)), anchors(of, NOBODY), strict=True
    ):
        if found.odds is None:
            continue
        temperature = TEMPERATURES[asked.seq]
        assert temperature is not None
        logits = forced(of, asked, found.ids)
        top = logits.max(axis=1, keepdims=True)
        weights = np.exp((logits - top).astype(np.float64) / temperature)
        expected = weights / weights.sum(axis=1, keepdims=True)
        assert np.abs(found.odds - expected).max() < 1e-6 + TOLERANCE / 10


def forced(of: Rig, asked: Anchor, ids: tuple[int, ...]) -> FloatArray:
    """The logits of the rows that propose, each following the ids given."""
    first, vocabulary = of.draft.first_row, of.context.model.vocab.size
    assert of.draft.mask_token_id is not None
    batch = Batch.create(len(ids) + first)
    tokens = [asked.token] + [of.draft.mask_token_id] * (len(ids) + first - 1)
    batch.add_tokens(tokens, start=asked.position, seq=asked.seq, output=ALL_OUTPUT)
    noise = np.zeros((batch.size, vocabulary), np.float32)
    noise[range(first, batch.size), ids] = 1e4
    wants = of.draft.has_confidence_head
    flags = np.ones(batch.size, np.int8)
    found, _ = of.context.decode_drawn(batch, noise, flags, confidence=wants)
    assert tuple(found[first:]) == ids
    return of.context.logits_view(batch.size)[first:].copy()


def test_what_is_not_drawn_is_as_before(one: tuple[Rig, Path]) -> None:
    of, path = one
    made = drafter(of, path)
    before = made.propose(anchors(of, NOBODY))
    logits = of.context.logits_view(sum(len(p.ids) for p in before)).copy()
    mixed = made.propose(anchors(of, TEMPERATURES))
    for temperature, found, expected in zip(TEMPERATURES, mixed, before, strict=True):
        if temperature is None:
            same(found, expected)
    # and noise leaves nothing behind, in the graph or in what is kept for the next pass
    swapped = [None if t else 1.0 for t in TEMPERATURES]
    for found, expected, temperature in zip(
        made.propose(anchors(of, swapped)), before, swapped, strict=True
    ):
        if temperature is None:
            same(found, expected)
    for found, expected in zip(made.propose(anchors(of, NOBODY)), before, strict=True):
        same(found, expected)
    assert np.array_equal(of.context.logits_view(len(logits)), logits)


def test_hardly_any_temperature_leaves_the_likeliest(one: tuple[Rig, Path]) -> None:
    of, path = one
    made = drafter(of, path)
    cold: list[float | None] = [1e-6] * len(LENGTHS)
    greedy, found = made.propose(anchors(of, NOBODY)), made.propose(anchors(of, cold))
    for a, b in zip(found, greedy, strict=True):
        assert a[:2] == b[:2]
        assert a.odds is not None
        assert a.odds[range(len(a.ids)), a.ids] == pytest.approx(1)


def test_one_state_one_proposal(one: tuple[Rig, Path]) -> None:
    of, path = one
    made = drafter(of, path)
    first = made.propose(anchors(of, TEMPERATURES))
    for found, expected in zip(made.propose(anchors(of, TEMPERATURES)), first, strict=True):
        same(found, expected)
    # alone, and with a limit that only cuts
    asked = anchors(of, TEMPERATURES)[3]._replace(limit=2)
    (alone,) = made.propose([asked])
    assert alone.ids == first[3].ids[:2]
    # another state, and the same generator a second time, which has moved on
    assert asked.dice is not None
    again = [made.propose([asked._replace(limit=6)])[0].ids for _ in range(8)]
    assert len(set(again)) > 1


@pytest.mark.parametrize("name", COUNTED)
def test_draws_follow_the_odds(name: str, pairs: Pairs) -> None:
    """The first position, and the second by what was drawn at the first."""
    draft, target = pairs[name]
    with rig(draft, target, [0] * len(LENGTHS)) as of:
        made = drafter(of, draft)
        asked = anchors(of, NOBODY)[1]._replace(width=2, limit=2)
        rolled = Dice(0.8, np.random.default_rng(5))
        found = [made.propose([asked._replace(dice=rolled)])[0] for _ in range(4000)]
    ids = np.array([p.ids for p in found])
    odds = found[0].odds
    assert odds is not None
    assert far(ids[:, 0], odds[0]) < 4
    most = np.bincount(ids[:, 0]).argmax()
    second = next(p.odds for p in found if p.ids[0] == most and p.odds is not None)[1]
    assert far(ids[ids[:, 0] == most, 1], second) < 4


def test_a_selector_stays_with_the_likeliest(pairs: Pairs) -> None:
    draft, target = pairs["dflash2"]
    with rig(draft, target, [0] * len(LENGTHS)) as of:
        for python in (False, True):
            made = drafter(of, draft, python=python)
            greedy, found = (made.propose(anchors(of, t)) for t in (NOBODY, TEMPERATURES))
            assert found == greedy
            assert all(p.odds is None for p in found)


def in_turns(of: Rig, widths: list[int], order: list[int]) -> tuple[Batch, list[list[int]]]:
    """Blocks whose rows take turns, and the batch rows of each."""
    batch = Batch.create(sum(widths))
    rows: list[list[int]] = [[] for _ in widths]
    assert of.draft.mask_token_id is not None
    for slot in range(max(widths)):
        for seq in order:
            if slot < widths[seq]:
                token = of.draft.mask_token_id if slot else 17 + 5 * seq
                start = LENGTHS[seq] + slot
                row = batch.add_tokens([token], start=start, seq=seq, output=ALL_OUTPUT)
                rows[seq].append(row)
    return batch, rows


def in_blocks(of: Rig, widths: list[int], order: list[int]) -> tuple[Batch, list[list[int]]]:
    """The same, one block after the other."""
    batch = Batch.create(sum(widths))
    rows: list[list[int]] = [[] for _ in widths]
    assert of.draft.mask_token_id is not None
    for seq in order:
        tokens = [17 + 5 * seq] + [of.draft.mask_token_id] * (widths[seq] - 1)
        row = batch.add_tokens(tokens, start=LENGTHS[seq], seq=seq, output=ALL_OUTPUT)
        rows[seq] = list(range(row, row + widths[seq]))
    return batch, rows


def noise_of(of: Rig, rows: list[list[int]]) -> FloatArray:
    """Noise that a row has by its block and slot."""
    noise = np.zeros((sum(map(len, rows)), of.context.model.vocab.size), np.float32)
    for seq, block in enumerate(rows):
        for slot, row in enumerate(block):
            noise[row] = np.random.default_rng([seq, slot]).gumbel(size=noise.shape[1])
    return noise


Blocks = list[tuple[list[int], list[float]]]


def drawn(of: Rig, made: tuple[Batch, list[list[int]]]) -> Blocks:
    """Ids and confidences of each block."""
    batch, rows = made
    flags = np.ones(batch.size, np.int8)
    ids, scores = of.context.decode_drawn(batch, noise_of(of, rows), flags, confidence=True)
    assert scores is not None
    return [([ids[i] for i in block], [scores[i] for i in block]) for block in rows]


def alike(found: Blocks, expected: Blocks) -> None:
    for (ids, scores), (their_ids, their_scores) in zip(found, expected, strict=True):
        assert ids == their_ids
        assert scores == pytest.approx(their_scores, abs=1e-5)


EVERY, ORDER = [0, 1, 2, 3, 4, 5], [3, 0, 5, 1, 2, 4]


def test_noise_finds_its_rows_wherever_they_are(pairs: Pairs) -> None:
    with rig(*pairs["rnn"], LENGTHS) as of:
        expected = drawn(of, in_blocks(of, WIDTHS, EVERY))
        assert len({tuple(ids) for ids, _ in expected}) > 1
        alike(drawn(of, in_blocks(of, WIDTHS, ORDER)), expected)
        alike(drawn(of, in_turns(of, WIDTHS, ORDER)), expected)
        equal = drawn(of, in_blocks(of, [5] * 6, EVERY))
    # a cache for every sequence: llama.cpp sorts the rows and computes some of them at a time
    with rig(*pairs["rnn"], LENGTHS, Native(unified=False)) as of:
        for order in (EVERY, ORDER):
            alike(drawn(of, in_blocks(of, [5] * 6, order)), equal)
            alike(drawn(of, in_turns(of, [5] * 6, order)), equal)


def test_a_draft_without_confidences_draws_too(pairs: Pairs) -> None:
    draft, target = pairs["gated"]
    with rig(draft, target, LENGTHS) as of:
        batch, rows = in_turns(of, WIDTHS, EVERY)
        expected = drawn(of, (batch, rows))
        plain, _ = of.context.decode_block(batch, batch.size, confidence=True)
        of.context.configure(feature_width=of.draft.feature_width, causal=of.draft.causal)
        noise = noise_of(of, rows)
        flags = np.ones(batch.size, np.int8)
        for _ in range(2):
            ids, scores = of.context.decode_drawn(batch, noise, flags, confidence=False)
            assert scores is None
            assert [[ids[i] for i in block] for block in rows] == [e[0] for e in expected]
            assert of.context.decode_block(batch, batch.size, confidence=False) == (plain, None)


@pytest.mark.parametrize("name", ["rnn", "tiny-dspark-speculators"])
def test_a_very_long_block_is_drawn(name: str, pairs: Pairs, tmp_path: Path) -> None:
    """The heads with the most nodes a slot: llama.cpp aborts where a graph has not enough."""
    draft, target = pairs[name]
    path = rewrite(draft, tmp_path / "long.gguf", {"dflash.block_size": 150})
    with rig(path, target, [0] * len(LENGTHS)) as of:
        made = drafter(of, path)
        asked = anchors(of, NOBODY)[1]._replace(width=149, limit=149)
        (greedy,) = made.propose([asked])
        (cold,) = made.propose([asked._replace(dice=dice(1e-6, 0))])
        (warm,) = made.propose([asked._replace(dice=dice(1.0, 0))])
        assert len(warm.ids) == 149
        assert cold[:2] == greedy[:2]
        assert warm.ids != greedy.ids
        assert warm.odds is not None
        assert min(warm.odds[range(149), warm.ids]) > 0


def test_logits_that_are_not_numbers_are_refused(pairs: Pairs) -> None:
    draft, target = pairs["tiny-dflash"]
    with rig(draft, target, [0] * len(LENGTHS)) as of:
        made = drafter(of, draft)
        n = 3
        bad = np.full((n, of.draft.feature_width), np.nan, np.float32)
        made.keep(2, 0)
        made.commit(Features(bad, [Span(2, 0, n)]))
        asked = anchors(of, TEMPERATURES)[2]._replace(position=n)
        with pytest.raises(DecodeError, match="not numbers"):
            made.propose([asked])
        assert of.context.length(2) == n
