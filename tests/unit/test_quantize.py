"""Quantising: what becomes of every tensor, under which name, and what is said about it."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from llamaspec.errors import OptionError
from llamaspec.runtime.describe import describe
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.gguf_types import TensorInfo
from llamaspec.runtime.quantize_types import TYPES, file_type, kept_types
from tests.miniature import VOCABULARY
from tests.unit.quantizable import (
    COLUMNS,
    ROWS,
    Floats,
    normal,
    types_in,
    write_gated_draft,
    write_source,
    write_with,
)

pytest.importorskip("llamaspec._native")
from llamaspec.runtime.quantize import Permit, quantize

pytestmark = pytest.mark.native

# root mean square of the error over that of normally distributed weights
ERRORS = {
    "Q2_K": 0.4,
    "Q3_K_S": 0.2,
    "IQ3_S": 0.2,
    "Q4_0": 0.12,
    "IQ4_NL": 0.1,
    "IQ4_XS": 0.1,
    "Q4_K_M": 0.09,
    "Q5_K_S": 0.05,
    "Q6_K": 0.03,
    "Q8_0": 0.01,
    "BF16": 0.003,
    "F16": 0.0004,
    "F32": 0.0,
}


def array(path: Path, name: str) -> Floats:
    with GGUFFile.open(path) as file:
        return file.array(name)


@pytest.mark.parametrize(
    ("given", "name"),
    [("Q4_K_M", "Q4_K_M"), ("q8_0", "Q8_0"), (" bf16 ", "BF16"), ("q4_k", "Q4_K_M")],
)
def test_a_type_has_llama_quantizes_names(given: str, name: str) -> None:
    assert file_type(given) == name


def test_an_unknown_type_gets_the_list() -> None:
    with pytest.raises(OptionError, match="'Q4_K_X' is unknown") as refused:
        file_type("Q4_K_X")
    assert all(name in str(refused.value) for name in TYPES)


@pytest.mark.parametrize("name", ["IQ1_S", "iq2_xxs", "IQ2_M", "IQ3_XS", "IQ3_XXS", "Q2_K_S"])
def test_a_type_that_needs_a_matrix_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name} needs an importance matrix"):
        file_type(name)


def test_only_what_steers_a_draft_is_kept() -> None:
    kept = {"fc": "F32", "markov_gate": "BF16", "markov_joint": "F16", "conf_proj": "F32"}
    other = ("output", "token_embd", "blk.0.ffn_gate", "fc2", "enc.fc", "markov_w1", "markov_w2")
    tensors = {
        f"{name}.weight": TensorInfo(name, (2, 64), kind, 0, 8)
        for name, kind in (kept | dict.fromkeys(other, "F32")).items()
    }
    tensors["markov_w2.weight"] = TensorInfo("markov_w2", (2, 40), "BF16", 0, 8)
    sixteen = {
        "fc.weight": "F16",
        "markov_gate.weight": "BF16",
        "markov_joint.weight": "F16",
        "conf_proj.weight": "F16",
    }
    assert kept_types(tensors, "Q8_0") == sixteen
    markov = {"markov_w1.weight": "Q8_0", "markov_w2.weight": "BF16"}
    assert kept_types(tensors, "Q4_0") == sixteen | markov


@pytest.mark.parametrize("name", ERRORS)
def test_a_target_keeps_its_weights_as_well_as_the_type_can(name: str, tmp_path: Path) -> None:
    weights = normal(ROWS, COLUMNS)
    source = write_source(tmp_path / "in.gguf", blk__0__ffn_up=weights)
    report = quantize(source, tmp_path / "out.gguf", name.lower(), threads=2)
    found = array(report.output, "blk.0.ffn_up.weight")
    error = float(np.sqrt(np.mean((found - weights) ** 2)))
    assert error <= ERRORS[name]
    assert error > ERRORS[name] / 10 or not ERRORS[name]
    assert types_in(report.output)["output_norm.weight"] == "F32"
    assert describe(report.output).quantisation == report.type_name == name


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q5_1"])
def test_blocks_are_those_of_the_reference_in_python(name: str, tmp_path: Path) -> None:
    weights = normal(ROWS, COLUMNS)
    source = write_source(tmp_path / "in.gguf", blk__0__ffn_up=weights)
    quantize(source, tmp_path / "out.gguf", name)
    (found,) = [
        tensor.data
        for tensor in gguf.GGUFReader(tmp_path / "out.gguf").tensors
        if tensor.name == "blk.0.ffn_up.weight"
    ]
    expected = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[name])
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", TYPES)
def test_every_type_is_one_that_llama_cpp_writes(name: str, tmp_path: Path) -> None:
    source = write_source(tmp_path / "in.gguf", blk__0__ffn_up=normal(2, 256))
    report = quantize(source, tmp_path / "out.gguf", name)
    assert describe(report.output).quantisation == name


@pytest.mark.parametrize(
    ("name", "kept", "other"),
    [
        ("Q8_0", "F16", "Q8_0"),
        ("Q4_K_M", "F16", "Q4_K"),
        ("F16", "F16", "F16"),
        ("BF16", "BF16", "BF16"),
        ("F32", "F32", "F32"),
    ],
)
def test_a_drafts_small_projections_stay_at_16_bits(
    name: str, kept: str, other: str, tmp_path: Path
) -> None:
    source = write_gated_draft(tmp_path / "in.gguf")
    types = types_in(quantize(source, tmp_path / "out.gguf", name).output)
    assert (types["fc.weight"], types["markov_gate.weight"]) == (kept, kept)
    assert types["blk.0.ffn_up.weight"] == other
    # llama.cpp takes no matrix of one row, and no norm
    assert (types["conf_proj.weight"], types["output_norm.weight"]) == ("F32", "F32")
    assert types["d2t"] == "I64"
    with GGUFFile.open(tmp_path / "out.gguf") as file:
        assert file.integers("d2t").tolist() == list(range(VOCABULARY))
    before, after = describe(source), describe(tmp_path / "out.gguf")
    assert before.draft is not None
    assert after.draft is not None
    assert (after.draft.taps, after.draft.head) == (before.draft.taps, "gated")


def test_bf16_in_a_draft_stays_bf16(tmp_path: Path) -> None:
    wide = quantize(write_gated_draft(tmp_path / "in.gguf"), tmp_path / "bf16.gguf", "BF16").output
    types = types_in(quantize(wide, tmp_path / "out.gguf", "Q8_0").output)
    assert (types["fc.weight"], types["blk.0.ffn_up.weight"]) == ("BF16", "Q8_0")
    assert np.array_equal(array(wide, "fc.weight"), array(tmp_path / "out.gguf", "fc.weight"))


def test_the_report_counts_what_is_in_the_file(tmp_path: Path) -> None:
    source = write_gated_draft(tmp_path / "in.gguf")
    report = quantize(source, tmp_path / "out.gguf", "q8_0")
    assert (report.source, report.output) == (source, tmp_path / "out.gguf")
    assert report.source_bytes == source.stat().st_size
    assert report.output_bytes == report.output.stat().st_size < report.source_bytes
    assert report.tensor_types == {"Q8_0": 1, "F16": 2, "F32": 2, "I64": 1} | {
        kind: list(types_in(report.output).values()).count(kind) for kind in report.tensor_types
    }
    assert sum(report.tensor_types.values()) == len(types_in(source))


def test_progress_goes_from_none_to_all(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    source = write_gated_draft(tmp_path / "in.gguf")
    quantize(source, tmp_path / "out.gguf", "Q8_0", on_progress=lambda *step: seen.append(step))
    total = len(types_in(source))
    assert [step[:2] for step in seen] == [(done, total) for done in range(total + 1)]
    assert {step[2] for step in seen[:-1]} == set(types_in(source))


def test_a_split_model_becomes_one_file(tmp_path: Path) -> None:
    write_with(gguf.GGUFWriter(tmp_path / "m.gguf", "qwen3", split_max_tensors=1))
    first, second = sorted(tmp_path.glob("m-*.gguf"))
    report = quantize(first, tmp_path / "out.gguf", "Q8_0")
    assert types_in(report.output) == {"token_embd.weight": "Q8_0", "output_norm.weight": "F32"}
    assert report.source_bytes == first.stat().st_size + second.stat().st_size
    with GGUFFile.open(report.output) as file:
        assert not [key for key in file.metadata if key.startswith("split.")]
    with pytest.raises(OptionError, match="is the input itself"):
        quantize(first, second, "Q8_0", permit=Permit(overwrite=True))


def test_a_link_is_followed(tmp_path: Path) -> None:
    source = write_source(tmp_path / "in.gguf")
    real = tmp_path / "elsewhere" / "real.gguf"
    real.parent.mkdir()
    (tmp_path / "out.gguf").symlink_to(real)
    quantize(source, tmp_path / "out.gguf", "Q8_0")
    assert (tmp_path / "out.gguf").is_symlink()
    assert types_in(real)["token_embd.weight"] == "Q8_0"


def test_the_output_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    output = quantize(write_source(tmp_path / "in.gguf"), tmp_path / "out.gguf", "Q8_0").output
    assert output.stat().st_mode == (tmp_path / "other").stat().st_mode
