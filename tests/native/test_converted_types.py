"""Every outtype: the types that tensors get, and blocks close to those of the f32 file."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from llamaspec.errors import OptionError
from llamaspec.runtime.arrays import FloatArray
from tests.checkpoints import shapes, write
from tests.converted import ANCHOR, Ready, features, give_tables, make, tensor_types
from tests.native_block import NativeBlock, run_block

pytestmark = pytest.mark.native

SIXTEEN_BITS = {"fc.weight", "conf_proj.weight"}
EIGHT_BITS = {"markov_w1.weight", "markov_w2.weight"}
VECTORS = ("_norm.weight", "_sinks.weight", ".bias")
# smallest cosine of a row of base logits to that of the f32 file, with these random weights, in
# which four bits find nothing to keep: 1 - 1e-7, 0.99999, 0.9996, 0.95 and 0.993 were seen
CLOSE = {"f16": 0.9999, "bf16": 0.9999, "q8_0": 0.999, "q4_0": 0.9, "q4_k_m": 0.98}
PACKAGINGS = ("speculators", "zlab", "nemotron-nvfp4")
SLOTS = 7


def alike(a: FloatArray, b: FloatArray) -> float:
    """The smallest cosine of two matrices' rows."""
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(((a * b).sum(axis=1) / lengths).min())


def block(path: Path, ready: Ready) -> NativeBlock:
    draft = ready.reference()
    slots = min(SLOTS, draft.block_size)
    return run_block(path, ready.target, features(draft, 20), ANCHOR, slots)


def expected_type(name: str, columns: int, outtype: str) -> str:
    """What a tensor becomes of a bf16 source."""
    if name == "d2t":
        return "I64"
    if name.endswith(VECTORS):
        return "F32"
    quantised = outtype not in ("f32", "f16", "bf16")
    if quantised and (name in SIXTEEN_BITS or columns % 32):
        return "BF16"
    return ("q8_0" if quantised and name in EIGHT_BITS else outtype).upper()


@pytest.fixture(params=[96, 72], ids=["whole-blocks", "cut-blocks"])
def feed_forward(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Columns of ffn_down: three blocks of 32, or no whole number of them."""
    columns: int = request.param
    monkeypatch.setattr(shapes, "FFN", columns)
    return columns


@pytest.mark.parametrize("packaging", PACKAGINGS)
@pytest.mark.usefixtures("feed_forward")
def test_types_and_blocks(packaging: str, tmp_path: Path) -> None:
    ready = give_tables(write(packaging, tmp_path / "pair"), tmp_path)
    exact = block(ready.convert("exact.gguf", "f32"), ready).base
    for outtype in ("f16", "bf16", "q8_0", "q4_0"):
        converted = ready.convert(f"{outtype}.gguf", outtype)
        for tensor in gguf.GGUFReader(converted).tensors:
            columns = int(tensor.shape[0])
            wanted = expected_type(tensor.name, columns, outtype)
            assert tensor.tensor_type.name == wanted, (outtype, tensor.name)
        found = block(converted, ready).base
        assert CLOSE[outtype] < alike(found, exact) < 1, outtype


@pytest.mark.parametrize("packaging", PACKAGINGS)
def test_auto_keeps_floats_and_undoes_scales(packaging: str, tmp_path: Path) -> None:
    ready = give_tables(write(packaging, tmp_path / "pair"), tmp_path)
    assert tensor_types(ready.convert("auto.gguf", "auto")) == tensor_types(
        ready.convert("bf16.gguf", "bf16")
    )


def test_experts_stay_as_they_are(tmp_path: Path) -> None:
    ready = give_tables(write("deepseek4", tmp_path / "pair"), tmp_path)
    exact = block(ready.convert("exact.gguf", "f32"), ready).base
    for outtype in ("auto", "f16", "q8_0"):
        converted = ready.convert(f"{outtype}.gguf", outtype)
        types = tensor_types(converted)
        assert {kind for name, kind in types.items() if "_exps" in name} == {"MXFP4"}
        assert {kind for name, kind in types.items() if "hc_" in name} == {"F32"}
        assert types["blk.0.ffn_gate_inp.weight"] in ("BF16", "F16")
        assert alike(block(converted, ready).base, exact) > 0.99


def test_mixtures_of_quantised_sources_are_refused(tmp_path: Path) -> None:
    ready = give_tables(write("deepseek4", tmp_path / "pair"), tmp_path)
    with pytest.raises(OptionError, match=r"outtype q4_k_m .* quantised \(MXFP4, Q8_0\)"):
        ready.convert("mixed.gguf", "q4_k_m")
    assert not (tmp_path / "mixed.gguf").exists()


@pytest.mark.parametrize("packaging", PACKAGINGS)
@pytest.mark.usefixtures("feed_forward")
def test_mixtures_of_narrow_drafts(packaging: str, tmp_path: Path) -> None:
    """No row here is a block of 256: llama.cpp takes blocks of 32 then, or 16 bits."""
    ready = give_tables(write(packaging, tmp_path / "pair"), tmp_path)
    converted = ready.convert("mixed.gguf", "q4_k_m")
    types = tensor_types(converted)
    assert types["fc.weight"] in ("BF16", "F16")
    assert types["blk.0.attn_q.weight"].startswith("Q5")
    assert {types[name] for name in EIGHT_BITS & types.keys()} <= {"Q8_0"}
    exact = block(ready.convert("exact.gguf", "f32"), ready).base
    assert CLOSE["q4_k_m"] < alike(block(converted, ready).base, exact) < 1


def test_mixtures_of_the_trained_draft(shared: Path, tmp_path: Path) -> None:
    models, width = shared / "models", 3 * 256
    rows = np.random.default_rng(1).normal(scale=3, size=(20, width)).astype(np.float32)
    blocks = {}
    for outtype in ("f32", "q4_k_m"):
        output = tmp_path / f"{outtype}.gguf"
        make(models / "tiny-dspark", models / "tiny-target", output, outtype)
        files = output, models / "gguf" / "tiny-target-f32.gguf"
        blocks[outtype] = run_block(*files, rows, ANCHOR, SLOTS)
    types = tensor_types(output)
    assert types["fc.weight"] == types["conf_proj.weight"] == "BF16"
    assert {types[f"blk.{i}.attn_q.weight"] for i in (0, 1)} == {"Q4_K"}
    assert types["blk.0.attn_norm.weight"] == "F32"
    assert {types[name] for name in EIGHT_BITS} == {"Q8_0"}
    assert CLOSE["q4_k_m"] < alike(blocks["q4_k_m"].base, blocks["f32"].base) < 1
