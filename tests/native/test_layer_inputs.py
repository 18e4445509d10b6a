"""Patch 0005: the layer inputs that a context publishes are those that its graph computes with, of
every architecture of which a miniature can be made; what cannot be published is said, and no abort.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from llamaspec.errors import IncompatibleDraftError
from llamaspec.ffi import lib
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import ALL_OUTPUT, LAST_OUTPUT, NO_OUTPUT, Batch
from llamaspec.runtime.context import ContextShape, TargetContext
from llamaspec.runtime.model import Model
from llamaspec.runtime.pairing import NO_LAYER_INPUT_ARCHITECTURES
from tests.miniature_targets import MERGED, STREAMS, TARGETS, WIDTH
from tests.native.layer_probe import Probe, compile_probe

pytestmark = pytest.mark.native

IDS = [5, 9, 33, 2, 60, 17, 41, 8]
SHAPE = ContextShape(256, 256, 2, 32, 1, "auto", "f16")
ABLE = sorted(TARGETS - STREAMS - MERGED)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return compile_probe(tmp_path_factory.mktemp("miniatures"))


@contextmanager
def loaded(path: Path) -> Iterator[Model]:
    model = Model.load(path)
    try:
        yield model
    finally:
        model.close()


def passes(model: Model, taps: tuple[int, ...]) -> list[tuple[FloatArray, FloatArray]]:
    """A prompt of which the last row's logits are wanted, then a single token; of both the logits,
    and the features [taps, rows, width].
    """
    context, batch = TargetContext.create(model, SHAPE), Batch.create(256)
    context.set_taps(taps)
    context.publish(True)
    found = []
    for start, ids in ((0, IDS[:-1]), (len(IDS) - 1, IDS[-1:])):
        batch.clear()
        batch.add_tokens(ids, start=start, seq=0, output=LAST_OUTPUT)
        context.decode(batch)
        features = np.zeros((len(ids), len(taps) * model.n_embd), np.float32)
        if taps:
            features[:] = context.features_view(list(range(len(ids))))
        by_tap = features.reshape(len(ids), len(taps), model.n_embd).swapaxes(0, 1)
        found.append((context.logits_view(1).copy(), by_tap))
    context.close()
    return found


@pytest.mark.parametrize("arch", ABLE)
def test_published_rows_are_what_the_layers_read(arch: str, probe: Probe) -> None:
    path = probe.model(arch)
    with loaded(path) as model:
        layers = model.n_layer
        seen = probe.watch(path, IDS, (layers, len(IDS) - 1, WIDTH))
        plain = passes(model, ())
        for taps in ((0, layers // 2, layers - 1, layers), (layers,), (0,)):
            for (logits, features), (alone, _), inputs in zip(
                passes(model, taps), plain, seen, strict=True
            ):
                for tap, rows in zip(taps, features, strict=True):
                    assert np.array_equal(rows, inputs[tap]), tap
                assert np.array_equal(logits, alone), taps
        # a model whose layers did nothing, or of which nothing was computed, would pass as well
        assert not np.isnan(seen[0]).any()
        assert all(np.ptp(rows, axis=0).any() for rows in seen[0])
        assert not any(np.array_equal(a, b) for a, b in zip(seen[0][1:], seen[0], strict=False))
        assert np.isfinite(plain[0][0]).all()


@pytest.mark.parametrize("arch", sorted(STREAMS))
def test_what_has_no_rows_to_read_is_said(arch: str, probe: Probe) -> None:
    assert arch in NO_LAYER_INPUT_ARCHITECTURES
    with loaded(probe.model(arch)) as model:
        plain = passes(model, ())
        context = TargetContext.create(model, SHAPE)
        for tap in range(model.n_layer + 1):
            with pytest.raises(IncompatibleDraftError, match=f"input of layer {tap}, and {arch}"):
                context.set_taps((tap,))
        # and having asked changes nothing
        batch = Batch.create(256)
        batch.add_tokens(IDS[:-1], start=0, seq=0, output=LAST_OUTPUT)
        context.decode(batch)
        assert np.array_equal(context.logits_view(1), plain[0][0])


def test_layers_that_are_not_there(probe: Probe) -> None:
    with loaded(probe.model("qwen2")) as model:
        context = TargetContext.create(model, SHAPE)
        for tap in (-1, model.n_layer + 1, 2**30):
            assert lib.ls_has_layer_input(context.ptr, tap) == 0
            with pytest.raises(IncompatibleDraftError, match="of 4 layers gives none"):
                context.set_taps((1, tap))


@pytest.mark.parametrize("arch", ["gemma3", "llama", "mimo2", "qwen2"])
def test_the_last_output_beside_rows_that_are_not_all_wanted(arch: str, probe: Probe) -> None:
    """Two sequences, outputs of some rows in between, with the last tap on, off and on again."""
    with loaded(probe.model(arch)) as model:
        context, batch = TargetContext.create(model, SHAPE), Batch.create(256)
        context.set_taps((model.n_layer,))
        batch.add_tokens(IDS, start=0, seq=0, output=LAST_OUTPUT)
        batch.add_tokens(IDS[3:], start=0, seq=1, output=NO_OUTPUT)
        batch.add_tokens(IDS[:2], start=5, seq=1, output=ALL_OUTPUT)
        count, outputs, found = batch.size, [7, 13, 14], []
        for wanted in (True, False, True):
            context.publish(wanted)
            for seq in (0, 1):
                context.truncate(seq, 0)
            context.decode(batch)
            found.append(context.logits_view(len(outputs)).copy())
        features = context.features_view(list(range(count))).copy()
        assert np.array_equal(found[0], found[1])
        assert np.array_equal(found[2], found[1])
        # a row of the last output is that of the same token of the same text
        context.truncate(0, 0)
        batch.clear()
        batch.add_tokens(IDS, start=0, seq=0, output=ALL_OUTPUT)
        context.decode(batch)
        assert np.array_equal(context.features_view(list(range(8))), features[:8])
        assert np.array_equal(context.logits_view(8)[7], found[0][0])
