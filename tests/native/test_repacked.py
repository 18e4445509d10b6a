"""Drafts in layouts of vendors and older files: `convert` brings back what they were made of."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llamaspec.errors import ModelLoadError
from tests.checkpoints import CASES, Case, write
from tests.converted import ANCHOR, Ready, features, give_tables, make
from tests.native_block import run_block
from tests.rewrite import As, rewrite, tensor

pytestmark = pytest.mark.native

NOT_IN_GRAPH = ("deepspec-gated", "deepspec-rnn")
UINT, ARRAY, INT = (
    gguf.GGUFValueType.UINT32,
    gguf.GGUFValueType.ARRAY,
    gguf.GGUFValueType.INT32,
)
OUTPUTS = {"layer_ids": "outputs"}
PRISM = {
    "fc.weight": "dspark.fc.weight",
    "enc.output_norm.weight": "dspark.hidden_norm.weight",
    "markov_w1.weight": "dspark.markov_head_a.weight",
    "markov_w2.weight": "dspark.markov_head_b.weight",
    "conf_proj.weight": "dspark.confidence_head.weight",
    "conf_proj.bias": "dspark.confidence_head.bias",
}
FORK = {"fc.weight": "dflash_fc.weight", "enc.output_norm.weight": "dflash_hidden_norm.weight"}
FORK_35 = {"fc.weight": "dflash.fc.weight", "enc.output_norm.weight": "dflash.hidden_norm.weight"}


def fields(path: Path) -> dict[str, As]:
    return {
        name: As(field.contents(), field.types[0], field.types[-1])
        for name, field in gguf.GGUFReader(path).fields.items()
        if not name.startswith("GGUF.")
    }


def draft_keys(path: Path) -> dict[str, Any]:
    """Keys of a draft with their types; not those that say where the file came from."""
    return {
        name: (value.kind, value.item, value.value)
        for name, value in fields(path).items()
        if name.startswith(("dflash.", "tokenizer.", "general.arch"))
    }


def contents(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {
        tensor.name: (
            tensor.tensor_type.name,
            tuple(int(size) for size in tensor.shape),
            tensor.data.tobytes(),
        )
        for tensor in gguf.GGUFReader(path).tensors
    }


def check_same(found: Path, wanted: Path, ready: Ready) -> None:
    """Same keys, same tensors, same block."""
    assert draft_keys(found) == draft_keys(wanted)
    assert contents(found) == contents(wanted)
    draft = ready.reference()
    rows = features(draft, 20)
    blocks = [run_block(p, ready.target, rows, ANCHOR, draft.block_size) for p in (found, wanted)]
    assert np.array_equal(blocks[0].base, blocks[1].base)
    assert blocks[0].ids == blocks[1].ids
    assert blocks[0].confidence == blocks[1].confidence


def to_vendor(
    source: Path,
    target: Path,
    architecture: str,
    names: Mapping[str, str],
    *,
    old_norm: bool = True,
    tokens: bool = True,
) -> Path:
    """A draft under a vendor's keys and tensor names. Layers count by their output there."""
    metadata: dict[str, Any] = {"general.architecture": architecture}
    nested = {"block_size": "block_size", "target_layers": "target_layer_ids"}
    nested |= {name: name for name in ("causal", "conv_kernel_size")}
    inner = "dspark" if architecture == "dspark" else "dflash"
    for name, value in fields(source).items():
        if name.startswith("dflash."):
            rest, metadata[name] = name.removeprefix("dflash."), None
            if rest not in ("sample_from_anchor", "has_confidence_head"):
                place = f"{inner}.{nested[rest]}" if rest in nested else rest
                metadata[f"{architecture}.{place}"] = value
        elif name.startswith("tokenizer.") and not tokens:
            metadata[name] = None
    taps = fields(source)["dflash.target_layers"].value
    ids = As([tap - 1 for tap in taps], ARRAY, INT)
    mask = fields(source)["tokenizer.ggml.mask_token_id"].value
    metadata |= {
        f"{architecture}.{inner}.target_layer_ids": ids,
        f"{architecture}.{inner}.mask_token_id": As(mask, UINT),
        "tokenizer.ggml.mask_token_id": None,
    }
    tensors: dict[str, Any] = {}
    for name in contents(source):
        new = names.get(name, name)
        if old_norm and name.endswith(".ffn_norm.weight"):
            new = name.replace("ffn_norm", "post_attention_norm")
        if new != name:
            tensors |= {name: None, new: tensor(source, name)}
    return rewrite(source, target, metadata, tensors)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name not in NOT_IN_GRAPH], ids=lambda case: case.name
)
def test_a_file_of_today_stays_as_it_is(case: Case, tmp_path: Path) -> None:
    ready = give_tables(case.write(tmp_path / "pair"), tmp_path)
    converted, again = ready.convert("draft.gguf"), tmp_path / "again.gguf"
    make(converted, ready.pair.target, again, "auto")
    check_same(again, converted, ready)


def test_prismmls_layout(tmp_path: Path) -> None:
    ready = give_tables(write("deepspec", tmp_path / "pair", untied=True), tmp_path)
    wanted, found = ready.convert("draft.gguf"), tmp_path / "found.gguf"
    # the vendor's files bring both tables, and no tokens
    whole = ready.convert("whole.gguf", standalone=True)
    vendor = to_vendor(
        whole, tmp_path / "vendor.gguf", "dspark", PRISM, old_norm=False, tokens=False
    )
    make(vendor, ready.pair.target, found, "auto")
    check_same(found, wanted, ready)


@pytest.mark.parametrize(
    ("architecture", "names"), [("dflash-draft", FORK), ("qwen35-dflash-draft", FORK_35)]
)
@pytest.mark.parametrize("variation", [{}, {"sliding": True}, {"mrope": True}], ids=str)
def test_layouts_before_the_merge(
    architecture: str, names: Mapping[str, str], variation: dict[str, bool], tmp_path: Path
) -> None:
    ready = give_tables(write("zlab", tmp_path / "pair", **variation), tmp_path)
    wanted, found = ready.convert("draft.gguf"), tmp_path / "found.gguf"
    vendor = to_vendor(wanted, tmp_path / "vendor.gguf", architecture, names)
    with pytest.raises(ModelLoadError, match="--set layer_ids=outputs or --set layer_ids=inputs"):
        make(vendor, ready.pair.target, found, "auto")
    make(vendor, ready.pair.target, found, "auto", overrides=OUTPUTS)
    check_same(found, wanted, ready)


def only_embedding(source: Path, target: Path) -> Path:
    """What a converter writes that keeps one table where a draft has two, or one for both."""
    return rewrite(source, target, tensors={"output.weight": None})


def forget_weights(ready: Ready) -> None:
    (ready.pair.target / "model.safetensors").unlink()


@pytest.mark.parametrize("weights", [True, False], ids=["target-weights", "no-target-weights"])
def test_a_lone_embedding_of_gemma_is_its_head_too(weights: bool, tmp_path: Path) -> None:
    ready = give_tables(write("gemma4", tmp_path / "pair", tied=True), tmp_path, copied=False)
    wanted, found = ready.convert("draft.gguf"), tmp_path / "found.gguf"
    lone = only_embedding(wanted, tmp_path / "lone.gguf")
    if not weights:
        forget_weights(ready)
    make(lone, ready.pair.target, found, "auto")
    check_same(found, wanted, ready)


@pytest.mark.parametrize("weights", [True, False], ids=["target-weights", "no-target-weights"])
def test_a_lone_copy_of_the_targets_embedding_gives_way(weights: bool, tmp_path: Path) -> None:
    ready = give_tables(write("deepspec", tmp_path / "pair", untied=True), tmp_path)
    wanted, found = ready.convert("draft.gguf"), tmp_path / "found.gguf"
    whole = ready.convert("whole.gguf", standalone=True)
    lone = only_embedding(whole, tmp_path / "lone.gguf")
    if not weights:
        forget_weights(ready)
    make(lone, ready.pair.target, found, "auto")
    assert contents(found) == contents(wanted)
