"""Damages checkpoint folders and GGUFs as no exporter would, the same way for the same seed.

`bounded` is what a conversion of them must keep to.
"""

import copy
import json
import math
import random
import signal
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.rewrite import As, rewrite

SECONDS = 10
Files = dict[str, bytes]
"""Contents by path below the folder that holds draft and target."""
Change = tuple[str, Files]
"""What was done, for people, and the files that became others."""

# written as strings, and replaced by what json.dumps would not or could not make
_RAW = {
    "@inf": "1e400",
    "@nan": "NaN",
    "@digits": "9" * 400,
    "@deep": "[" * 300 + "]" * 300,
    "@deeper": '{"a":' * 940 + "1" + "}" * 940,
    "@deepest": "[" * 100_000,
}
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 15, 17, 96, 511, 2**15),
    *(10**9, 2**31 - 1, 2**31, 2**32, 2**63, 10**30, -(2**31), -(2**63)),
    *(0.0, -0.0, 0.5, 1.0, 1.5, -2.5, 1e-300, 1e-45, 1e30, 1e300, 6.0),
    *("", "a", "0", "12", "../x.safetensors", "/dev/zero", "a\nb\x1b[31m", "\ud800", "\0"),
    *("x" * 50_000, "yarn", "llama3", "proportional", "linear", "gated", "rnn"),
    *([], [0], [-1], [[]], [1, 3, 4], [3, 1, 4], [1, 1, 4], [0] * 600, [None], ["a"], [2**31]),
    *({}, {"": None}, {"full_attention": 1}, {"rope_type": "yarn", "factor": 0}),
    *_RAW,
)
_DTYPE_NAMES = "F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL F8_E4M3 F8_E5M2 F8_E8M0 U16 f32"
_DTYPES = _DTYPE_NAMES.split()
_SIZES = (0, 1, 2, 3, 16, 64, 96, 320, 2**31, 2**40, 2**59, 2**62, 2**64, -1, True, 1.0, "1", None)
_WORDS_TEXT = """
fc.weight d2t t2d lm_head.weight embed_tokens.weight confidence_head.proj.weight model.d2t
markov_head.markov_w1.weight markov_head.gate_proj.weight layers.0.mlp.up_proj.weight_packed
layers.7.input_layernorm.weight mtp.0.attn.wq_a.scale mtp.9999999999.norm.weight ../a
"""
_WORDS = _WORDS_TEXT.split()
_KEYS_TEXT = """
rope_theta rope_scaling rope_parameters partial_rotary_factor head_dim layer_types use_swa
sliding_window use_sliding_window draft_vocab_size num_hidden_layers markov_rank block_size
mask_token_id target_layer_ids aux_hidden_state_layer_ids dflash_config hidden_act
transformer_layer_config num_target_layers sample_from_anchor dspark_block_size
conv_kernel_size conv_group_size vocab_size hidden_size quantization_config causal
dspark_noise_token_id dspark_target_layer_ids rope_is_neox_style text_config architectures
"""
_KEYS = _KEYS_TEXT.split()


class Endless(BaseException):
    """Like Ctrl-C, nothing takes it for an error of its own."""


@contextmanager
def bounded() -> Iterator[None]:
    """Warnings become errors, and what takes too long ends as Endless."""

    def stop(_: int, __: FrameType | None) -> None:
        raise Endless(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # some client library's, of a test long past, collected now
            warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def read(folder: Path) -> Files:
    """Every file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def mutants(files: Files, rng: random.Random, count: int) -> Iterator[Change]:
    """Changes to a checkpoint's files: bytes, settings, headers, the index, the tokenizer."""
    read_files = [name for name in sorted(files) if not name.endswith(("merges.txt", "vocab.json"))]
    texts = [name for name in read_files if name.endswith(".json")]
    configs = [name for name in texts if name.endswith("/config.json")]
    shards = [name for name in read_files if name.endswith(".safetensors")]
    for _ in range(count):
        how = rng.random()
        if how < 0.2:
            name = rng.choice(read_files)
            yield f"bytes of {name}", {name: damaged(files[name], rng)}
        elif how < 0.85:
            name = rng.choice(configs if how < 0.6 else texts)
            yield f"JSON of {name}", {name: resettled(files[name], rng)}
        else:
            name = rng.choice(shards)
            yield f"header of {name}", {name: reheaded(files[name], rng)}


def damaged(whole: bytes, rng: random.Random) -> bytes:
    """Flipped, cut, inserted and overwritten bytes, half of them near the beginning."""
    raw = bytearray(whole)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(min(len(raw), rng.choice([16, 4096, len(raw)])) or 1)
        how = rng.randrange(6)
        if how < 2:
            raw[at : at + 1] = bytes([rng.randrange(256)])
        elif how == 2:
            raw[at : at + 8] = struct.pack("<Q", rng.choice([0, 7, 2**31, 2**40, 2**63, 2**64 - 1]))
        elif how == 3:
            raw[at : at + 64] = rng.choice([b"\xff", b"\0", b"\x7f\x80"]) * 64
        elif how == 4:
            del raw[at:]
        else:
            raw[at:at] = rng.randbytes(rng.randint(1, 16))
    return bytes(raw)


def resettled(text: bytes, rng: random.Random) -> bytes:
    """JSON with values replaced by hostile ones, keys removed, doubled or moved between levels."""
    value = json.loads(text)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        objects = [node for node in _nodes(value) if node]
        if not objects:
            break
        # the largest objects hold the settings
        node = rng.choice(objects if rng.random() < 0.3 else objects[:4])
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        how = rng.random()
        if how < 0.55:
            node[key] = _near(node[key], rng)
        elif how < 0.75:
            gone = node.pop(key)
            other = rng.choice(objects)
            within = any(other is inner for inner in _nodes(gone))
            if rng.random() < 0.5 and isinstance(other, dict) and not within:
                other[str(key)] = gone
        elif isinstance(node, dict):
            node[rng.choice(_KEYS)] = _near(node[key], rng)
    return written(value, rng)


def _near(value: Any, rng: random.Random) -> Any:  # noqa: ANN401
    """Another value: of whatever kind, or only a little off."""
    if rng.random() < 0.6 or not isinstance(value, int | float | list | str):
        return copy.deepcopy(rng.choice(HOSTILE))
    if isinstance(value, list):
        return rng.choice([value * 2, value[::-1], value[:1], [*value, 5], [value]])
    if isinstance(value, str):
        return rng.choice([value + "x", value.upper(), [value], {"content": value}])
    return rng.choice([-value, value + 1, value - 1, value * 2, value / 2, str(value), [value]])


def written(value: object, rng: random.Random) -> bytes:
    """JSON in bytes, now and then with a key given twice."""
    text = json.dumps(value)
    for mark, raw in _RAW.items():
        text = text.replace(f'"{mark}"', raw)
    if rng.random() < 0.05:
        text = text.replace("{", f'{{"{rng.choice(_KEYS)}": {rng.randrange(9)}, ', 1)
    return text.encode()


def _nodes(value: object) -> list[Any]:
    found: list[Any] = []
    waiting = [value]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, dict | list):
            found.append(node)
            waiting.extend(node.values() if isinstance(node, dict) else node[:50])
    return found


def split(shard: bytes) -> tuple[dict[str, Any], bytes]:
    """A safetensors file's header and data."""
    end = 8 + struct.unpack("<Q", shard[:8])[0]
    return json.loads(shard[8:end]), shard[end:]


def joined(header: bytes, data: bytes) -> bytes:
    """A safetensors file."""
    return struct.pack("<Q", len(header)) + header + data


def reheaded(shard: bytes, rng: random.Random) -> bytes:
    """Tensors renamed, reshaped, retyped, moved, left out or doubled, and their values spoilt."""
    header, data = split(shard)
    for name in rng.sample(list(header), rng.choice([1, 1, 2])):
        entry = header[name]
        how = rng.randrange(8)
        if how == 0 or "shape" not in entry:
            header[rng.choice([*_WORDS, name + "x", "model." + name])] = header.pop(name)
        elif how == 1:
            del header[name]
        elif how == 2:
            header[rng.choice(_WORDS)] = copy.deepcopy(entry)
        elif how == 3:
            entry[rng.choice(list(entry))] = copy.deepcopy(rng.choice(HOSTILE))
        elif how == 4:
            entry["data_offsets"][rng.randrange(2)] = rng.choice([*_SIZES, len(data), -8])
        elif how == 5:
            data = _spoilt(data, entry["data_offsets"], rng)
        else:
            _recast(entry, rng, whole=how == 6)
    return joined(written(header, rng), data)


def _spoilt(data: bytes, span: list[int], rng: random.Random) -> bytes:
    """The data with one value of the tensor at `span` overwritten by NaNs, infinities or zeros."""
    start, end = span
    at = rng.randrange(start, max(end - 3, start + 1)) // 4 * 4
    bad = rng.choice(["0000807f", "ffffffff", "ffff7f7f", "00000000", "807f807f", "00ff00ff"])
    return data[:at] + bytes.fromhex(bad) + data[at + 4 :]


def _recast(entry: dict[str, Any], rng: random.Random, *, whole: bool) -> None:
    """Another type or shape of as many bytes, or (not `whole`) of any size."""
    shape = entry["shape"]
    if not whole and shape:
        shape[rng.randrange(len(shape))] = rng.choice(_SIZES)
        return
    size = math.prod(shape)
    flat: list[list[int]] = [
        [size],
        [1, size],
        [size, 1],
        shape[::-1],
        [1] * 7 + [size],
        [*shape, 1],
    ]
    entry["shape"] = rng.choice([*flat, [size, 0], [], [0, 2**59, 2**59], [1] * 9])
    entry["dtype"] = rng.choice([entry["dtype"], *_DTYPES])
    if rng.random() < 0.5:
        start, end = entry["data_offsets"]
        width = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F8_E4M3": 1, "U8": 1, "I8": 1}
        entry["shape"] = [(end - start) // width.get(entry["dtype"], 2)]


def _values() -> tuple[As, ...]:
    kind = gguf.GGUFValueType
    scalars = (
        *(As(n, kind.UINT32) for n in (0, 1, 3, 65, 2**16, 2**31, 2**32 - 1)),
        *(As(n, kind.INT32) for n in (-1, -(2**31))),
        *(As(n, kind.FLOAT32) for n in (0.0, -1.0, 1.5, math.nan, math.inf, 1e-40)),
        *(As(1e300, kind.FLOAT64), As(2**63, kind.UINT64), As(-(2**63), kind.INT64)),
        *(As(text, kind.STRING) for text in ("", "x", "outputs", "rnn", "yarn", "a\nb")),
        *(As(truth, kind.BOOL) for truth in (True, False)),
    )
    lists = (
        *(As([n], kind.ARRAY, kind.INT32) for n in (0, -1, 7)),
        *(As(ids, kind.ARRAY, kind.UINT32) for ids in ([2, 4, 5], [4, 2, 5], [2, 2, 5], [1] * 600)),
        *(As([2**40], kind.ARRAY, kind.INT64), As([1.5], kind.ARRAY, kind.FLOAT32)),
        *(As(["a"], kind.ARRAY, kind.STRING), As([True], kind.ARRAY, kind.BOOL)),
    )
    return scalars + lists


VALUES = _values()


def gguf_mutants(source: Path, scratch: Path, rng: random.Random, count: int) -> Iterator[Change]:
    """A GGUF's bytes damaged, or its keys and tensors replaced by hostile ones.

    `source` stays mapped and must not be where the mutants are written.
    """
    whole, reader = source.read_bytes(), gguf.GGUFReader(source)
    shapes = {t.name: [int(n) for n in reversed(t.shape)] for t in reader.tensors}
    names, keys = list(shapes), [key for key in reader.fields if not key.startswith("GGUF.")]
    prefixed = [key for key in keys if not key.startswith("general.")]
    for _ in range(count):
        if rng.random() < 0.35:
            yield f"bytes of {source.name}", {source.name: damaged(whole, rng)}
            continue
        metadata: dict[str, Any] = {}
        tensors: dict[str, Any] = {}
        if rng.random() < 0.3:
            architectures = ["dspark", "dflash-draft", "qwen35-dflash-draft", "qwen3", "dflash"]
            metadata["general.architecture"] = rng.choice(architectures)
        for _ in range(rng.choice([0, 1, 1, 2])):
            metadata[rng.choice(prefixed)] = rng.choice([None, *VALUES])
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            name = rng.choice(names)
            tensors[name] = None
            if rng.random() < 0.7:
                others = [name, name, name + "x", "d2t", "output.weight", "conf_proj.bias"]
                tensors[rng.choice(others)] = _tensor(shapes[name], rng)
        yield (
            f"{metadata} {list(tensors)}",
            {source.name: rewrite(source, scratch, metadata, tensors).read_bytes()},
        )


def _tensor(shape: list[int], rng: random.Random) -> npt.NDArray[Any]:
    """Numbers of another type, shape or kind than a draft has."""
    sizes: list[list[int]] = [shape, shape, shape[::-1], [*shape, 1], [math.prod(shape)], [4]]
    kind = rng.choice([np.float32, np.float32, np.float16, np.int32, np.int64, np.int8])
    values = np.zeros(rng.choice(sizes), kind)
    if kind in (np.float32, np.float16):
        values.reshape(-1)[-1] = rng.choice([math.nan, math.inf, 6e4, 0])
    return values
