"""Drafts and targets that are GGUFs already: what `convert` refuses of them, and what it keeps."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest

from llamaspec.convert import Job, convert
from llamaspec.errors import IncompatibleDraftError, LlamaSpecError, ModelLoadError, OptionError
from tests import mutate
from tests.checkpoints import Pair
from tests.checkpoints.tokenizer import VOCABULARY
from tests.converted import give_tables
from tests.damage import place, refused
from tests.rewrite import As, rewrite

KIND = gguf.GGUFValueType
NAN = float("nan")


class Bad(NamedTuple):
    """Keys and tensors of a GGUF that are replaced (None: left out), and the refusal."""

    packaging: str
    keys: dict[str, Any]
    tensors: dict[str, Any]
    words: tuple[str, ...]
    kind: type[LlamaSpecError] = ModelLoadError


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    with mutate.bounded():
        yield


def zeros(*shape: int, dtype: Any = np.float32) -> Any:  # noqa: ANN401
    return np.zeros(shape, dtype)


def ids(*values: int) -> Any:  # noqa: ANN401
    return np.array(values, np.int64)


def nan(*shape: int) -> Any:  # noqa: ANN401
    return np.full(shape, NAN, np.float32)


SPEC, ZLAB, DFLASH2, V4 = "speculators", "zlab", "dflash2", "deepseek4"
TWICE = np.zeros(160, np.int64)
BEYOND = np.arange(161, 321)
DRAFTS = {
    "architecture": Bad(ZLAB, {"general.architecture": "qwen3"}, {}, ("qwen3", "repacked")),
    "no-theta": Bad(ZLAB, {"dflash.rope.freq_base": None}, {}, ("rope.freq_base", "--set")),
    "no-taps": Bad(ZLAB, {"dflash.target_layers": None}, {}, ("target_layers", "--set")),
    "no-block": Bad(ZLAB, {"dflash.block_size": None}, {}, ("block_size", "--set")),
    "no-mask": Bad(ZLAB, {"tokenizer.ggml.mask_token_id": None}, {}, ("mask_token_id", "--set")),
    "no-epsilon": Bad(
        ZLAB, {"dflash.attention.layer_norm_rms_epsilon": None}, {}, ("rms_epsilon", "--set")
    ),
    "nan-theta": Bad(ZLAB, {"dflash.rope.freq_base": NAN}, {}, ("rope.freq_base is nan",)),
    "theta": Bad(ZLAB, {"dflash.rope.freq_base": 1.0}, {}, ("rope.freq_base is 1",)),
    "a-billion-layers": Bad(ZLAB, {"dflash.block_count": 10**9}, {}, ("1000000000", "512")),
    "wide-heads": Bad(ZLAB, {"dflash.attention.key_length": 2**31}, {}, ("2147483648", "65536")),
    "taps-of-unknown-kind": Bad(
        ZLAB, {"general.architecture": "qwen35-dflash-draft"}, {}, ("layer_ids=inputs",)
    ),
    "negative-key": Bad(ZLAB, {"dflash.x": As(-1, KIND.INT32)}, {}, ("dflash.x is -1",)),
    "long-key": Bad(ZLAB, {"dflash.x": As(2**40, KIND.UINT64)}, {}, (str(2**40),)),
    "double": Bad(ZLAB, {"dflash.x": As(1e300, KIND.FLOAT64)}, {}, ("1e+300",)),
    "integers-for-weights": Bad(ZLAB, {}, {"fc.weight": zeros(64, 192, dtype=np.int32)}, ("I32",)),
    "doubles": Bad(ZLAB, {}, {"fc.weight": zeros(64, 192, dtype=np.float64)}, ("F64",)),
    "nan": Bad(ZLAB, {}, {"output_norm.weight": nan(64)}, ("output_norm.weight", "NaN")),
    "missing": Bad(ZLAB, {}, {"blk.1.ffn_up.weight": None}, ("blk.1.ffn_up.weight",)),
    "surplus": Bad(ZLAB, {}, {"blk.9.ffn_up.weight": zeros(1, 1)}, ("blk.9.ffn_up.weight",)),
    "shape": Bad(
        ZLAB,
        {},
        {"fc.weight": zeros(64, 128)},
        ("[64, 128]", "[64, 192]"),
        IncompatibleDraftError,
    ),
    "d2t-twice": Bad(SPEC, {}, {"d2t": TWICE}, ("160 rows to only 1",), IncompatibleDraftError),
    "d2t-beyond": Bad(SPEC, {}, {"d2t": BEYOND}, ("161 to 320",), IncompatibleDraftError),
    "d2t-floats": Bad(SPEC, {}, {"d2t": zeros(160)}, ("'d2t'", "F32")),
    "d2t-none": Bad(SPEC, {}, {"d2t": None}, ("[160, 64]", "[320, 64]"), IncompatibleDraftError),
    "no-kernel": Bad(DFLASH2, {"dflash.conv_kernel_size": None}, {}, ("conv_kernel_size",)),
    "no-group": Bad(DFLASH2, {"dflash.conv_group_size": 0}, {}, ("conv_group_size is 0",)),
    "kernel-of-text": Bad(DFLASH2, {"dflash.conv_kernel_size": As("2", KIND.STRING)}, {}, ("'2'",)),
    "list-for-text": Bad(
        ZLAB,
        {"dflash.rope.scaling.type": As([1], KIND.ARRAY, KIND.INT32)},
        {},
        ("draft.gguf: metadata key 'dflash.rope.scaling.type'", "not a string"),
    ),
    "no-experts": Bad(V4, {"dflash.expert_count": None}, {}, ("expert_count",)),
    "no-groups": Bad(V4, {"dflash.attention.output_group_count": 0}, {}, ("group_count is 0",)),
    "no-streams": Bad(V4, {"dflash.hyper_connection.count": None}, {}, ("blk.0.attn_k.weight",)),
}


def drafted(packaging: str, folder: Path) -> tuple[Path, Pair]:
    """A packaging's draft as a GGUF."""
    pair = place(packaging, folder)
    convert(Job(pair.draft, pair.target, folder / "whole.gguf"))
    return folder / "whole.gguf", pair


@pytest.mark.parametrize("name", DRAFTS)
def test_a_bad_draft(name: str, tmp_path: Path) -> None:
    case = DRAFTS[name]
    whole, pair = drafted(case.packaging, tmp_path)
    draft = rewrite(whole, tmp_path / "draft.gguf", case.keys, case.tensors)
    line = refused(Job(draft, pair.target, tmp_path / "out.gguf"), case.kind)
    for word in case.words:
        assert word in line


def test_blocks_with_a_nan_for_a_scale(tmp_path: Path) -> None:
    pair = place(ZLAB, tmp_path)
    draft = tmp_path / "draft.gguf"
    convert(Job(pair.draft, pair.target, draft, "q8_0"))
    raw = bytearray(draft.read_bytes())
    (found,) = [t for t in gguf.GGUFReader(draft).tensors if t.name == "blk.0.ffn_up.weight"]
    raw[found.data_offset + 34 : found.data_offset + 36] = b"\0\x7e"
    draft.write_bytes(raw)
    line = refused(Job(draft, pair.target, tmp_path / "out.gguf"), ModelLoadError)
    assert "blk.0.ffn_up.weight" in line
    assert "NaN" in line


def test_a_vector_in_blocks(tmp_path: Path) -> None:
    whole, pair = drafted(ZLAB, tmp_path)
    reader = gguf.GGUFReader(whole)
    writer = gguf.GGUFWriter(tmp_path / "draft.gguf", "dflash")
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1])
    for found in reader.tensors:
        data, kind = found.data, found.tensor_type
        if found.name == "output_norm.weight":
            kind = gguf.GGMLQuantizationType.Q8_0
            data = gguf.quants.quantize(np.ones(64, np.float32), kind)
        writer.add_tensor(found.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    job = Job(tmp_path / "draft.gguf", pair.target, tmp_path / "out.gguf")
    line = refused(job, ModelLoadError)
    assert "1 dimensions and type Q8_0" in line


TOKENS = "tokenizer.ggml.tokens"
TARGETS = {
    "no-tokens": Bad(ZLAB, {TOKENS: None, "qwen3.vocab_size": VOCABULARY}, {}, ("has no tokens",)),
    "numbers-for-tokens": Bad(ZLAB, {TOKENS: As([1] * 320, KIND.ARRAY, KIND.INT32)}, {}, ("'1'",)),
    "a-word-for-tokens": Bad(ZLAB, {TOKENS: As("a", KIND.STRING)}, {}, ("has no tokens",)),
    "types-beyond": Bad(
        ZLAB,
        {"tokenizer.ggml.token_type": As([2**32 - 1], KIND.ARRAY, KIND.UINT32)},
        {},
        ("tokenizer.ggml.token_type is 4294967295",),
    ),
    "doubles": Bad(
        ZLAB, {"tokenizer.ggml.x": As([1e300], KIND.ARRAY, KIND.FLOAT64)}, {}, ("1e+300",)
    ),
    "no-layers": Bad(ZLAB, {"qwen3.block_count": 0}, {}, ("0 layers",)),
    "a-layer": Bad(ZLAB, {"qwen3.block_count": 2}, {}, ("is 6", "has 2"), IncompatibleDraftError),
    "width": Bad(
        ZLAB, {"qwen3.embedding_length": 32}, {}, ("is 64", "has 32"), IncompatibleDraftError
    ),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target as a GGUF, of as many layers as the drafts say."""
    folder = tmp_path_factory.mktemp("target")
    ready = give_tables(place(ZLAB, folder), folder)
    return rewrite(ready.target, folder / "six.gguf", {"qwen3.block_count": 6})


@pytest.mark.parametrize("name", TARGETS)
def test_a_bad_target(name: str, target: Path, tmp_path: Path) -> None:
    case, pair = TARGETS[name], place(ZLAB, tmp_path)
    bad = rewrite(target, tmp_path / "target.gguf", case.keys, case.tensors)
    line = refused(Job(pair.draft, bad, tmp_path / "out.gguf"), case.kind)
    for word in case.words:
        assert word in line


def test_a_draft_for_a_target(tmp_path: Path) -> None:
    whole, pair = drafted("deepspec", tmp_path)
    copy = Path(shutil.copy(whole, tmp_path / "copy.gguf"))
    line = refused(Job(pair.draft, copy, tmp_path / "out.gguf"), ModelLoadError)
    assert "is a DSpark draft for a target of width 64" in line


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_one_file_of_a_target(name: str, tmp_path: Path) -> None:
    pair = place(ZLAB, tmp_path)
    line = refused(Job(pair.draft, pair.target / name, tmp_path / "out.gguf"), OptionError)
    assert "give the folder" in line


def test_empty_arrays_of_a_target_are_left_out(target: Path, tmp_path: Path) -> None:
    """gguf's writer refuses them; here the count of an array of one string is made 0."""
    one = rewrite(target, tmp_path / "one.gguf", {"tokenizer.ggml.x": ["ab"]})
    raw = one.read_bytes()
    at = raw.index(b"tokenizer.ggml.x") + len(b"tokenizer.ggml.x") + 8
    empty = raw[:at] + bytes(8) + raw[at + 8 + 8 + 2 :]
    start = min(t.data_offset for t in gguf.GGUFReader(one).tensors)
    header = empty[: start - 10].rstrip(b"\0")
    padded = header + bytes(-len(header) % 32)
    (tmp_path / "empty.gguf").write_bytes(padded + raw[start:])
    pair = place(ZLAB, tmp_path)
    report = convert(Job(pair.draft, tmp_path / "empty.gguf", tmp_path / "out.gguf"))
    assert "tokenizer.ggml.x" not in gguf.GGUFReader(report.output).fields
    assert report.target.tokenizer["tokenizer.ggml.x"].value == []
