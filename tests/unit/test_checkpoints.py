"""The miniature checkpoints are the ones that converted.json was made from."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import CASES, PACKAGINGS, Case, digest, write

DATA = Path(__file__).resolve().parents[1] / "data" / "converted.json"
RECORDED = {entry["name"]: entry for entry in json.loads(DATA.read_text(encoding="utf-8"))}


def stored(folder: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Every tensor of a folder's safetensors files: dtype, shape, bytes."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        start = 8 + struct.unpack_from("<Q", raw)[0]
        header: dict[str, Any] = json.loads(raw[8:start])
        for name, entry in header.items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                data = raw[start + first : start + last]
                found[name] = (entry["dtype"], entry["shape"], data)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_files_are_those_that_were_converted(case: Case, tmp_path: Path) -> None:
    pair = case.write(tmp_path)
    assert {"draft": digest(pair.draft), "target": digest(pair.target)} == RECORDED[case.name][
        "files"
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_last_norm_of_the_file_is_the_converted_one(case: Case, tmp_path: Path) -> None:
    tensors = stored(case.write(tmp_path).draft)
    last = "mtp.1.norm.weight" if case.packaging == "deepseek4" else "norm.weight"
    dtype, shape, data = tensors[last]
    assert dtype == "BF16"
    widened = np.frombuffer(data, "<u2").astype("<u4") << 16
    entry = ["F32", shape, hashlib.sha256(widened.astype("<u4").tobytes()).hexdigest()]
    if "refused" not in RECORDED[case.name]:
        for outtype in ("f32", "bf16"):
            converted = RECORDED[case.name]["outtypes"][outtype]["tensors"]
            assert converted["output_norm.weight"] == entry


def test_every_packaging_and_no_other_is_recorded() -> None:
    ours = {case.name: [case.packaging, dict(case.variation)] for case in CASES}
    recorded = {
        name: [entry["packaging"], entry["variation"]]
        for name, entry in RECORDED.items()
        if entry["packaging"] != "trained"
    }
    assert recorded == ours
    assert set(PACKAGINGS) <= ours.keys()


def test_the_index_names_the_file_of_every_tensor(tmp_path: Path) -> None:
    draft = write("deepseek4", tmp_path).draft
    index = json.loads((draft / "model.safetensors.index.json").read_text())
    tensors = stored(draft)
    assert index["weight_map"].keys() == tensors.keys()
    assert index["metadata"]["total_size"] == sum(len(data) for _, _, data in tensors.values())
    assert len({shard for name, shard in index["weight_map"].items() if "mtp" in name}) == 2


def test_eight_bit_floats_hold_no_nan(tmp_path: Path) -> None:
    kinds = set()
    for packaging in ("deepseek4", "nemotron-nvfp4"):
        for dtype, _, data in stored(write(packaging, tmp_path / packaging).draft).values():
            kinds.add(dtype)
            if dtype == "F8_E4M3":
                assert not np.any((np.frombuffer(data, np.uint8) & 0x7F) == 0x7F)
    assert kinds == {"BF16", "F32", "F8_E4M3", "F8_E8M0", "I8", "U8"}
