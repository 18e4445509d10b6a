"""Files of random weights: what llama.cpp and our reader make of them, and what they cost."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from llamaspec.bench import synth
from llamaspec.bench.bandwidth import read_bandwidth
from llamaspec.bench.cost import CostPlan, measure_cost, table, weight_bytes
from llamaspec.bench.shapes import SHAPES, TINY, named
from llamaspec.bench.synthetic import ScriptedAcceptance
from llamaspec.draft.block import BlockDrafter
from llamaspec.errors import OptionError
from llamaspec.loading import Pair, load_pair
from llamaspec.options import LoadOptions
from llamaspec.runtime.batch import ALL_OUTPUT, Batch
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.schedule.measure import DraftSide, Grid, measure, quick
from llamaspec.session import Session

pytestmark = pytest.mark.native

OPTIONS = LoadOptions(threads=1, context=256)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("synth")


@pytest.fixture(scope="module")
def pair(folder: Path) -> Iterator[Pair]:
    files = synth.synthesise("tiny", "q8_0", folder)
    loaded = load_pair(files.target, files.draft, OPTIONS)
    yield loaded
    loaded.close()


@pytest.mark.parametrize("quant", synth.QUANTS)
def test_a_pair_of_every_type_decodes_finite_logits(quant: str, folder: Path) -> None:
    files = synth.synthesise("tiny", quant, folder)
    loaded = load_pair(files.target, files.draft, OPTIONS)
    try:
        batch = Batch.create(512)
        ids = loaded.model.vocab.tokenize("What is one and one? Ünïcödé 日本.")
        batch.add_tokens(ids.tolist()[:8], start=0, seq=0, output=ALL_OUTPUT)
        loaded.context.decode(batch)
        logits = loaded.context.logits_view(8).copy()
        assert logits.shape == (8, TINY.vocabulary)
        assert np.isfinite(logits).all()
        assert 0.1 < logits.std() < 100
        # an end token never wins
        assert (logits[:, TINY.mask - 1] == 0).all()
        loaded.context.truncate(0, 0)
        done = Session(loaded).generate("One, two,", max_tokens=40, draft_max=7)
        plain = Session(loaded).generate("One, two,", max_tokens=40, draft_max=0)
        assert done.stats.drafted > 0
        assert (done.stats.completion_tokens, plain.stats.completion_tokens) == (40, 40)
        assert len(set(plain.token_ids)) > 1
        if quant in ("f32", "q8_0"):
            assert done.token_ids == plain.token_ids
    finally:
        loaded.close()


@pytest.mark.parametrize("quant", synth.QUANTS)
@pytest.mark.parametrize("part", ["target", "draft"])
def test_both_readers_see_the_same_file(quant: str, part: str, folder: Path) -> None:
    path = getattr(synth.synthesise("tiny", quant, folder), part)
    theirs = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    with GGUFFile.open(path) as ours:
        assert list(ours.tensors) == list(theirs)
        for name, info in ours.tensors.items():
            other = theirs[name]
            assert info.shape == tuple(reversed(other.shape.tolist()))
            assert info.type == other.tensor_type.name
            assert (ours.raw(name, 0, info.nbytes) == other.data.view(np.uint8).reshape(-1)).all()
        large = [i.type for n, i in ours.tensors.items() if "ffn_" in n and "norm" not in n]
        assert set(large) == {quant.upper()}
        down = ours.array("blk.0.ffn_down.weight")
    # activations keep their size: about one over the square root of what is summed
    assert down.std() == pytest.approx(TINY.feed_forward**-0.5, rel=0.1)
    assert len({row.tobytes() for row in down}) == len(down)


def test_a_file_is_used_again_only_where_it_is_the_same(tmp_path: Path) -> None:
    first = synth.synthesise("tiny", "q4_0", tmp_path)
    before = first.target.read_bytes(), first.target.stat().st_mtime_ns
    again = synth.synthesise("tiny", "q4_0", tmp_path)
    assert (first.fresh, again.fresh) == (True, False)
    assert first.target.stat().st_mtime_ns == before[1]
    first.target.write_bytes(before[0][: len(before[0]) // 2])
    assert synth.synthesise("tiny", "q4_0", tmp_path).fresh
    assert first.target.read_bytes() == before[0]
    assert not list(tmp_path.glob("*.part"))


def test_writing_holds_little_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    rows = synth._Rows.__call__

    def watched(self: synth._Rows, first: int, last: int) -> object:
        nonlocal largest
        piece = rows(self, first, last)
        largest = max(largest, piece.nbytes)
        return piece

    monkeypatch.setattr(synth._Rows, "__call__", watched)
    monkeypatch.setattr("llamaspec.convert.writer.PIECE", 1 << 12)
    path = synth.synthesise("tiny", "f32", tmp_path).target
    assert 0 < largest <= 4 << 12
    assert path.stat().st_size > 1 << 20


def test_what_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"no shape 'qwen4'; the shapes are qwen3-0\.6b"):
        synth.synthesise("qwen4", "q8_0", tmp_path)
    with pytest.raises(OptionError, match="no type 'q9' here"):
        synth.synthesise("tiny", "q9", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="cannot be made"):
        synth.synthesise("tiny", "q8_0", tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "millions", "taps"),
    [
        ("qwen3-0.6b", 596, (1, 7, 13, 19, 25)),
        ("qwen3-1.7b", 1721, (1, 7, 13, 19, 25)),
        ("qwen3-4b", 4022, (1, 9, 17, 25, 33)),
        ("qwen3-8b", 8191, (1, 9, 17, 25, 33)),
        ("qwen3-14b", 14768, (1, 10, 19, 28, 37)),
        ("qwen3-32b", 32762, (1, 16, 31, 46, 61)),
    ],
)
def test_published_shapes_have_their_published_parameters(
    name: str, millions: int, taps: tuple[int, ...]
) -> None:
    shape = named(name)
    parameters = sum(math.prod(size) for size in synth.target_tensors(shape).values())
    assert parameters / 1e6 == pytest.approx(millions, rel=0.001)
    assert shape.taps == taps
    assert len(SHAPES) == 6


def test_synthetic_acceptance_comes_at_its_rates(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, rates = Session(pair), (0.9, 0.7, 0.5, 1.0, 1.0, 0.0, 1.0)
    script = ScriptedAcceptance(rates, pair.model.vocab.ends)
    monkeypatch.setattr(pair.engine, "accept", script)
    texts = []
    for _ in range(2):
        script.seed(1)
        texts.append(session.generate("Once", max_tokens=200, draft_max=7))
    assert texts[0].token_ids == texts[1].token_ids
    lengths = [r.accepted for r in texts[0].rounds]
    assert max(lengths) == 5
    assert sum(n > 0 for n in lengths) / len(lengths) == pytest.approx(0.9, abs=0.12)
    assert 4 not in lengths[:-1]


def test_measuring_gives_every_size_and_leaves_no_trace(pair: Pair) -> None:
    drafter = pair.drafter
    assert isinstance(drafter, BlockDrafter)
    before = Session(pair).generate("One, two,", max_tokens=20).token_ids
    grid = Grid((1, 2, 8), (16, 64), repeats=2)
    found = measure(pair.context, DraftSide(drafter.context, drafter.layout), grid, (("a", "b"),))
    assert (found.verify.depths, found.verify.sizes) == ((16, 64), (1, 2, 8))
    assert found.draft is not None
    assert found.draft.sizes == (1, 7)
    assert found.injection is not None
    assert found.injection.sizes == (1, 2, 8)
    assert found.settings == (("a", "b"),)
    assert (pair.context.length(0), drafter.context.length(0)) == (0, 0)
    # the caches are empty, whatever text a slot remembers
    again = Session(pair).generate("One, two,", max_tokens=20, cache_prompt=False)
    assert again.token_ids == before


def test_a_spent_budget_still_measures_the_ends(pair: Pair) -> None:
    grid = quick(7, budget_s=0.0)
    assert grid.rows == (1, 8, 2, 4, 3, 5, 6, 7)
    found = measure(pair.context, None, grid)
    assert found.verify.sizes == (1, 8)
    assert (found.draft, found.injection) == (None, None)
    assert quick(1).rows == (1, 2)
    assert quick(40).rows[:5] == (1, 41, 2, 21, 11)
    assert set(quick(40).rows) == {*range(1, 17), 21, 41}


def test_cost_beside_its_floor(folder: Path) -> None:
    files = synth.synthesise("tiny", "q8_0", folder)
    plan = CostPlan(
        str(files.target), str(files.draft), rows=(1, 9), depths=(8,), repeats=1, options=OPTIONS
    )
    found = measure_cost(plan)
    assert found.curve.verify.sizes == (1, 9)
    assert found.bandwidth > 0
    text = table(found)
    assert "GB/s" in text[0]
    assert any("x floor" in line for line in text)


def test_the_weights_that_a_pass_reads(folder: Path) -> None:
    files = synth.synthesise("tiny", "q8_0", folder)
    target, draft = weight_bytes(files.target, files.draft)
    with GGUFFile.open(files.target) as file:
        sizes = {name: info.nbytes for name, info in file.tensors.items()}
    # tied: the embedding is the head, read whole
    assert target == sum(sizes.values())
    with GGUFFile.open(files.draft) as file:
        own = {name: info.nbytes for name, info in file.tensors.items()}
    lookup = own["markov_w1.weight"]
    assert draft == sum(own.values()) - lookup + sizes["token_embd.weight"]


def test_bandwidth_is_a_rate() -> None:
    assert read_bandwidth(2, 1 << 24) > 1e8
