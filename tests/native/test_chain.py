"""The Markov head in native code against its definition in NumPy: heads of every type, tokens that
come again and again, ties, draws, and rows wherever they lie.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import pytest

from llamaspec.draft.chance import Noise
from llamaspec.draft.heads import MarkovHead, load_d2t, load_head
from llamaspec.runtime import chain as chain_module
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import Batch
from llamaspec.runtime.chain import Chain, ChainShape
from llamaspec.runtime.gguf_file import GGUFFile
from tests.native.test_ragged import pairs as pairs
from tests.native.test_sampled_drafts import in_blocks, in_turns, noise_of
from tests.native_rig import Rig, rig
from tests.rewrite import rewrite, tensor

pytestmark = pytest.mark.native

LENGTHS = [0, 5, 33, 12, 7, 20]
WIDTHS = [3, 7, 2, 6, 5, 7]
ORDER = [3, 0, 5, 1, 2, 4]
NAMES = ["tiny-dspark", "tiny-dspark-speculators"]
TYPES = ["F32", "F16", "BF16", "Q8_0"]
Pairs = dict[str, tuple[Path, Path]]
Blocks = list[tuple[list[int], list[float]]]


def typed(source: Path, path: Path, kind: str) -> Path:
    """A copy of a draft whose W2 is of another type."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, "dflash")
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        item = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], item)
    to = gguf.GGMLQuantizationType[kind]
    for found in reader.tensors:
        if found.name == "markov_w2.weight":
            values = gguf.dequantize(found.data, found.tensor_type)
            writer.add_tensor(found.name, gguf.quantize(values, to), raw_dtype=to)
        else:
            writer.add_tensor(found.name, found.data, raw_dtype=found.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@contextmanager
def chained(files: tuple[Path, Path]) -> Iterator[tuple[Rig, MarkovHead]]:
    """A rig whose context chooses by a chain, and the head in NumPy."""
    draft, target = files
    with rig(draft, target, LENGTHS) as of, GGUFFile.open(draft) as file:
        head, d2t = load_head(file), load_d2t(file)
        assert isinstance(head, MarkovHead)
        made = Chain.create(draft, ChainShape(of.draft.first_row, threads=2, d2t=d2t))
        assert isinstance(made, Chain), made
        of.context.configure(
            feature_width=of.draft.feature_width, causal=of.draft.causal, base=True, chain=made
        )
        yield of, head


def found(of: Rig, made: tuple[Batch, list[list[int]]]) -> Blocks:
    """Ids and confidences of the rows that propose, of each block."""
    batch, rows = made
    wants = of.draft.has_confidence_head
    ids, scores = of.context.decode_block(batch, batch.size, confidence=wants)
    first = of.draft.first_row
    return [
        ([ids[i] for i in block[first:]], [scores[i] for i in block[first:]] if scores else [])
        for block in rows
    ]


def expected(
    of: Rig, head: MarkovHead, made: tuple[Batch, list[list[int]]], noise: FloatArray | None = None
) -> tuple[Blocks, list[FloatArray]]:
    """The same by NumPy from what the graph gives, and the logits with the head's bias."""
    batch, rows = made
    of.context.decode(batch)
    base = of.context.logits_view(batch.size)[:, : of.draft.draft_vocabulary].copy()
    hidden = of.context.hidden_view(batch.size).copy()
    for seq, start in enumerate(of.lengths):
        of.context.truncate(seq, start)
    chosen, logits = [], []
    for seq, block in enumerate(rows):
        own = block[of.draft.first_row :]
        rolled = None
        if noise is not None:
            columns = slice(of.draft.draft_vocabulary) if head.d2t is None else head.d2t
            rolled = Noise(1.0, noise[own][:, columns])
        chain = head.chain(base[own], hidden[own], 17 + 5 * seq, rolled)
        scores = [] if chain.confidence is None else chain.confidence.tolist()
        chosen.append((chain.ids.tolist(), scores))
        before = [17 + 5 * seq, *chain.ids.tolist()[:-1]]
        logits.append(base[own] + head.w1[before] @ head.w2.T)
    return chosen, logits


def alike(ours: Blocks, theirs: Blocks) -> None:
    for (ids, scores), (their_ids, their_scores) in zip(ours, theirs, strict=True):
        assert ids == their_ids
        assert scores == pytest.approx(their_scores, abs=1e-5)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", NAMES)
def test_a_chain_chooses_what_numpy_chooses(
    name: str, kind: str, pairs: Pairs, tmp_path: Path
) -> None:
    draft = typed(pairs[name][0], tmp_path / "draft.gguf", kind)
    with chained((draft, pairs[name][1])) as (of, head):
        blocks = in_blocks(of, WIDTHS, [*range(6)])
        theirs, _ = expected(of, head, blocks)
        assert len({tuple(ids) for ids, _ in theirs}) > 1
        # the second time every token is known
        for _ in range(2):
            alike(found(of, blocks), theirs)
        alike(found(of, in_turns(of, WIDTHS, ORDER)), theirs)


@pytest.mark.parametrize("scale", [0.0, 0.3, 30.0], ids=["no-bias", "a-little", "bias-alone"])
def test_whatever_weighs_more_the_largest_sum_wins(
    scale: float, pairs: Pairs, tmp_path: Path
) -> None:
    """Without a bias all of them tie; with one that decides alone no base logit helps to prune."""
    source, target = pairs["tiny-dspark"]
    noise = np.random.default_rng(5).normal(size=tensor(source, "markov_w2.weight").shape)
    w2 = (scale * noise).astype(np.float32)
    draft = rewrite(source, tmp_path / "draft.gguf", {}, {"markov_w2.weight": w2})
    with chained((draft, target)) as (of, head):
        for order in ([*range(6)], ORDER, [*range(6)]):
            blocks = in_blocks(of, WIDTHS, order)
            alike(found(of, blocks), expected(of, head, blocks)[0])


def test_of_equal_logits_the_first_is_taken(pairs: Pairs, tmp_path: Path) -> None:
    source, target = pairs["tiny-dspark"]
    names = "markov_w2.weight", "output_norm.weight"
    zeros = {name: np.zeros_like(tensor(source, name)) for name in names}
    draft = rewrite(source, tmp_path / "draft.gguf", {}, zeros)
    with chained((draft, target)) as (of, _):
        for _ in range(2):
            assert all(ids == [0] * len(ids) for ids, _ in found(of, in_blocks(of, WIDTHS, ORDER)))


def test_what_is_forgotten_is_looked_up_again(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_module, "MOST_KNOWN", 8)
    with chained(pairs["tiny-dspark"]) as (of, head):
        blocks = in_blocks(of, WIDTHS, ORDER)
        theirs, _ = expected(of, head, blocks)
        for _ in range(3):
            alike(found(of, blocks), theirs)


@pytest.mark.parametrize("name", NAMES)
def test_a_chain_draws_what_numpy_draws(name: str, pairs: Pairs) -> None:
    with chained(pairs[name]) as (of, head):
        blocks = batch, rows = in_turns(of, WIDTHS, ORDER)
        noise = noise_of(of, rows)
        theirs, logits = expected(of, head, blocks, noise)
        greedy = found(of, blocks)
        wants = of.draft.has_confidence_head
        flags = np.ones(batch.size, np.int8)
        for _ in range(2):
            ids, scores = of.context.decode_drawn(batch, noise, flags, confidence=wants)
            first = of.draft.first_row
            drawn = [
                ([ids[i] for i in own[first:]], [scores[i] for i in own[first:]] if scores else [])
                for own in rows
            ]
            alike(drawn, theirs)
            assert drawn != greedy
            given = of.context.logits_view(batch.size)
            for own, sums in zip(rows, logits, strict=True):
                full = np.full((len(sums), given.shape[1]), -np.inf, np.float32)
                full[:, slice(None) if head.d2t is None else head.d2t] = sums
                assert np.allclose(given[own[first:]], full, atol=1e-3)
        # noise leaves nothing behind
        alike(found(of, blocks), greedy)
