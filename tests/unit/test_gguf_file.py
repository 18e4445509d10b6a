"""GGUFFile reads what gguf's own reader reads, and refuses everything else in one line."""

import random
import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from llamaspec.errors import ClosedError, ModelLoadError
from llamaspec.runtime.describe import describe
from llamaspec.runtime.gguf_file import GGUFFile, MetaArray
from llamaspec.runtime.gguf_types import TENSOR_TYPES
from tests.miniature import TEMPLATE, VOCABULARY, ramp, write_draft, write_gguf, write_target

U64 = struct.Struct("<Q")
KV_START = 24


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target.gguf")


def refused(path: Path, *parts: str) -> str:
    """Open a file that must be refused; every part must be in the one-line message."""
    with pytest.raises(ModelLoadError) as caught:
        GGUFFile.open(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    for part in parts:
        assert part in message
    return message


def patched(path: Path, position: int, data: bytes) -> Path:
    raw = bytearray(path.read_bytes())
    raw[position : position + len(data)] = data
    path.write_bytes(raw)
    return path


def header(pairs: bytes, n_pairs: int, tensors: bytes = b"", n_tensors: int = 0) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", 3, n_tensors, n_pairs) + pairs + tensors


def text(value: str) -> bytes:
    return U64.pack(len(value)) + value.encode()


def tensor_info(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    sizes = b"".join(map(U64.pack, dims))
    return text(name) + struct.pack("<I", len(dims)) + sizes + struct.pack("<IQ", kind, offset)


def test_reads_metadata_of_every_kind(tmp_path: Path) -> None:
    values = {"a": 7, "b": -7, "c": True, "d": 0.5, "e": "é", "f": ["x", "", "日本"], "g": [1, -2]}
    path = write_gguf(tmp_path / "m.gguf", "qwen3", values, {"t": ramp(2, 3)})
    with GGUFFile.open(path) as file:
        found = {
            key: list(value) if isinstance(value, MetaArray) else value
            for key, value in file.metadata.items()
        }
        assert values.items() <= found.items()
        assert file.architecture == "qwen3"
        assert file.tensors["t"].shape == (2, 3)
        assert np.array_equal(file.array("t"), ramp(2, 3))


def test_agrees_with_the_gguf_package_on_the_trained_pair(ggufs: Path) -> None:
    paths = sorted(ggufs.glob("*.gguf"))
    assert paths
    for path in paths:
        reader = gguf.GGUFReader(path)
        with GGUFFile.open(path) as file:
            assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
            for tensor in reader.tensors:
                info = file.tensors[tensor.name]
                assert (info.offset, info.nbytes) == (tensor.data_offset, tensor.n_bytes)
                assert info.shape == tuple(map(int, tensor.shape[::-1]))
                if info.type == "I64":
                    assert np.array_equal(file.integers(info.name), tensor.data)
                else:
                    right = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
                    assert np.array_equal(file.array(info.name), right)


def test_dequantises_every_stored_type(tmp_path: Path) -> None:
    values = np.linspace(-3, 3, 512, dtype=np.float32).reshape(2, 256)
    stored = {
        "Q8_0": gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0),
        "Q4_0": gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_0),
        "BF16": gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16),
        "F16": values.astype(np.float16),
        "F64": values.astype(np.float64),
        "I32": np.arange(512, dtype=np.int32).reshape(2, 256),
    }
    writer = gguf.GGUFWriter(tmp_path / "q.gguf", "qwen3")
    for name, data in stored.items():
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[name])
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()
    with GGUFFile.open(tmp_path / "q.gguf") as file:
        for name, tolerance in {
            "Q8_0": 0.02,
            "Q4_0": 0.4,
            "BF16": 0.02,
            "F16": 2e-3,
            "F64": 0,
        }.items():
            found = file.array(name)
            assert found.dtype == np.float32
            assert found.shape == (2, 256)
            assert np.abs(found - values).max() <= tolerance
        assert np.array_equal(file.array("I32"), stored["I32"])


def test_integers_that_float32_cannot_hold_are_not_rounded(tmp_path: Path) -> None:
    ids = np.array([0, (1 << 24) + 1], dtype=np.int64)
    with GGUFFile.open(write_gguf(tmp_path / "i.gguf", "qwen3", {}, {"d2t": ids})) as file:
        assert np.array_equal(file.integers("d2t"), ids)
        with pytest.raises(ModelLoadError, match="16777216"):
            file.array("d2t")
        with pytest.raises(ModelLoadError, match="no tensor 'x'"):
            file.array("x")


def test_a_large_vocabulary_opens_at_once(tmp_path: Path) -> None:
    tokens = [f"token{i}" for i in range(150_000)]
    pairs = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": [0.5] * 150_000}
    path = write_gguf(tmp_path / "v.gguf", "qwen3", pairs, {"t": ramp(1)})
    best = 1.0
    for _ in range(5):
        start = time.perf_counter()
        file = GGUFFile.open(path)
        best = min(best, time.perf_counter() - start)
    array = file.metadata["tokenizer.ggml.tokens"]
    assert isinstance(array, MetaArray)
    assert (len(array), array[149_999], array[3:5]) == (150_000, "token149999", tokens[3:5])
    file.close()
    assert best < 0.1


def test_closed_files_say_so(target: Path) -> None:
    file = GGUFFile.open(target)
    tokens = file.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, MetaArray)
    array = file.array("output_norm.weight")
    file.close()
    file.close()
    assert array[1] == 1
    assert len(tokens) == VOCABULARY
    with pytest.raises(ClosedError):
        file.array("output_norm.weight")
    with pytest.raises(ClosedError):
        tokens.tolist()


def test_type_sizes_are_those_of_the_gguf_package() -> None:
    theirs = {int(kind): (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert theirs.items() <= TENSOR_TYPES.items()


def test_what_is_not_a_file(tmp_path: Path) -> None:
    refused(tmp_path / "missing.gguf", "no such file")
    refused(tmp_path, "directory")
    empty = tmp_path / "empty.gguf"
    empty.touch()
    refused(empty, "0 bytes")
    with pytest.raises(ModelLoadError, match="cannot be read"):
        GGUFFile.open("nul\0byte.gguf")
    with pytest.raises(ModelLoadError, match="regular"):
        GGUFFile.open("/dev/null")


def test_what_is_not_a_gguf(tmp_path: Path, target: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK\3\4 a zip file")
    refused(other, "b'PK\\x03\\x04'", "b'GGUF'")
    other.write_bytes(b"version https://lfs.invalid/spec/v1\noid sha256:0")
    refused(other, "LFS")
    other.write_bytes(b"GGU")
    refused(other, "b'GGU'")
    for version, words in ((1, "version 1"), (4, "version 4"), (0, "version 0")):
        refused(patched(target, 4, struct.pack("<I", version)), words)
    refused(patched(target, 4, struct.pack(">I", 3)), "big-endian")


def test_a_truncated_file_names_the_missing_bytes(target: Path) -> None:
    raw = target.read_bytes()
    target.write_bytes(raw[:-100])
    with GGUFFile.open(write_target(target.with_name("whole.gguf"))) as file:
        end = max(info.offset + info.nbytes for info in file.tensors.values())
    refused(
        target, f"ends at byte {end}", f"has {len(raw) - 100}", f"{end - len(raw) + 100} missing"
    )
    target.write_bytes(raw[:200])
    refused(target, "176 bytes are left")


HUGE = (1 << 63, (1 << 64) - 1, 1 << 40)


@pytest.mark.parametrize("count", HUGE)
@pytest.mark.parametrize(
    ("position", "what"), [(8, "tensors"), (16, "metadata pairs"), (24, "key")]
)
def test_counts_beyond_the_file(target: Path, count: int, position: int, what: str) -> None:
    refused(patched(target, position, U64.pack(count)), str(count), what)


@pytest.mark.parametrize("count", HUGE)
@pytest.mark.parametrize("kind", [0, 8, 12])
def test_arrays_beyond_the_file(tmp_path: Path, count: int, kind: int) -> None:
    path = tmp_path / "array.gguf"
    path.write_bytes(header(text("k") + struct.pack("<IIQ", 9, kind, count) + b"x" * 40, 1))
    refused(path, str(count), "in k")


def test_strings_beyond_the_file(tmp_path: Path) -> None:
    path = tmp_path / "string.gguf"
    for length in (*HUGE, 41):
        path.write_bytes(header(text("k") + struct.pack("<IQ", 8, length) + b"x" * 40, 1))
        refused(path, str(length), "value of k")
        items = text("ok") + U64.pack(length) + text("ok")
        path.write_bytes(header(text("k") + struct.pack("<IIQ", 9, 8, 3) + items, 1))
        refused(path, "string in k")
    path.write_bytes(header(U64.pack(1 << 20) + b"x" * (1 << 20), 1))
    refused(path, "key", str(1 << 20))


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (text("k") + struct.pack("<II", 13, 0), "unknown type 13"),
        (text("k") + struct.pack("<IIQ", 9, 9, 0), "array of arrays"),
        (text("k") + struct.pack("<IIQ", 9, 77, 0), "unknown item type 77"),
        (text("") + struct.pack("<II", 4, 0), "empty or given twice"),
        (text("general.alignment") + struct.pack("<II", 4, 48), "48"),
        (text("general.alignment") + struct.pack("<II", 4, 0), "power of two"),
        (text("general.alignment") + struct.pack("<IQ", 10, 32), "uint32"),
    ],
)
def test_malformed_metadata(tmp_path: Path, pairs: bytes, words: str) -> None:
    path = tmp_path / "pairs.gguf"
    path.write_bytes(header(pairs, 1))
    refused(path, words)
    path.write_bytes(header((text("k") + struct.pack("<II", 4, 1)) * 2, 2))
    refused(path, "'k'", "twice")


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([("a" * 64, (1,), 0, 0)], "64 bytes"),
        ([("a", (1, 1, 1, 1, 1), 0, 0)], "5 dimensions"),
        ([("a", (1,), 43, 0)], "unknown type 43"),
        ([("a", (1,), 4, 0)], "unknown type 4"),
        ([("a", (33,), 8, 0)], "blocks of 32"),
        ([("a", (1 << 62, 4), 0, 0)], "impossible shape"),
        ([("a", (1 << 40, 0, 1 << 40), 0, 0)], "impossible shape"),
        ([("a", (1,), 0, 32)], "at 32, expected at 0"),
        ([("a", (8,), 0, 0), ("b", (8,), 0, 0)], "at 0, expected at 32"),
        ([("a", (8,), 0, 0), ("a", (8,), 0, 32)], "given twice"),
        ([("a", (1000,), 0, 0)], "missing"),
    ],
)
def test_malformed_tensors(
    tmp_path: Path, tensors: list[tuple[str, tuple[int, ...], int, int]], words: str
) -> None:
    path = tmp_path / "tensors.gguf"
    infos = b"".join(tensor_info(*tensor) for tensor in tensors)
    path.write_bytes(header(b"", 0, infos, len(tensors)) + b"\0" * 200)
    refused(path, words)


def test_no_architecture(tmp_path: Path) -> None:
    path = tmp_path / "none.gguf"
    path.write_bytes(header(b"", 0))
    with GGUFFile.open(path) as file, pytest.raises(ModelLoadError, match=r"general\.architecture"):
        _ = file.architecture


def split(folder: Path, count: int, stem: str = "m") -> list[Path]:
    return [
        write_target(
            folder / f"{stem}-{number + 1:05d}-of-{count:05d}.gguf",
            {"split.no": number, "split.count": count},
        )
        for number in range(count)
    ]


def test_split_models(tmp_path: Path) -> None:
    first, second, third = split(tmp_path, 3)
    with GGUFFile.open(first) as file:
        assert file.parts == (first, second, third)
    assert describe(first).size_bytes == sum(part.stat().st_size for part in (first, second, third))
    refused(second, "part 2 of 3", first.name)
    third.unlink()
    refused(first, "1 of its 3 parts", third.name)
    renamed = first.rename(tmp_path / "renamed.gguf")
    refused(renamed, "-00001-of-00003.gguf")


def mutants(whole: bytes, rng: random.Random, count: int) -> list[bytes]:
    """Flipped bytes, truncations and edited numbers, mostly in the header."""
    found = []
    for _ in range(count):
        raw = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            at = (
                rng.randrange(min(len(raw), 4096))
                if rng.random() < 0.9
                else rng.randrange(len(raw))
            )
            how = rng.randrange(5)
            if how == 0:
                raw[at] ^= 1 << rng.randrange(8)
            elif how == 1:
                raw[at : at + 8] = U64.pack(rng.choice([0, 1, 2**31, 2**32, 2**63, 2**64 - 1]))
            elif how == 2:
                raw[at : at + 4] = struct.pack("<I", rng.choice([0, 8, 9, 13, 255, 2**32 - 1]))
            elif how == 3:
                del raw[max(4, at) :]
            else:
                raw[at:at] = rng.randbytes(rng.randint(1, 16))
        found.append(bytes(raw))
    return found


@pytest.mark.parametrize("write", [write_target, write_draft])
def test_mutants_end_in_success_or_refusal(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    path = write(tmp_path / "mutant.gguf")
    whole, rng, outcomes = path.read_bytes(), random.Random(20260715), {True: 0, False: 0}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slowest = 0.0
    for mutant in mutants(whole, rng, 1500):
        path.write_bytes(mutant)
        start = time.perf_counter()
        outcomes[opens(path)] += 1
        slowest = max(slowest, time.perf_counter() - start)
    assert min(outcomes.values()) > 50, outcomes
    assert slowest < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def opens(path: Path) -> bool:
    """Read everything of a file; False where it is refused."""
    try:
        with GGUFFile.open(path) as file:
            for value in file.metadata.values():
                if isinstance(value, MetaArray):
                    value.tolist()
            for name in file.tensors:
                file.array(name)
        describe(path)
    except ModelLoadError:
        return False
    return True


def test_the_template_survives(target: Path) -> None:
    with GGUFFile.open(target) as file:
        assert file.metadata["tokenizer.chat_template"] == TEMPLATE
