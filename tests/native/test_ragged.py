"""Blocks of different widths in one pass: each proposes what it proposes alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llamaspec.errors import DecodeError
from llamaspec.runtime.batch import ALL_OUTPUT, NO_OUTPUT, Batch
from tests.checkpoints import write
from tests.checkpoints.shapes import LAYERS
from tests.converted import give_tables, make, reconfigure
from tests.native_rig import Found, Native, Rig, Wanted, rig
from tests.rewrite import rewrite

pytestmark = pytest.mark.native

# context rows of every sequence
LENGTHS = [0, 1, 5, 33, 12, 7, 40, 3]
# together as many rows as make equal blocks: what takes them for such does not fail, it is wrong
WIDTHS = [1, 2, 3, 4, 5, 6, 7, 4]
CONFIDENCE_TOLERANCE = 1e-5
TRAINED = ["tiny-dspark", "tiny-dspark-speculators", "tiny-dflash"]
"""Vanilla; a reduced vocabulary, and the anchor's row read past; no head."""
MINIATURES = ["dflash2", "deepseek4", "specforge"]
"""Convolutions and a selector; a graph of its own; a window."""
WINDOWS = {
    "layer_types": ["sliding_attention"] * LAYERS,
    "sliding_window": 9,
    "use_sliding_window": True,
}
DRAFTS = [*TRAINED, "gated", "rnn", *MINIATURES]


@pytest.fixture(scope="module")
def pairs(
    shared: Path, ggufs: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, Path]]:
    """Draft and target of every name."""
    folder, models = tmp_path_factory.mktemp("ragged"), shared / "models"
    target = ggufs / "tiny-target-f32.gguf"
    found = {name: (ggufs / f"{name}-f32.gguf", target) for name in TRAINED}
    for kind in ("gated", "rnn"):
        made = folder / f"{kind}.gguf"
        make(models / f"tiny-dspark-{kind}", models / "tiny-target", made)
        found[kind] = made, target
    for name in MINIATURES:
        ready = give_tables(write(name, folder / name / "pair"), folder / name)
        if name == "specforge":
            reconfigure(ready.pair.draft, lambda config: config.update(WINDOWS))
        found[name] = ready.convert("draft.gguf"), ready.target
    causal = {"dflash.attention.causal": True}
    found["causal"] = rewrite(found["rnn"][0], folder / "causal.gguf", causal), target
    return found


@pytest.fixture(scope="module", params=DRAFTS)
def one(
    request: pytest.FixtureRequest, pairs: dict[str, tuple[Path, Path]]
) -> Iterator[tuple[Rig, tuple[Path, Path]]]:
    files = pairs[request.param]
    with rig(*files, LENGTHS) as found:
        yield found, files


def blocks(of: Rig, widths: list[int]) -> list[Wanted]:
    """A block of every sequence, none wider than the draft's."""
    most = of.draft.proposals
    return [Wanted(seq, 17 + 5 * seq, min(width, most)) for seq, width in enumerate(widths)]


def alone(of: Rig, wanted: list[Wanted]) -> list[Found]:
    return [of.decode([block])[0] for block in wanted]


def same(found: list[Found], expected: list[Found]) -> None:
    assert [f.ids for f in found] == [e.ids for e in expected]
    for f, e in zip(found, expected, strict=True):
        assert (f.confidence is None) == (e.confidence is None)
        if f.confidence is not None:
            assert f.confidence == pytest.approx(e.confidence, abs=CONFIDENCE_TOLERANCE)


ORDERS = {
    "ascending": list(range(8)),
    "descending": list(reversed(range(8))),
    "mixed": [3, 0, 6, 1, 7, 2, 5, 4],
    "some": [6, 2, 4],
    "two": [0, 6],
}


@pytest.mark.parametrize("order", ORDERS)
def test_blocks_of_different_widths(one: tuple[Rig, tuple[Path, Path]], order: str) -> None:
    of, _ = one
    every = blocks(of, WIDTHS)
    wanted = [every[seq] for seq in ORDERS[order]]
    expected = alone(of, wanted)
    # the blocks themselves tell the widths and the sequences apart
    assert len({tuple(e.ids) for e in expected}) > 1
    same(of.decode(wanted), expected)


def test_widths_that_change_from_pass_to_pass(one: tuple[Rig, tuple[Path, Path]]) -> None:
    of, _ = one
    for shift in range(4):
        wanted = blocks(of, WIDTHS[shift:] + WIDTHS[:shift])
        same(of.decode(wanted), alone(of, wanted))


def test_blocks_of_one_width(one: tuple[Rig, tuple[Path, Path]]) -> None:
    of, _ = one
    for width in (1, 2, 7):
        wanted = blocks(of, [width] * 8)
        same(of.decode(wanted), alone(of, wanted))


@pytest.mark.parametrize("name", ["tiny-dspark", "rnn"])
def test_rows_in_turns(name: str, pairs: dict[str, tuple[Path, Path]]) -> None:
    with rig(*pairs[name], LENGTHS) as of:
        wanted = blocks(of, WIDTHS)
        expected = alone(of, wanted)
        batch = Batch.create(sum(WIDTHS))
        rows: dict[int, list[int]] = {block.seq: [] for block in wanted}
        assert of.draft.mask_token_id is not None
        for slot in range(max(WIDTHS)):
            for seq, anchor, width in wanted:
                if slot < width:
                    token = of.draft.mask_token_id if slot else anchor
                    start = LENGTHS[seq] + slot
                    row = batch.add_tokens([token], start=start, seq=seq, output=ALL_OUTPUT)
                    rows[seq].append(row)
        ids, scores = of.pass_over(batch)
        assert scores is not None
        found = [Found([ids[i] for i in r], [scores[i] for i in r]) for r in rows.values()]
        same(found, expected)


def test_a_cache_a_sequence(one: tuple[Rig, tuple[Path, Path]]) -> None:
    """Equal blocks are right there, of neighbours in one piece or not; others are refused."""
    unified, files = one
    with rig(*files, LENGTHS, Native(unified=False)) as of:
        every = blocks(of, [5] * 8)
        for wanted in (every, [every[0], every[2], every[3], every[6]]):
            same(of.decode(wanted), alone(unified, wanted))
        with pytest.raises(DecodeError, match="the block of sequence 1 is split"):
            of.decode(blocks(of, WIDTHS))
        assert [of.context.length(seq) for seq in range(8)] == LENGTHS
        same(of.decode(every), alone(unified, every))


def test_few_rows_at_a_time(pairs: dict[str, tuple[Path, Path]]) -> None:
    """Only blocks with causal attention can be computed in parts, and only between blocks."""
    with rig(*pairs["causal"], LENGTHS) as of:
        expected = alone(of, blocks(of, WIDTHS))
    with rig(*pairs["causal"], LENGTHS, Native(at_a_time=10)) as of:
        # rows: 1 + 2 + 3 + 4, 5 + 4; 4 + 6, 7 + 3, 5 + 4; 7 + 3, 5 + 2 + 3
        for seqs in ([0, 1, 2, 3, 4, 7], [3, 5, 6, 2, 4, 7], [6, 2, 4, 1]):
            wanted = [blocks(of, WIDTHS)[seq] for seq in seqs]
            same(of.decode(wanted), [expected[seq] for seq in seqs])
        # 1 + 2 + 3 + 4, and 5 + 6 are more than 10
        with pytest.raises(DecodeError, match="the block of sequence 5 is split, 5 of its 6 rows"):
            of.decode(blocks(of, WIDTHS))
        assert [of.context.length(seq) for seq in range(8)] == LENGTHS
        same(alone(of, blocks(of, WIDTHS)), expected)


@pytest.mark.parametrize("name", ["tiny-dspark", "tiny-dflash", "dflash2"])
def test_more_rows_than_are_computed_at_a_time(
    name: str, pairs: dict[str, tuple[Path, Path]]
) -> None:
    """Rows that attend both ways are never computed in parts."""
    with rig(*pairs[name], LENGTHS, Native(at_a_time=10)) as of:
        wanted = blocks(of, WIDTHS)
        expected = alone(of, wanted[:3])
        with pytest.raises(DecodeError, match="attends both ways, n_ubatch is 10"):
            of.decode(wanted[3:])
        assert [of.context.length(seq) for seq in range(8)] == LENGTHS
        same(of.decode(wanted[:3]), expected)


def test_a_lattice_larger_than_a_row(pairs: dict[str, tuple[Path, Path]]) -> None:
    with rig(*pairs["dflash2"], LENGTHS) as of:
        expected = alone(of, blocks(of, WIDTHS))
        batch = Batch.create(8)
        batch.add_tokens([17] * 8, start=LENGTHS[2], seq=2, output=NO_OUTPUT)
        for candidates in (0, 8):  # 8 * 9 elements, of rows of 64
            with pytest.raises(DecodeError, match="no lattice of that size"):
                of.context.decode_lattice(batch, candidates)
        assert of.context.length(2) == LENGTHS[2]
        same(alone(of, blocks(of, WIDTHS)), expected)


def test_blocks_beyond_the_trained_width_are_refused(one: tuple[Rig, tuple[Path, Path]]) -> None:
    of, _ = one
    most = of.draft.block_size
    with pytest.raises(DecodeError, match=f"{most + 1} rows, the draft was made for {most}"):
        of.decode([Wanted(0, 17, 1), Wanted(1, 22, most + 1 - of.draft.first_row)])
    assert [of.context.length(seq) for seq in range(8)] == LENGTHS
