"""Pairs of random weights and a true shape: for timing without a download.

Written piece by piece, so that a file larger than memory is no matter. The same parameters give the
same bytes, and a file that was made with them is used again.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFValueType

from llamaspec.bench.shapes import Shape, named
from llamaspec.convert.keys import Value, draft_keys, typed
from llamaspec.convert.outtype import FILE_TYPES
from llamaspec.convert.plan import DraftConfig, DraftShape, Rope
from llamaspec.convert.weights import Piece, Weights, bf16, constant
from llamaspec.convert.writer import Output, write
from llamaspec.errors import LlamaSpecError, ModelLoadError, OptionError
from llamaspec.runtime.gguf_file import GGUFFile

QUANTS = ("f32", "bf16", "q8_0", "q4_0")
VERSION = 1
SEED = 20
END = "<|end|>"
MASK = "<|mask|>"
_MARK = "llamaspec.synthetic"
# a prime number of blocks: no row length divides it, so that rows differ though the noise repeats
_POOL = 99_991
_MERGES = 1 << 15
_BLOCK = 32
_BLOCK_BYTES = {"q8_0": 34, "q4_0": 18}


@dataclass(frozen=True)
class SynthPair:
    """Two files of random weights; fresh: they were written now."""

    target: Path
    draft: Path
    fresh: bool


def synthesise(shape_name: str, quant: str, folder: Path) -> SynthPair:
    """Write a target and a DSpark draft, or find them written.

    Args:
        shape_name: of `shapes.SHAPES`.
        quant: of QUANTS, the type of all large matrices.
        folder: where to; made where it is missing.

    Raises:
        OptionError: an unknown shape or type, or the folder cannot be written.
    """
    shape = named(shape_name)
    if quant not in QUANTS:
        raise OptionError(f"there is no type {quant!r} here; the types are {', '.join(QUANTS)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"{folder}: cannot be made ({error.strerror})") from None
    mark = json.dumps({"version": VERSION, "quant": quant, **asdict(shape)}, sort_keys=True)
    fresh, paths = False, []
    for part, output in (("target", _target), ("draft", _draft)):
        path = folder / f"{shape.name}-{quant}-{part}.gguf"
        if _mark_of(path) != mark:
            _write(path, output(shape, quant, mark))
            fresh = True
        paths.append(path)
    return SynthPair(paths[0], paths[1], fresh)


def _mark_of(path: Path) -> object:
    if not path.exists():
        return None
    try:
        with GGUFFile.open(path) as file:
            return file.metadata.get(_MARK)
    except ModelLoadError:
        return None


def _write(path: Path, output: Output) -> None:
    part = path.with_suffix(".part")
    try:
        write(part, output)
        part.replace(path)
    except OSError as error:
        raise LlamaSpecError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        part.unlink(missing_ok=True)


def _target(shape: Shape, quant: str, mark: str) -> Output:
    arch = "qwen3"
    sizes = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.width,
        "feed_forward_length": shape.feed_forward,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_width,
        "attention.value_length": shape.head_width,
        "attention.layer_norm_rms_epsilon": shape.rms_epsilon,
        "rope.freq_base": shape.rope_theta,
    }
    keys = {f"{arch}.{name}": typed(value) for name, value in sizes.items()}
    return _output(arch, shape, quant, mark, keys, target_tensors(shape))


def target_tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Every tensor of a target and its shape, rows first."""
    table = (shape.vocabulary, shape.width)
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": table}
    tensors |= _layers(shape, shape.layers) | {"output_norm.weight": (shape.width,)}
    if not shape.tied:
        tensors["output.weight"] = table
    return tensors


def _draft(shape: Shape, quant: str, mark: str) -> Output:
    taps = tuple(layer + 1 for layer in shape.taps)
    sizes = DraftShape(
        layers=shape.draft_layers,
        width=shape.width,
        feed_forward=shape.feed_forward,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_width=shape.head_width,
        context=shape.context,
        rms_epsilon=shape.rms_epsilon,
        vocabulary=shape.vocabulary,
    )
    config = DraftConfig(
        shape=sizes,
        rope=Rope(shape.rope_theta),
        block=shape.block,
        mask=shape.mask,
        taps=taps,
        anchor_first=True,
        markov=("vanilla", shape.rank),
        draft_vocabulary=shape.vocabulary,
        confidence=True,
    )
    # embedding and head are the target's, as of published drafts after conversion
    tensors: dict[str, tuple[int, ...]] = {
        "fc.weight": (shape.width, len(taps) * shape.width),
        "enc.output_norm.weight": (shape.width,),
        "output_norm.weight": (shape.width,),
        "markov_w1.weight": (shape.vocabulary, shape.rank),
        "markov_w2.weight": (shape.vocabulary, shape.rank),
        "conf_proj.weight": (1, shape.width + shape.rank),
        "conf_proj.bias": (1,),
    }
    tensors |= _layers(shape, shape.draft_layers)
    return _output("dflash", shape, quant, mark, draft_keys(config), tensors)


def _layers(shape: Shape, count: int) -> dict[str, tuple[int, ...]]:
    queries, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    found: dict[str, tuple[int, ...]] = {}
    for layer in range(count):
        one = {
            "attn_norm": (shape.width,),
            "attn_q": (queries, shape.width),
            "attn_k": (keys, shape.width),
            "attn_v": (keys, shape.width),
            "attn_q_norm": (shape.head_width,),
            "attn_k_norm": (shape.head_width,),
            "attn_output": (shape.width, queries),
            "ffn_norm": (shape.width,),
            "ffn_gate": (shape.feed_forward, shape.width),
            "ffn_up": (shape.feed_forward, shape.width),
            "ffn_down": (shape.width, shape.feed_forward),
        }
        found |= {f"blk.{layer}.{name}.weight": size for name, size in one.items()}
    return found


def _output(
    arch: str,
    shape: Shape,
    quant: str,
    mark: str,
    keys: dict[str, Value],
    tensors: dict[str, tuple[int, ...]],
) -> Output:
    named_keys = {
        "general.name": typed(f"{shape.name}, random weights"),
        "general.file_type": typed(FILE_TYPES[quant]),
        "general.quantization_version": typed(2),
        _MARK: typed(mark),
    }
    noise = _Noise(quant)
    weights = {n: noise.tensor(n, size, shape) for n, size in tensors.items()}
    types = {name: one.kind for name, one in weights.items()}
    return Output(arch, {**named_keys, **keys, **tokenizer(shape)}, weights, types)


def tokenizer(shape: Shape) -> dict[str, Value]:
    """A byte-level BPE of the shape's size: bytes, pairs of them, numbered tokens that no text
    gives, and two control tokens.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256))
    letters = [chr(b) if b in printable else chr(256 + next(others)) for b in range(256)]
    room = max(0, min(_MERGES, shape.mask - 1 - len(letters)))
    order = sorted(letters, key=lambda letter: not letter.isascii())
    pairs = [(a, b) for a in order for b in order][:room]
    texts = [*letters, *(a + b for a, b in pairs)]
    texts += [f"<w{number}>" for number in range(len(texts), shape.vocabulary)]
    end = shape.mask - 1
    texts[end], texts[shape.mask] = END, MASK
    kinds = [1] * len(letters) + [1] * len(pairs)
    kinds += [1] * (shape.vocabulary - len(kinds))
    kinds[end] = kinds[shape.mask] = 3
    return {
        "tokenizer.ggml.model": typed("gpt2"),
        "tokenizer.ggml.pre": typed("qwen2"),
        "tokenizer.ggml.tokens": typed(texts),
        "tokenizer.ggml.token_type": Value(kinds, GGUFValueType.ARRAY, GGUFValueType.INT32),
        "tokenizer.ggml.merges": typed([f"{a} {b}" for a, b in pairs]),
        "tokenizer.ggml.eos_token_id": typed(end),
        "tokenizer.ggml.add_bos_token": typed(False),
        "tokenizer.ggml.mask_token_id": typed(shape.mask),
    }


class _Noise:
    """Random blocks of one type, over and over, each tensor from a place of its own."""

    def __init__(self, quant: str) -> None:
        self._quant = quant
        self._pools: dict[str, npt.NDArray[np.uint8]] = {}

    def tensor(self, name: str, size: tuple[int, ...], shape: Shape) -> Weights:
        """A tensor of random weights, its columns scaled so that activations keep their size."""
        if name.endswith("norm.weight"):
            return constant(np.ones(size, np.float32))
        if len(size) < 2 or name == "conf_proj.weight":
            generator = np.random.default_rng([SEED, len(name)])
            values = generator.normal(0, size[-1] ** -0.5, size).astype(np.float32)
            return constant(values)
        assert size[-1] % _BLOCK == 0, "rows in whole blocks"
        quant = self._quant
        if quant.startswith("q") and name.startswith(("fc.", "markov_")):
            quant = "bf16"
        # an end token of zeros has the logit 0, which is never the largest
        end = shape.mask - 1 if size[0] == shape.vocabulary else -1
        return Weights(size, quant.upper(), self._rows(name, size, quant, end))

    def _rows(self, name: str, size: tuple[int, ...], quant: str, end: int) -> "_Rows":
        pool = self._pools.setdefault(quant, _pool(quant))
        start = int(np.random.default_rng([SEED, *name.encode()]).integers(0, _POOL))
        return _Rows(pool, size[-1], quant, start, end, scale=size[-1] ** -0.5)


@dataclass(frozen=True)
class _Rows:
    """Gives rows [first, last) of a tensor."""

    pool: npt.NDArray[np.uint8]
    columns: int
    quant: str
    start: int
    end: int
    scale: float

    def __call__(self, first: int, last: int) -> Piece:
        a_row = self.columns // _BLOCK
        where = (self.start + first * a_row + np.arange((last - first) * a_row)) % _POOL
        stored = self.pool[where].reshape(last - first, -1)
        if first <= self.end < last:
            stored[self.end - first] = 0
        return self._scaled(stored)

    def _scaled(self, stored: npt.NDArray[np.uint8]) -> Piece:
        if self.quant == "f32":
            return stored.view(np.float32) * np.float32(self.scale)
        if self.quant == "bf16":
            wide = (stored.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
            return bf16(wide * np.float32(self.scale))
        blocks = stored.reshape(-1, _BLOCK_BYTES[self.quant])
        scales = blocks[:, :2].copy().view(np.float16).astype(np.float32) * self.scale
        blocks[:, :2] = scales.astype(np.float16).view(np.uint8)
        return stored


def _pool(quant: str) -> npt.NDArray[np.uint8]:
    """_POOL blocks of 32 numbers of about normal size 1, in blocks of a type [_POOL, bytes]."""
    generator = np.random.default_rng([SEED, QUANTS.index(quant)])
    count = (_POOL, _BLOCK)
    if quant == "f32":
        return generator.standard_normal(count, np.float32).view(np.uint8)
    if quant == "bf16":
        return bf16(generator.standard_normal(count, np.float32)).view(np.uint8)
    # uniform integers of -127..127 and -8..7 spread by so much
    spread = 73.6 if quant == "q8_0" else 4.6
    jitter = generator.uniform(0.8, 1.2, (_POOL, 1)) / spread
    scales = jitter.astype(np.float16).view(np.uint8)
    if quant == "q8_0":
        whole = generator.integers(-127, 128, count, np.int8).view(np.uint8)
    else:
        whole = generator.integers(0, 256, (_POOL, 16), np.uint8)
    return np.concatenate([scales, whole], axis=1)
