"""Which layers of which targets a conversion lets a draft read."""

from pathlib import Path

import pytest

from llamaspec.errors import IncompatibleDraftError
from llamaspec.runtime.describe import describe
from tests.checkpoints import Pair, write
from tests.checkpoints.shapes import TAPS, TARGET_LAYERS
from tests.converted import make, reconfigure


def pair(folder: Path, model_type: str, taps: list[int]) -> Pair:
    """A DFlash draft that reads these layers, for a target of that type."""
    found = write("zlab", folder)
    reconfigure(found.draft, lambda config: config["dflash_config"].update(target_layer_ids=taps))
    reconfigure(found.target, lambda config: config.update(model_type=model_type))
    return found


@pytest.mark.parametrize("model_type", ["qwen3", "gemma4", "phi-of-tomorrow"])
def test_embedding_and_last_layer_of_any_target(model_type: str, tmp_path: Path) -> None:
    taps = [-1, *TAPS[1:-1], TARGET_LAYERS - 1]
    ready = pair(tmp_path / "pair", model_type, taps)
    report = make(ready.draft, ready.target, tmp_path / "draft.gguf")
    found = describe(report.output).draft
    assert found is not None
    assert found.taps == tuple(tap + 1 for tap in taps)
    said = any("is not known here: whether it gives" in note for note in report.plan.notes)
    assert said == (model_type == "phi-of-tomorrow")


def test_a_target_that_has_no_such_layers(tmp_path: Path) -> None:
    ready = pair(tmp_path / "pair", "gemma3n_text", TAPS)
    with pytest.raises(IncompatibleDraftError, match=r"is a gemma3n model, which has no layer"):
        make(ready.draft, ready.target, tmp_path / "draft.gguf")


def test_a_layer_beyond_the_last(tmp_path: Path) -> None:
    ready = pair(tmp_path / "pair", "qwen3", [*TAPS[:-1], TARGET_LAYERS])
    with pytest.raises(IncompatibleDraftError, match=rf"layers 0 to {TARGET_LAYERS - 1}"):
        make(ready.draft, ready.target, tmp_path / "draft.gguf")
