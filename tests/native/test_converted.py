"""Converted files compute what their checkpoints say: llama.cpp's block against the reference's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamaspec.errors import IncompatibleDraftError, ModelLoadError
from llamaspec.loading import load_pair
from llamaspec.options import LoadOptions
from llamaspec.runtime.describe import describe
from llamaspec.runtime.model import Model
from tests.checkpoints import CASES, Case, write
from tests.checkpoints.writing import Stored, Weights
from tests.converted import (
    Ready,
    Shards,
    both,
    give_tables,
    read_shards,
    recast,
    reconfigure,
    tensor_types,
)
from tests.native_block import NativeBlock
from tests.reference import Block, quantised
from tests.reference.checkpoint import FloatArray
from tests.rewrite import rewrite, tensor

pytestmark = pytest.mark.native

CONTEXTS = (0, 5, 70)
# both sides sum in float32, in different orders: logits are 4e-6 apart at most, of up to 3, and
# hidden rows, which are larger, 2e-5
TOLERANCE = 1e-5
# a block of 150 rows has more to sum
LONG_TOLERANCE = 1e-4
# ggml looks GELU up in a table of half-precision values
GELU_TOLERANCE = 2e-3
# a setting that is not carried over moves the logits by far more
NOTICED = 0.1
Config = dict[str, Any]


def check(found: tuple[NativeBlock, Block], tolerance: float = TOLERANCE) -> None:
    native, expected = found
    assert np.abs(expected.base).max() > 0.1
    assert difference(native, expected) < tolerance
    assert np.abs(native.hidden - expected.hidden).max() < 10 * tolerance
    assert native.ids == expected.ids
    if expected.confidence is None:
        assert native.confidence is None
    else:
        assert native.confidence == pytest.approx(expected.confidence, abs=tolerance)


def difference(native: NativeBlock, expected: Block) -> float:
    """How far base logits are apart; a selector's are scaled and capped, from its first row on."""
    if native.logits is None:
        first = len(expected.base) - len(expected.logits)
        return float(np.abs(native.base[first:] - expected.logits).max())
    return float(np.abs(native.base - expected.base).max())


def tolerance_of(case: Case) -> float:
    return GELU_TOLERANCE if case.packaging == "gemma4" else TOLERANCE


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_packaging_computes_its_block(case: Case, tmp_path: Path) -> None:
    ready = give_tables(case.write(tmp_path / "pair"), tmp_path)
    draft, converted = ready.reference(), ready.convert("draft.gguf")
    found = describe(converted).draft
    assert found is not None
    assert (found.first_row, found.block_size) == (draft.first, draft.block_size)
    assert (found.taps, found.mask_token_id) == (draft.taps, draft.mask)
    for n in CONTEXTS:
        check(both(converted, ready, n), tolerance_of(case))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_standalone_files_compute_the_same_without_a_target(case: Case, tmp_path: Path) -> None:
    ready = give_tables(case.write(tmp_path / "pair"), tmp_path)
    converted = ready.convert("draft.gguf", standalone=True)
    ready.target.unlink()
    check(both(converted, ready, 5), tolerance_of(case))


def test_a_target_without_a_head_is_tied_unless_it_denies_it(tmp_path: Path) -> None:
    ready = give_tables(write("lfm2", tmp_path / "pair"), tmp_path)
    reconfigure(ready.pair.target, lambda config: config.pop("tie_embedding"))
    check(both(ready.convert("draft.gguf", standalone=True), ready, 5))
    reconfigure(ready.pair.target, setting(tie_word_embeddings=False))
    with pytest.raises(ModelLoadError, match="the draft has no head"):
        ready.convert("refused.gguf", standalone=True)


# by packaging: the tensor that makes the head what it is, and what the head is called
OWN = {
    "deepspec-gated": ("markov_gate.weight", "its gated head"),
    "deepspec-rnn": ("markov_joint.weight", "its rnn head"),
    "dflash2": ("selector_hidden.weight", "its selector"),
}


@pytest.mark.parametrize("packaging", OWN)
def test_llama_cpp_checks_the_shapes_of_a_head_itself(packaging: str, tmp_path: Path) -> None:
    ready = give_tables(write(packaging, tmp_path / "pair"), tmp_path)
    converted, (name, what) = ready.convert("draft.gguf"), OWN[packaging]
    wrong = tensor(converted, name)[:-1]
    changed = rewrite(converted, tmp_path / "changed.gguf", tensors={name: wrong})
    with pytest.raises(ModelLoadError, match=name):
        Model.load(changed)
    with pytest.raises(IncompatibleDraftError) as refused:
        load_pair(ready.target, changed, LoadOptions(threads=1))
    assert f"{name} has shape {wrong.shape}, {what}" in str(refused.value)


def test_a_head_that_is_not_what_the_file_says_does_not_load(tmp_path: Path) -> None:
    ready = give_tables(write("deepspec-rnn", tmp_path / "pair"), tmp_path)
    converted, key = ready.convert("draft.gguf"), "dflash.markov_head_type"
    changed = rewrite(converted, tmp_path / "changed.gguf", {key: "gated"})
    with pytest.raises(ModelLoadError, match=r"gated.* rnn head"):
        Model.load(changed)


@pytest.mark.parametrize("packaging", ["deepspec-rnn", "speculators"])
def test_a_graph_has_room_for_the_slots_of_long_blocks(packaging: str, tmp_path: Path) -> None:
    ready = give_tables(write(packaging, tmp_path / "pair"), tmp_path)
    reconfigure(ready.pair.draft, setting(block_size=150))
    check(both(ready.convert("draft.gguf"), ready, 5), LONG_TOLERANCE)


def setting(**values: Any) -> Callable[[Config], None]:  # noqa: ANN401
    """Set keys at the top level, and in the nested sections that have them."""

    def change(config: Config) -> None:
        for name, value in values.items():
            sections = [part for part in config.values() if isinstance(part, dict)]
            for section in [part for part in sections if name in part] or [config]:
                section[name] = value

    return change


def rope(kind: str, **values: float) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        nested = config.get("transformer_layer_config", config)
        for name in ("rope_scaling", "rope_theta"):
            nested.pop(name, None)
        nested["rope_parameters"] = {"rope_type": kind, "rope_theta": 1e4, **values}

    return change


def windows(config: Config) -> None:
    """Every layer of a speculators draft windowed, and so causal inside the block."""
    layers = config["transformer_layer_config"]
    layers["layer_types"] = ["sliding_attention"] * len(layers["layer_types"])
    layers |= {"use_sliding_window": True, "sliding_window": 9}


YARN = {"factor": 8.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
VARIED: dict[str, tuple[str, Config, Callable[[Config], None]]] = {
    "window": ("zlab", {"sliding": True}, setting(sliding_window=9)),
    "window-of-all": ("zlab", {"sinks": True}, setting(swa_window_size=5)),
    "window-and-causal": ("nemotron-nvfp4", {}, setting(swa_window_size=5)),
    "window-of-dflash2": ("dflash2", {}, setting(sliding_window=5)),
    "window-of-deepseek4": ("deepseek4", {}, setting(sliding_window=3, swiglu_limit=0.02)),
    "window-of-speculators": ("speculators", {}, windows),
    "causal": ("deepspec", {}, setting(is_causal=True)),
    "linear": ("specforge", {}, rope("linear", factor=4.0)),
    "yarn": ("specforge", {}, rope("yarn", **YARN)),
    "yarn-mrope": ("specforge", {"mrope": True}, rope("yarn", **YARN)),
    "yarn-attention": ("specforge", {}, rope("yarn", **YARN, attention_factor=0.7)),
    "yarn-mscale": ("specforge", {}, rope("yarn", **YARN, mscale=1.0, mscale_all_dim=0.3)),
    "yarn-betas": ("specforge", {}, rope("yarn", **YARN, beta_fast=2.0, beta_slow=0.5)),
    "yarn-betas-attention": (
        "specforge",
        {},
        rope("yarn", **YARN, beta_fast=2.0, attention_factor=0.7),
    ),
    "llama3": ("speculators", {}, rope("llama3", **LLAMA3)),
    "partial": ("zlab", {}, setting(partial_rotary_factor=0.5)),
    "partial-mrope": ("zlab", {"mrope": True}, setting(partial_rotary_factor=0.5)),
    "scaled": ("zlab", {}, setting(attention_value_scale=0.6, input_embedding_scale=3.0)),
    "capped": ("dflash2", {}, setting(output_multiplier=0.7, final_logit_softcapping=0.4)),
    "gelu": ("specforge", {}, setting(hidden_act="gelu_pytorch_tanh")),
    "epsilon": ("deepspec", {}, setting(rms_norm_eps=0.3)),
}


def varied(name: str, folder: Path) -> tuple[Ready, Path]:
    """The changed checkpoint, and the file that the unchanged one is converted to."""
    packaging, variation, change = VARIED[name]
    ready = give_tables(write(packaging, folder / "pair", **variation), folder)
    before = ready.convert("before.gguf")
    reconfigure(ready.pair.draft, change)
    return ready, before


@pytest.mark.parametrize("name", VARIED)
def test_settings_reach_the_graph(name: str, tmp_path: Path) -> None:
    ready, before = varied(name, tmp_path)
    converted = ready.convert("draft.gguf")
    for n in CONTEXTS:
        check(both(converted, ready, n), GELU_TOLERANCE if name == "gelu" else TOLERANCE)
    # and it is this setting that does it
    native, expected = both(before, ready, 40)
    assert difference(native, expected) > NOTICED


def test_windows_of_two_rules_are_refused(tmp_path: Path) -> None:
    ready = give_tables(write("speculators", tmp_path / "pair"), tmp_path)

    def change(config: Config) -> None:
        windows(config)
        config["transformer_layer_config"]["layer_types"][-1] = "full_attention"

    reconfigure(ready.pair.draft, change)
    with pytest.raises(ModelLoadError, match="sliding_window_non_causal is false and some layers"):
        ready.convert("draft.gguf")
    stated = {"sliding_window_non_causal": True}
    converted = ready.convert("draft.gguf", overrides=stated)
    reconfigure(ready.pair.draft, setting(**stated))
    check(both(converted, ready, 40))


@pytest.mark.parametrize("values", [LLAMA3, {"partial_rotary_factor": 0.5}], ids=["llama3", "part"])
def test_divisors_that_the_graph_would_ignore_are_refused(values: Config, tmp_path: Path) -> None:
    pair = write("specforge", tmp_path / "pair", mrope=True)
    kind = "llama3" if values is LLAMA3 else "proportional"
    reconfigure(pair.draft, rope(kind, **values))
    with pytest.raises(ModelLoadError, match=f"RoPE of type {kind} needs divisors"):
        give_tables(pair, tmp_path).convert("draft.gguf")


def prefixed(tensors: Shards) -> Shards:
    return {f"model.{name}": stored for name, stored in tensors.items()}


def without_embedding(tensors: Shards) -> Shards:
    return {name: stored for name, stored in tensors.items() if name != "embed_tokens.weight"}


def unmarkovian_confidence(tensors: Shards) -> Shards:
    """A confidence head that reads the hidden row alone, under the name of other exporters."""
    made = Weights("confidence")
    made.bf16("confidence_proj.weight", 1, 64)
    made.bf16("confidence_proj.bias", 1)
    kept = {name: t for name, t in tensors.items() if not name.startswith("confidence_head")}
    return kept | made.stored


CHANGED: dict[str, tuple[str, Callable[[Shards], Shards]]] = {
    "prefix": ("specforge", prefixed),
    "reduced-without-embedding": ("speculators", without_embedding),
    "confidence-of-the-row-alone": ("specforge", unmarkovian_confidence),
}


@pytest.mark.parametrize("name", CHANGED)
def test_other_tensors_reach_the_graph(name: str, tmp_path: Path) -> None:
    packaging, change = CHANGED[name]
    ready = give_tables(write(packaging, tmp_path / "pair"), tmp_path)
    recast(ready.pair.draft, change(read_shards(ready.pair.draft)))
    converted = ready.convert("draft.gguf")
    for n in CONTEXTS:
        check(both(converted, ready, n))


def test_a_mask_row_of_the_drafts_own_is_kept(tmp_path: Path) -> None:
    ready = give_tables(write("deepspec", tmp_path / "pair", untied=True), tmp_path)
    folder = ready.pair.draft
    left_out = ready.convert("copies.gguf")
    tensors = read_shards(folder)
    embedding = np.frombuffer(tensors["embed_tokens.weight"].data, "<u2").reshape(-1, 64).copy()
    embedding[ready.reference().mask] ^= 0x8000
    changed = Stored("BF16", embedding.shape, embedding.tobytes())
    recast(folder, {**tensors, "embed_tokens.weight": changed})
    check(both(ready.convert("draft.gguf"), ready, 5))
    assert difference(*both(left_out, ready, 5)) > NOTICED


def plain(values: FloatArray) -> Stored:
    return Stored("F32", values.shape, values.astype("<f4").tobytes())


# scales by kind: their tensor's name, and their shape for a matrix of n x m
SCALES: dict[str, tuple[str, Callable[[int, int], tuple[int, ...]]]] = {
    "tile": ("weight_scale_inv", lambda n, m: (-(-n // 128), -(-m // 128))),
    "row": ("weight_scale", lambda n, m: (n, 1)),
    "row-vector": ("weight_scale", lambda n, m: (n,)),
    "tensor": ("weight_scale", lambda n, m: ()),
    "tensor-of-one": ("scale", lambda n, m: (1,)),
}


def eight_bits(name: str, shape: tuple[int, ...], kind: str) -> tuple[Shards, FloatArray]:
    """A matrix in E4M3 with its scales, and its values."""
    end, size = SCALES[kind]
    made, scale_name = Weights("fp8"), name.removesuffix("weight") + end
    made.e4m3(name, *shape)
    made.f32(scale_name, *size(*shape), around=1.0)
    scale = np.frombuffer(made.stored[scale_name].data, "<f4").reshape(size(*shape)) / 2000
    spread = scale
    if kind == "tile":
        spread = scale.repeat(128, axis=0).repeat(128, axis=1)[: shape[0], : shape[1]]
    elif kind == "row-vector":
        spread = scale[:, None]
    codes = np.frombuffer(made.stored[name].data, np.uint8).reshape(shape)
    values = quantised.e4m3(codes) * spread.astype(np.float32)
    return {name: made.stored[name], scale_name: plain(scale.astype(np.float32))}, values


@pytest.mark.parametrize("kind", SCALES)
def test_fp8_comes_back_with_its_scales(kind: str, tmp_path: Path) -> None:
    ready = give_tables(write("specforge", tmp_path / "pair"), tmp_path)
    folder = ready.pair.draft
    floats = read_shards(folder)
    packed = dict(floats)
    for name, stored in read_shards(folder).items():
        if name.endswith(("_proj.weight", "fc.weight", "markov_w2.weight")):
            scaled, values = eight_bits(name, stored.shape, kind)
            packed, floats = packed | scaled, floats | {name: plain(values)}
    recast(folder, packed)
    converted = ready.convert("draft.gguf")
    assert tensor_types(ready.convert("auto.gguf", "auto"))["fc.weight"] == "BF16"
    recast(folder, floats)
    for n in CONTEXTS:
        check(both(converted, ready, n))


def compressed(tensors: Shards) -> Shards:
    """NVFP4 of ModelOpt under compressed-tensors' names, whose overall scale is the inverse."""
    renamed = {}
    for name, stored in tensors.items():
        if name.endswith("weight_scale_2"):
            inverse = np.reciprocal(np.frombuffer(stored.data, np.float32))
            renamed[name.replace("weight_scale_2", "weight_global_scale")] = plain(inverse)
            renamed[name.replace("weight_scale_2", "input_global_scale")] = plain(inverse)
        else:
            packed = f"{name}_scale" in tensors
            renamed[f"{name}_packed" if packed else name] = stored
    return renamed


def test_nvfp4_of_compressed_tensors(tmp_path: Path) -> None:
    ready = give_tables(write("nemotron-nvfp4", tmp_path / "pair"), tmp_path)
    folder = ready.pair.draft
    original = read_shards(folder)
    recast(folder, compressed(original))
    assert "fc.weight_packed" in read_shards(folder)
    converted = ready.convert("draft.gguf")
    recast(folder, original)
    for n in CONTEXTS:
        check(both(converted, ready, n))
