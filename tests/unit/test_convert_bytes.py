"""Every packaging that llama.cpp converts: the same keys and bytes, recorded from its converter.

Not compared: embedding and head, which it keeps one of. Where a source is quantised it keeps Q8_0,
MXFP4 and NVFP4 whatever the type that was asked for; those are compared in floats, and DeepSeek-V4,
whose types we keep with `auto`, byte by byte as well.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llamaspec.convert import Job, convert
from tests.checkpoints import CASES, Case

RECORDED: dict[str, Any] = {
    case["name"]: case
    for case in json.loads((Path(__file__).parents[1] / "data" / "converted.json").read_text())
}
TABLES = {"token_embd.weight", "output.weight"}
PACKED = {"Q8_0", "MXFP4", "NVFP4"}
KNOWN = [case for case in CASES if "outtypes" in RECORDED[case.name]]
TRAINED = [name for name, case in RECORDED.items() if case["packaging"] == "trained"]
Tensors = dict[str, list[Any]]


def keys_of(path: Path) -> dict[str, Any]:
    """Keys of a GGUF in the form of the recording."""
    return {
        name: [":".join(gguf.GGUFValueType(kind).name for kind in item.types), item.contents()]
        for name, item in gguf.GGUFReader(path).fields.items()
        if name.startswith("dflash.") or name == "tokenizer.ggml.mask_token_id"
    }


def tensors_of(path: Path) -> Tensors:
    """Tensors of a GGUF in the form of the recording, without embedding and head."""
    return {
        tensor.name: [
            tensor.tensor_type.name,
            [int(size) for size in reversed(tensor.shape)],
            hashlib.sha256(tensor.data.tobytes()).hexdigest(),
        ]
        for tensor in gguf.GGUFReader(path).tensors
        if tensor.name not in TABLES
    }


def in_floats(path: Path, names: set[str]) -> Tensors:
    """Some tensors as float32; adding 0.0 turns -0.0, which the recording has lost, into 0.0."""
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name in names:
            assert tensor.tensor_type.name == "F32"
            values = np.asarray(tensor.data, np.float32) + np.float32(0)
            digest = hashlib.sha256(values.tobytes()).hexdigest()
            found[tensor.name] = ["F32", list(values.shape), digest]
    return found


@pytest.mark.parametrize("case", KNOWN, ids=lambda case: case.name)
@pytest.mark.parametrize("outtype", ["f32", "bf16"])
def test_llama_cpps_converter_writes_the_same(case: Case, outtype: str, tmp_path: Path) -> None:
    recorded = RECORDED[case.name]
    wanted = recorded["outtypes"][outtype]
    pair, out = case.write(tmp_path), tmp_path / "out.gguf"
    convert(Job(pair.draft, pair.target, out, outtype))
    assert keys_of(out) == wanted["keys"]
    found = tensors_of(out)
    theirs = {name: entry for name, entry in wanted["tensors"].items() if name not in TABLES}
    packed = {name for name, entry in theirs.items() if entry[0] in PACKED}
    # per-tensor scales of NVFP4 are multiplied in here; DSV4's bf16 stays so under f32 there
    kept = {name for name, entry in theirs.items() if entry[0] == "BF16" and outtype == "f32"}
    scales = {name for name in theirs if name.endswith((".scale", ".input_scale"))}
    assert set(found) == set(theirs) - scales
    apart = packed | kept | scales
    assert {n: e for n, e in found.items() if n not in apart} == {
        n: e for n, e in theirs.items() if n not in apart
    }
    if outtype == "f32":
        assert in_floats(out, packed) == recorded.get("dequantized", {})


def test_the_types_of_deepseek_v4_are_kept(tmp_path: Path) -> None:
    case = next(case for case in KNOWN if case.packaging == "deepseek4")
    pair, out = case.write(tmp_path), tmp_path / "out.gguf"
    convert(Job(pair.draft, pair.target, out))
    assert tensors_of(out) == RECORDED[case.name]["outtypes"]["bf16"]["tensors"]


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("outtype", ["f32", "bf16"])
def test_trained_drafts(name: str, outtype: str, shared: Path, tmp_path: Path) -> None:
    models, out = shared / "models", tmp_path / "out.gguf"
    convert(Job(models / name, models / "tiny-target", out, outtype))
    wanted = RECORDED[name]["outtypes"][outtype]
    assert keys_of(out) == wanted["keys"]
    assert tensors_of(out) == {n: e for n, e in wanted["tensors"].items() if n not in TABLES}
