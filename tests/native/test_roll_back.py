"""Targets that keep a recurrent state, and those with a sliding window: whatever is accepted of
blocks of any width, the text is plain decoding's.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import llamaspec
from llamaspec.draft.drafter import Anchor, Proposal
from llamaspec.engine.anew import Anew
from llamaspec.engine.doubt import Doubt
from llamaspec.engine.ending import Ending
from llamaspec.engine.replay import plain_gap
from llamaspec.engine.sequence import Request, Sequence
from llamaspec.errors import DecodeError, IncompatibleDraftError, OptionError
from llamaspec.ffi import lib
from llamaspec.loading import LOOKUP, DraftSource, Pair, _target_context, load_pair
from llamaspec.options import LoadOptions
from llamaspec.runtime import backend
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import ALL_OUTPUT, NO_OUTPUT, Batch
from llamaspec.runtime.context import TargetContext
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.model import Model
from llamaspec.text.detokenize import Pieces
from llamaspec.verify.probe import measure
from tests.decoding import decode
from tests.miniature_targets import LAYERS, ROLLING, STUCK, VOCABULARY, write_bigram_draft
from tests.native.layer_probe import Probe, compile_probe
from tests.reference.gemma3 import Gemma3
from tests.rewrite import rewrite
from tests.scripted import WIDEST, ScriptedDrafter

pytestmark = pytest.mark.native

OPTIONS = LoadOptions(flash_attention="on", threads=1, context=256)
# sums in the order of cells differ least so: texts of several sequences are those of single ones
STEADY = replace(OPTIONS, flash_attention="off", cache_type="f32")
PROMPT, TOKENS = 12, 180
SLIDING = ("cohere2", "exaone4", "gemma3", "gemma4", "gpt-oss", "granite_swa", "olmo2", "phi3")
SLOTS = {"deepseek4": 3, "gemma3": 3, "kimi-k3": 3, "lfm2": 2, "nemotron_h": 3, "qwen35": 2}
PROMPTS = np.random.default_rng(3).integers(3, VOCABULARY, (8, PROMPT), np.int32)
Draw = Callable[[int, int], int]


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return compile_probe(tmp_path_factory.mktemp("recurrent"))


@contextmanager
def loaded(path: Path, draft: DraftSource, options: LoadOptions = OPTIONS) -> Iterator[Pair]:
    pair = load_pair(path, draft, options)
    try:
        yield pair
    finally:
        pair.close()


def script(pair: Pair, drafter: ScriptedDrafter) -> None:
    """Have a pair that was loaded with lookup draft by a script instead."""
    pair.engine._drafter = drafter


def mixed(texts: list[list[int]], seed: int) -> ScriptedDrafter:
    """Blocks of every width, right by every length, in no order."""
    choose = random.Random(seed)
    widths = [choose.randint(0, WIDEST) for _ in range(61)]
    return ScriptedDrafter(texts, widths, [choose.randint(0, WIDEST) for _ in range(67)])


def request(index: int, tokens: int, draft_max: int, draw: Draw | None = None) -> Request:
    ending = Ending(pieces=Pieces(lambda _: b""), ends=frozenset(), limit=tokens)
    return Request(PROMPTS[index], tokens, draft_max, ending, draw)


def run(pair: Pair, wanted: Request) -> Sequence:
    sequence = pair.engine.admit(wanted)
    try:
        while sequence.finish_reason is None:
            pair.engine.step()
    finally:
        pair.engine.release(wanted)
    return sequence


def drawing(pair: Pair, seed: int) -> Draw:
    """Draws at temperature 1: the largest of logits with Gumbel noise of the token's index."""

    def draw(row: int, index: int) -> int:
        noise = np.random.default_rng((seed, index)).gumbel(size=VOCABULARY)
        # of a prompt only the last row is put out
        row = row if index else 0
        return int((pair.context.logits_view(row + 1)[row] + noise).argmax())

    return draw


@pytest.mark.parametrize("arch", sorted(ROLLING | {*SLIDING}))
def test_every_accepted_length_in_any_order(arch: str, probe: Probe) -> None:
    path = probe.model(arch)
    with loaded(path, None) as plain:
        greedy = [decode(plain, PROMPTS[i], TOKENS, 0).text for i in range(2)]
        drawn = [run(plain, request(i, TOKENS, 0, drawing(plain, i))).text for i in range(2)]
        assert plain.context.snapshots == 0
    # a text that goes round in circles would be right with a wrong state too
    assert all(len({*text[-60:]}) > 5 for text in drawn)
    with loaded(path, LOOKUP) as pair:
        assert pair.context.snapshots == (7 if arch in ROLLING else 0)
        found = set()
        for i in range(2):
            script(pair, mixed(greedy, seed=i))
            done = run(pair, request(i, TOKENS, WIDEST))
            assert done.text == greedy[i]
            script(pair, mixed(drawn, seed=i))
            sampled = run(pair, request(i, TOKENS, WIDEST, drawing(pair, i)))
            assert sampled.text == drawn[i]
            assert not done.lost
            found |= {(r.accepted, len(r.draft)) for r in done.rounds + sampled.rounds}
    assert found == {(a, w) for w in range(WIDEST + 1) for a in range(w + 1)}


@pytest.mark.parametrize(("arch", "slots"), [*SLOTS.items(), ("lfm2", 3), ("qwen35", 4)])
def test_several_sequences_that_come_and_go(arch: str, slots: int, probe: Probe) -> None:
    path, lengths = probe.model(arch), [60, 25, 90, 40, 70, 33, 80, 50]
    with loaded(path, None, STEADY) as plain:
        texts = [decode(plain, PROMPTS[i], n, 0).text for i, n in enumerate(lengths)]
    choose = random.Random(slots)
    waiting = list(enumerate(lengths))
    choose.shuffle(waiting)
    active: list[tuple[int, Sequence]] = []
    with loaded(path, LOOKUP, replace(STEADY, max_sequences=slots)) as pair:
        script(pair, mixed(texts, slots))
        while waiting or active:
            while waiting and len(active) < slots and choose.random() < 0.7:
                i, n = waiting.pop()
                # one in four is decoded plainly beside the others
                active.append((i, pair.engine.admit(request(i, n, WIDEST if i % 4 else 0))))
            pair.engine.step()
            for i, sequence in [each for each in active if each[1].finish_reason]:
                assert sequence.text == texts[i]
                pair.engine.release(sequence.request)
                active.remove((i, sequence))


def test_blocks_of_unequal_widths_are_not_one_pass(probe: Probe) -> None:
    """llama.cpp would split such a pass by sequence, and to bring the states of the second part
    together move one of the first part away from its snapshots.
    """
    path, n = probe.model("lfm2"), 40
    with loaded(path, None, STEADY) as plain:
        texts = [decode(plain, PROMPTS[i], n, 0).text for i in range(4)]
    with loaded(path, LOOKUP, replace(STEADY, max_sequences=3)) as pair:
        first = request(3, n, WIDEST)
        pair.engine.admit(first)
        active = [pair.engine.admit(request(0, n, WIDEST))]
        # the state of the second sequence now comes before that of the first
        pair.engine.release(first)
        active += [pair.engine.admit(request(i, n, WIDEST)) for i in (1, 2)]
        drafter = ScriptedDrafter(texts)
        # by slot: a short block that fails, and long ones beside it
        widths, right = {active[0].slot: 3}, {active[0].slot: 0}
        script(pair, drafter)
        original = drafter._next

        def propose(anchor: Anchor) -> Proposal:
            drafter.widths = (widths.get(anchor.seq, WIDEST),)
            drafter.right = (right.get(anchor.seq, WIDEST),)
            return original(anchor)

        drafter._next = propose  # type: ignore[method-assign]
        while any(s.finish_reason is None for s in active):
            pair.engine.step()
        assert [s.text for s in active] == texts[:3]


def logits_after(context: TargetContext, ids: list[int], start: int) -> FloatArray:
    """Of a single row after a text of which the first `start` positions are there."""
    batch = Batch.create(64)
    if len(ids) - 1 > start:
        batch.add_tokens(ids[start:-1], start=start, seq=0, output=NO_OUTPUT)
        context.decode(batch)
    batch.clear()
    batch.add_tokens(ids[-1:], start=len(ids) - 1, seq=0, output=ALL_OUTPUT)
    context.decode(batch)
    return context.logits_view(1).copy()


@pytest.mark.parametrize("arch", sorted(ROLLING))
def test_how_far_a_state_goes_back(arch: str, probe: Probe) -> None:
    ids = [*PROMPTS[0].tolist(), *PROMPTS[1].tolist()]
    rows, held, batch = 4, len(ids) - 5, Batch.create(64)
    with loaded(probe.model(arch), LOOKUP) as pair:
        context = pair.context

        def advance() -> None:
            context.truncate(0, 0)
            logits_after(context, ids[:held], 0)
            batch.clear()
            batch.add_tokens([7] * rows, start=held, seq=0, output=ALL_OUTPUT)
            context.decode(batch)

        for kept in range(1, rows + 1):
            text = [*ids[:held], *[7] * kept, 9]
            advance()
            assert context.truncate(0, held + kept)
            found = logits_after(context, text, held + kept)
            context.truncate(0, 0)
            batch.clear()
            batch.add_tokens(text[:-1], start=0, seq=0, output=NO_OUTPUT)
            context.decode(batch)
            assert np.allclose(found, logits_after(context, text, len(text) - 1), atol=0.05)
        # once a pass
        advance()
        assert context.truncate(0, held + 3)
        assert context.truncate(0, held + 3)
        assert not context.truncate(0, held + 2)
        assert context.length(0) == 0
        with pytest.raises(DecodeError, match=f"no state to go on from at position {held + 2}"):
            logits_after(context, [*ids[:held], 7, 7, 9], held + 2)
        # never behind the pass, to which llama.cpp agrees; what it goes on from is another state,
        # but for deepseek4, whose states tell positions apart
        right = logits_after(context, ids[: held + 1], 0)
        advance()
        assert lib.llama_memory_seq_rm(context._memory, 0, held, -1)
        context._reach[0] = (held, held)
        found = logits_after(context, ids[: held + 1], held)
        assert np.allclose(right, found, atol=0.05) == (arch == "deepseek4")
        advance()
        assert not context.truncate(0, held)


class Interrupter:
    """Makes a method be interrupted every so often, before or after it has done its work."""

    def __init__(self, every: int, most: int, *, after: bool) -> None:
        self.left, self.after, self.most, self.every = every, after, most, every

    def around(self, method: Callable[..., object]) -> Callable[..., object]:
        def replaced(*arguments: object) -> object:
            self.left -= 1
            due = self.left == 0 and self.most > 0
            if due:
                self.left, self.most = self.every, self.most - 1
                if not self.after:
                    raise KeyboardInterrupt
            result = method(*arguments)
            if due:
                raise KeyboardInterrupt
            return result

        return replaced


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", ["_compute", "decode_choose", "truncate"])
@pytest.mark.parametrize("arch", ["lfm2", "qwen35", "mamba"])
def test_ctrl_c_leaves_no_wrong_state(
    arch: str, name: str, after: bool, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, n = probe.model(arch), 50
    with loaded(path, None, STEADY) as plain:
        texts = [decode(plain, PROMPTS[i], n, 0).text for i in range(2)]
    source: DraftSource = LOOKUP if arch in ROLLING else None
    with loaded(path, source, replace(STEADY, max_sequences=2)) as pair:
        if source:
            script(pair, mixed(texts, seed=5))
        active = [pair.engine.admit(request(i, n, WIDEST)) for i in range(2)]
        interrupter, interrupted = Interrupter(5, 6, after=after), 0
        method = getattr(TargetContext, name)
        monkeypatch.setattr(TargetContext, name, interrupter.around(method))
        while any(s.finish_reason is None for s in active):
            try:
                pair.engine.step()
            except KeyboardInterrupt:
                interrupted += 1
        # nothing is dropped of a plain text
        assert interrupted >= 3 or (arch, name) == ("mamba", "truncate")
        assert [s.text for s in active] == texts


@pytest.mark.parametrize("arch", sorted(STUCK))
def test_a_state_without_snapshots_is_refused_with_a_draft(arch: str, probe: Probe) -> None:
    path = probe.model(arch)
    with pytest.raises(IncompatibleDraftError, match=f"{arch}.gguf: keeps recurrent state"):
        load_pair(path, LOOKUP, OPTIONS)
    with loaded(path, None) as plain:
        assert len(decode(plain, PROMPTS[0], 8, 0).tokens) == 8


@pytest.mark.parametrize("arch", ["lfm2", "mamba", "nemotron_h", "qwen35", "qwen35moe"])
def test_the_probe_measures_a_recurrent_target(arch: str, probe: Probe) -> None:
    with loaded(probe.model(arch), LOOKUP if arch in ROLLING else None) as pair:
        found = measure(pair.context, {2, 5, 8})
        assert found.bitwise
        # plain decoding has no snapshots, so that a single row with them is compared as well
        assert found.widths == ((1, 2, 5, 8) if arch in ROLLING else (2, 5, 8))


@pytest.mark.parametrize("arch", ["lfm2", "nemotron_h", "qwen35"])
def test_exact_mode(
    arch: str, probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMASPEC_CACHE", str(tmp_path))
    path, options, rebuilt = probe.model(arch), replace(OPTIONS, batch=32), []
    prompts = [PROMPTS[:4].reshape(-1), PROMPTS[4:].reshape(-1)]
    with loaded(path, None, options) as plain:
        texts = [decode(plain, prompt, 40, 0).text for prompt in prompts]
    rebuild = Anew.rebuild

    def note(anew: Anew, sequence: Sequence, length: int, *, single: bool) -> None:
        rebuilt.append(length)
        rebuild(anew, sequence, length, single=single)

    monkeypatch.setattr(Anew, "rebuild", note)
    last = 5 if arch == "nemotron_h" else LAYERS
    draft = write_bigram_draft(tmp_path / "draft.gguf", (0, 2, last), texts[0])
    with loaded(path, draft, replace(options, exact=True)) as pair:
        assert pair.engine.prompts.end_twice
        assert pair.measure_exactness().bitwise
        done = [decode(pair, prompt, 40, 5) for prompt in prompts]
        assert [each.text for each in done] == texts
        assert sum(r.accepted for each in done for r in each.rounds) > 0
        # the end of a prompt is decoded twice, for which the part before it is decoded again
        assert rebuilt == [32, 32]
        # as on a device whose blocks round differently: near ties are decided by single rows
        pair.engine.doubt = Doubt(0.3, patience=2)
        done = [decode(pair, prompt, 40, 5) for prompt in prompts]
        assert [each.text for each in done] == texts
        assert sum(r.replayed for each in done for r in each.rounds) > 0
        assert len(rebuilt) > 4


@pytest.mark.parametrize("arch", ["gemma3", "lfm2", "nemotron_h", "qwen35"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_session(arch: str, temperature: float, probe: Probe, tmp_path: Path) -> None:
    path, found = probe.model(arch), []
    draft = write_bigram_draft(tmp_path / "draft.gguf", (1, LAYERS), PROMPTS[0].tolist())
    for source in (None, "lookup", draft):
        with llamaspec.load(path, source, options=OPTIONS) as session:
            done = [
                session.generate(prompt.tolist(), max_tokens=60, temperature=temperature, seed=4)
                for prompt in PROMPTS[:2]
            ]
            found.append([each.token_ids for each in done])
    assert found[0] == found[1] == found[2]
    assert len({*map(tuple, found[0])}) == 2


def test_a_sliding_window_against_numpy(probe: Probe, tmp_path: Path) -> None:
    """What enters the layers, of rows that were computed in blocks between rejected ones, far
    beyond the window of 9.
    """
    length, path = 120, tmp_path / "gemma3.gguf"
    # a loader asks for biases and scales too, which no Gemma 3 has
    with GGUFFile.open(probe.model("gemma3")) as file:
        extra = [name for name in file.tensors if not name.endswith(".weight")]
    rewrite(probe.model("gemma3"), path, tensors=dict.fromkeys(extra))
    reference = Gemma3.open(path)
    ids = np.random.default_rng(8).integers(3, VOCABULARY, length, np.int32)
    wanted = reference.layer_inputs(ids)
    assert reference.window == 9
    taps = tuple(range(reference.layers + 1))
    choose, batch, found = random.Random(2), Batch.create(64), []
    with loaded(path, LOOKUP, STEADY) as pair:
        pair.context.set_taps(taps)
        pair.context.publish(True)
        start = 0
        while start < length:
            right = min(choose.randint(1, WIDEST + 1), length - start)
            block = [*ids[start : start + right].tolist(), *[5] * choose.randint(0, 2)]
            batch.clear()
            batch.add_tokens(block, start=start, seq=0, output=ALL_OUTPUT)
            pair.context.decode(batch)
            found.append(pair.context.features_view(list(range(right))).copy())
            start += right
            assert pair.context.truncate(0, start)
    rows = np.concatenate(found).reshape(length, len(taps), -1).swapaxes(0, 1)
    scale = np.abs(wanted).max(axis=(1, 2), keepdims=True)
    assert np.abs((rows - wanted) / scale).max() < 0.002
    # a window of one row more is another model
    wider = replace(reference, window=10).layer_inputs(ids)
    assert np.abs((rows - wider) / scale).max() > 0.05


@pytest.mark.parametrize(
    ("arch", "floats"),
    [
        # a convolution's 3 rows of x, B and C, and a matrix of 16 rows
        ("qwen35", 4 * (3 * (64 + 2 * 2 * 16) + 64 * 16)),
        # 2 rows of the width
        ("lfm2", 4 * 2 * 64),
        # of every head 3 rows each of q, k and v, and a matrix; 4 heads for want of their number
        ("kimi-k3", 4 * 4 * (3 * 3 * 16 + 16 * 16)),
        ("gemma3", 0),
    ],
)
def test_snapshots_count_as_memory(
    arch: str, floats: int, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, (device, *_) = probe.model(arch), backend.devices()
    with loaded(path, None) as plain:
        size = plain.model.state_bytes
        cache = 256 * (48 + plain.model.n_layer * plain.model.kv_width * 2)
        assert size == 4 * floats
    total = 0
    monkeypatch.setattr(backend, "devices", lambda: [replace(device, total_bytes=total)])
    drafts: tuple[DraftSource, ...] = (None, LOOKUP)
    for states, draft in zip((1, 8), drafts, strict=True):
        total = cache + states * size
        load_pair(path, draft, OPTIONS).close()
        total -= 1
        with pytest.raises(OptionError, match="choose a smaller one"):
            load_pair(path, draft, OPTIONS)


def test_a_pass_has_room_for_more_rows_than_a_state_goes_back(probe: Probe) -> None:
    """llama.cpp would end the process otherwise, with blocks as long as a batch."""
    model, batch = Model.load(probe.model("lfm2")), Batch.create(64)
    context = _target_context(model, 128, 40, replace(OPTIONS, batch=32))
    assert context.snapshots == 40
    batch.add_tokens([5] * 41, start=0, seq=0, output=ALL_OUTPUT)
    context.decode(batch)
    assert context.truncate(0, 1)
    batch.clear()
    batch.add_tokens([5] * 41, start=1, seq=0, output=ALL_OUTPUT)
    context.decode(batch)
    assert context.truncate(0, 2)
    model.close()


@pytest.mark.parametrize("arch", ["lfm2", "qwen35"])
def test_how_close_a_choice_was(arch: str, probe: Probe) -> None:
    gaps = []
    for draft in (None, LOOKUP):
        with loaded(probe.model(arch), draft) as pair:
            tokens = decode(pair, PROMPTS[0], 30, 5).tokens
            gaps.append(plain_gap(pair.engine, pair.context, PROMPTS[0], tokens[:20]))
    assert gaps[0] == gaps[1] > 0
