"""Broken files and senseless arguments: one line and exit code 2, or a typed exception; no crash.

Every case goes through the library and through the command line.
"""

import json
import math
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest

from llamaspec import demo
from llamaspec.errors import (
    ContextFullError,
    IncompatibleDraftError,
    LlamaSpecError,
    ModelLoadError,
    OptionError,
    SamplingError,
)
from llamaspec.options import Head
from llamaspec.runtime.model import Model
from llamaspec.session import Session, load
from tests.e2e.terminal import llamaspec, refusal, together
from tests.miniature import VOCABULARY, WIDTH, ramp, write_gguf, write_target
from tests.rewrite import As, rewrite, tensor

pytestmark = pytest.mark.native

TARGET, DRAFT = demo.target_path(), demo.draft_path()
PROMPT = "Write a Python function."
NAN = float("nan")
HEADER = struct.Struct("<4sIQQQ")

Build = Callable[[Path], Path]
RUN = ("run", "-t", 1, "-n", 4)


class Refused(NamedTuple):
    """Files that are no good, and the command that was given them."""

    target: Path
    draft: Path | None
    shown: "subprocess.CompletedProcess[str]"


def absent(out: Path) -> Path:
    return out


def containing(data: bytes) -> Build:
    def build(out: Path) -> Path:
        out.write_bytes(data)
        return out

    return build


def declaring(**numbers: int) -> Build:
    """The target with other numbers at the very start of its header."""

    def build(out: Path) -> Path:
        data = bytearray(TARGET.read_bytes())
        fields = ("magic", "version", "tensors", "pairs", "key_bytes")
        values = dict(zip(fields, HEADER.unpack_from(data), strict=True)) | numbers
        HEADER.pack_into(data, 0, *values.values())
        out.write_bytes(data)
        return out

    return build


def long_array(out: Path) -> Path:
    """The target whose list of tokens claims to be far longer than the file."""
    data = bytearray(TARGET.read_bytes())
    key = b"tokenizer.ggml.tokens"
    count_at = data.index(key) + len(key) + 8
    struct.pack_into("<Q", data, count_at, 2**40)
    out.write_bytes(data)
    return out


def long_string(out: Path) -> Path:
    """The target whose name claims to be longer than the file."""
    data = bytearray(TARGET.read_bytes())
    key = b"general.name"
    struct.pack_into("<Q", data, data.index(key) + len(key) + 4, 2**63)
    out.write_bytes(data)
    return out


def cut(source: Path) -> Build:
    def build(out: Path) -> Path:
        out.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
        return out

    return build


def changed(source: Path, metadata: dict[str, Any] | None = None, **tensors: object) -> Build:
    """A copy with changes; a tensor's dots are written as double underscores."""
    named = {key.replace("__", ".") + ".weight": value for key, value in tensors.items()}
    return lambda out: rewrite(source, out, metadata, named)


def directory(out: Path) -> Path:
    out.mkdir()
    return out


def link_to_itself(out: Path) -> Path:
    out.symlink_to(out)
    return out


def pipe(out: Path) -> Path:
    os.mkfifo(out)
    return out


def unreadable(out: Path) -> Path:
    out.write_bytes(TARGET.read_bytes())
    out.chmod(0)
    return out


def zeros(*shape: int) -> "np.ndarray[Any, np.dtype[np.float32]]":
    return np.zeros(shape, np.float32)


def silent_architecture(out: Path) -> Path:
    return write_target(out, arch="gemma3n")


def encoding(arch: str) -> Build:
    """A model with an encoder that llama.cpp loads: T5, or T5's encoder alone."""
    square, layer = ramp(WIDTH, WIDTH), ("attn_q", "attn_k", "attn_v", "attn_o", "ffn_up")
    weights = {"token_embd": ramp(VOCABULARY, WIDTH)}
    for part in ("enc", "dec")[: 2 if arch == "t5" else 1]:
        own = [*layer, *(f"cross_{name}" for name in layer[:4])] if part == "dec" else [*layer]
        weights |= {f"{part}.blk.0.{name}": square for name in (*own, "ffn_down")}
        norms = ("attn_norm", "ffn_norm", *(["cross_attn_norm"] * (part == "dec")))
        weights |= {f"{part}.blk.0.{name}": ramp(WIDTH) for name in norms}
        weights |= {f"{part}.output_norm": ramp(WIDTH), f"{part}.blk.0.attn_rel_b": ramp(32, 2)}
    metadata = {
        f"{arch}.block_count": 1,
        f"{arch}.embedding_length": WIDTH,
        f"{arch}.context_length": 128,
        f"{arch}.feed_forward_length": WIDTH,
        f"{arch}.attention.head_count": 2,
        f"{arch}.attention.relative_buckets_count": 32,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-6,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*"Writea", *(f"t{i}" for i in range(VOCABULARY - 6))],
        "tokenizer.ggml.merges": ["W r"],
        "tokenizer.ggml.eos_token_id": 5,
    }
    named = {f"{name}.weight": weight for name, weight in weights.items()}
    return lambda out: write_gguf(out, arch, metadata, named)


def recurrent(out: Path) -> Path:
    return write_target(out, arch="jamba")


def reduced(kind: type) -> Build:
    """The draft with a head over half the vocabulary, its d2t of another type than llama.cpp's."""
    parts = {
        "d2t": np.arange(2048, dtype=kind),
        "markov_w2.weight": zeros(2048, 64),
        "output.weight": zeros(2048, 256),
    }
    return lambda out: rewrite(DRAFT, out, {}, parts)


BAD_TARGETS: dict[str, tuple[Build, tuple[str, ...]]] = {
    "missing": (absent, ("there is no such file",)),
    "empty": (containing(b""), ("is empty",)),
    "text": (containing(b"No model at all.\n" * 100), ("not a GGUF", "b'No m'")),
    "short": (containing(b"GGUF\3"), ("truncated",)),
    "lfs-pointer": (containing(b"version https://git-lfs"), ("LFS",)),
    "old-version": (declaring(version=1), ("version 1",)),
    "big-endian": (declaring(version=0x03000000), ("big-endian",)),
    "half": (cut(TARGET), ("truncated",)),
    "too-many-tensors": (declaring(tensors=2**60), (f"{2**60} tensors",)),
    "too-many-pairs": (declaring(pairs=2**40), (f"{2**40} metadata pairs",)),
    "long-key": (declaring(key_bytes=2**62), (f"{2**62} bytes",)),
    "long-string": (long_string, (f"{2**63} bytes",)),
    "long-array": (long_array, (f"{2**40} strings", "tokenizer.ggml.tokens")),
    "directory": (directory, ("has no GGUF",)),
    "link-to-itself": (link_to_itself, ("symbolic links",)),
    "pipe": (pipe, ("not a regular file",)),
    "unreadable": (unreadable, ("Permission denied",)),
    "a-draft": (lambda _: DRAFT, ("is a DSpark draft", "width 256", "not standalone")),
    # from here on the container is fine, and llama.cpp's own reason must reach the user
    "wrong-shape": (
        changed(TARGET, blk__3__ffn_up=zeros(256, 256)),
        ("blk.3.ffn_up.weight", "wrong shape"),
    ),
    "missing-tensor": (changed(TARGET, blk__3__ffn_up=None), ("blk.3.ffn_up.weight",)),
    "missing-embedding": (changed(TARGET, token_embd=None), ("token_embd",)),
    "surplus-tensor": (changed(TARGET, blk__99__x=zeros(8)), ("wrong number of tensors",)),
    "unknown-architecture": (
        changed(
            TARGET,
            {
                "general.architecture": "nosuch",
                "nosuch.block_count": 10,
                "nosuch.embedding_length": 256,
            },
        ),
        ("unknown model architecture: 'nosuch'",),
    ),
    "unknown-tokenizer": (changed(TARGET, {"tokenizer.ggml.model": "nosuch"}), ("nosuch",)),
    "missing-key": (changed(TARGET, {"qwen3.context_length": None}), ("qwen3.context_length",)),
    "uneven-heads": (changed(TARGET, {"qwen3.attention.head_count": 7}), ("wrong shape",)),
    # what would end the process inside llama.cpp
    "nan-epsilon": (
        changed(TARGET, {"qwen3.attention.layer_norm_rms_epsilon": NAN}),
        ("epsilon is nan",),
    ),
    "one-token-twice": (changed(TARGET, {"tokenizer.ggml.tokens": ["a"] * 4096}), ("both 'a'",)),
    "a-million-layers": (changed(TARGET, {"qwen3.block_count": 10**6}), ("1000000 layers",)),
    "experts": (changed(TARGET, {"qwen3.expert_count": 8}), ("8 experts",)),
    "encoder-decoder": (encoding("t5"), ("t5 model, an encoder with a decoder",)),
    "encoder": (encoding("t5encoder"), ("t5encoder file, not a model that generates text",)),
    "not-causal": (
        changed(TARGET, {"qwen3.attention.causal": False}),
        ("not a model that generates text",),
    ),
}

BAD_PAIRS: dict[str, tuple[Build, Build, tuple[str, ...]]] = {
    "a-target-as-draft": (
        lambda _: TARGET,
        lambda _: TARGET,
        ("is a model by itself", "architecture qwen3", "dflash"),
    ),
    "swapped": (lambda _: DRAFT, lambda _: TARGET, ("not standalone",)),
    "missing-draft": (lambda _: TARGET, absent, ("there is no such file",)),
    "half-a-draft": (lambda _: TARGET, cut(DRAFT), ("truncated",)),
    "feature-width": (lambda _: TARGET, changed(DRAFT, fc=zeros(256, 512)), (" 512", " 768")),
    "no-fc": (lambda _: TARGET, changed(DRAFT, fc=None), (" 0,", " 768")),
    "taps": (
        lambda _: TARGET,
        changed(DRAFT, {"dflash.target_layers": [2, 5, 12]}),
        ("[12]", "0 to 9"),
    ),
    "vocabulary": (
        lambda _: TARGET,
        changed(DRAFT, {"tokenizer.ggml.tokens": [f"t{i}" for i in range(4000)]}),
        ("4000 tokens", "4096"),
    ),
    "silent-architecture": (
        silent_architecture,
        lambda _: DRAFT,
        ("gemma3n has no layer inputs of one row a token",),
    ),
    "recurrent-state": (recurrent, lambda _: DRAFT, ("jamba keeps recurrent state",)),
    "d2t-of-32-bits": (lambda _: TARGET, reduced(np.int32), ("d2t has type I32", "takes I64")),
    "gated-head-of-another-rank": (
        lambda _: TARGET,
        changed(DRAFT, markov_gate=zeros(64, 319)),
        ("markov_gate.weight", "(64, 319)", "(64, 320)"),
    ),
    "two-heads": (
        lambda _: TARGET,
        changed(DRAFT, markov_gate=zeros(64, 320), markov_joint=zeros(192, 384)),
        ("gated head", "markov_joint.weight of another"),
    ),
    "candidates-without-a-selector": (
        lambda _: TARGET,
        changed(DRAFT, {"dflash.selector_top_k": As(4, gguf.GGUFValueType.UINT32)}),
        ("selector of 4 candidates and rank 0",),
    ),
    "confidence-of-the-row-alone": (
        lambda _: TARGET,
        changed(DRAFT, conf_proj=zeros(1, 256)),
        ("(1, 256)", "(1, 320)"),
    ),
    "confidence-without-markov": (
        lambda _: TARGET,
        changed(DRAFT, markov_w1=None, markov_w2=None),
        ("confidence head (conf_proj) and no Markov head",),
    ),
    "no-mask-token": (
        lambda _: TARGET,
        changed(DRAFT, {"tokenizer.ggml.mask_token_id": None}),
        ("tokenizer.ggml.mask_token_id",),
    ),
    "mask-token-outside": (
        lambda _: TARGET,
        changed(DRAFT, {"tokenizer.ggml.mask_token_id": 4096}),
        ("mask token is 4096", "4096 tokens"),
    ),
    "empty-block": (lambda _: TARGET, changed(DRAFT, {"dflash.block_size": 0}), ("0 slots",)),
    "endless-block": (
        lambda _: TARGET,
        changed(DRAFT, {"dflash.block_size": 10**6}),
        ("1000000 slots",),
    ),
    "draft-weights": (
        lambda _: TARGET,
        changed(DRAFT, blk__1__attn_q=None),
        ("blk.1.attn_q.weight",),
    ),
    "markov-shape": (lambda _: TARGET, changed(DRAFT, markov_w2=zeros(4000, 64)), ("(4000, 64)",)),
}


@pytest.fixture(scope="module")
def bad_targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Refused]:
    """Every bad target, and what the command line says to it."""
    folder = tmp_path_factory.mktemp("targets")
    paths = {name: build(folder / f"{name}.gguf") for name, (build, _) in BAD_TARGETS.items()}
    shown = together({name: (*RUN, "-m", path, PROMPT) for name, path in paths.items()})
    return {name: Refused(path, None, shown[name]) for name, path in paths.items()}


@pytest.mark.parametrize("name", BAD_TARGETS)
def test_a_bad_target_is_refused(name: str, bad_targets: dict[str, Refused]) -> None:
    case = bad_targets[name]
    if name == "unreadable" and os.access(case.target, os.R_OK):
        pytest.skip("root reads every file")
    with pytest.raises(ModelLoadError) as refused:
        load(case.target, threads=1)
    line = refusal(case.shown)
    assert line == str(refused.value)
    assert case.target.name in line
    for word in BAD_TARGETS[name][1]:
        assert word in line


@pytest.fixture(scope="module")
def bad_pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Refused]:
    """Every pair that does not go together, and what the command line says to it."""
    folder = tmp_path_factory.mktemp("pairs")
    paths = {
        name: (target(folder / f"{name}-target.gguf"), draft(folder / f"{name}-draft.gguf"))
        for name, (target, draft, _) in BAD_PAIRS.items()
    }
    shown = together({name: (*RUN, "-m", t, "-d", d, PROMPT) for name, (t, d) in paths.items()})
    return {name: Refused(*path, shown[name]) for name, path in paths.items()}


@pytest.mark.parametrize("name", BAD_PAIRS)
def test_a_bad_pair_is_refused(name: str, bad_pairs: dict[str, Refused]) -> None:
    case = bad_pairs[name]
    with pytest.raises((IncompatibleDraftError, ModelLoadError)) as refused:
        load(case.target, case.draft, threads=1)
    line = refusal(case.shown)
    assert line == str(refused.value)
    for word in BAD_PAIRS[name][2]:
        assert word in line


@pytest.mark.parametrize("arch", ["t5", "t5encoder"])
def test_an_encoder_that_no_check_knows_is_refused_when_loaded(tmp_path: Path, arch: str) -> None:
    path = encoding(arch)(tmp_path / "t.gguf")
    with pytest.raises(ModelLoadError, match=r"t\.gguf: has an encoder"):
        Model.load(path)


def test_recurrent_state_that_no_check_knows_is_refused_when_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Model, "recurrent", True)
    with pytest.raises(IncompatibleDraftError, match="keeps recurrent state"):
        load(TARGET, DRAFT, threads=1)
    with load(TARGET, threads=1, context=64) as session:
        assert len(session.generate(PROMPT, max_tokens=2).token_ids) == 2


@pytest.mark.parametrize("source", [TARGET, DRAFT], ids=["target", "draft"])
def test_a_file_cut_anywhere_is_refused(source: Path, tmp_path: Path) -> None:
    data = source.read_bytes()
    path = tmp_path / "cut.gguf"
    early = [1, 3, 4, 7, 8, 15, 16, 23, 24, 25, 31, 32, 60, 100, 500]
    for size in [*early, *(len(data) * n // 48 for n in range(1, 48))]:
        path.write_bytes(data[:size])
        with pytest.raises(ModelLoadError):
            load(path if source == TARGET else TARGET, None if source == TARGET else path)


LOADS: list[tuple[dict[str, Any], str]] = [
    ({"context": -1}, "context is -1"),
    ({"context": 1.5}, "context is 1.5"),
    ({"context": True}, "context is True"),
    ({"context": "big"}, "context is 'big'"),
    ({"context": 2**31}, "context is 2147483648"),
    ({"context": 2 * 10**9}, "a context of 2000000000 positions takes"),
    ({"context": 2**20, "max_sequences": 4096 // 16}, "268435456"),
    ({"context": 2**24, "max_sequences": 256}, "more than 2147483647"),
    ({"threads": -1}, "threads is -1"),
    ({"threads": 0.5}, "threads is 0.5"),
    ({"batch": 8}, "batch is 8"),
    ({"batch": 2**40}, "batch is 1099511627776"),
    ({"max_sequences": 0}, "max_sequences is 0"),
    ({"max_sequences": 257}, "max_sequences is 257"),
    ({"n_gpu_layers": 2**40}, "n_gpu_layers is"),
    ({"n_gpu_layers_draft": "all"}, "n_gpu_layers_draft is 'all'"),
    ({"head": "rust"}, "'rust'"),
    ({"head": None}, "head is None"),
    ({"cache_type": "q2"}, "'q2'"),
    ({"flash_attention": True}, "flash_attention is True"),
    ({"contxt": 5}, "unknown setting 'contxt'"),
    ({"model": ""}, "model is ''"),
    ({"model": 5}, "model is 5"),
    ({"model": TARGET, "draft": ""}, "draft is ''"),
    ({"draft": DRAFT}, "without a model"),
    ({"model": "hf://nothing"}, "hf://nothing"),
]


@pytest.mark.parametrize(("settings", "word"), LOADS, ids=str)
def test_a_bad_setting_is_refused(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(OptionError) as refused:
        load(**{"threads": 1, **settings})
    assert word in str(refused.value)


def test_what_llama_cpp_refuses_of_a_context_keeps_its_reason() -> None:
    with pytest.raises(LlamaSpecError, match="quantized V cache requires flash_attn"):
        load(threads=1, cache_type="q8_0", flash_attention="off")


def test_more_threads_than_processors_are_not_used(caplog: pytest.LogCaptureFixture) -> None:
    with load(TARGET, threads=10_000, context=64) as session:
        assert len(session.generate(PROMPT, max_tokens=2).token_ids) > 0
    assert ["threads 10000" in record.message for record in caplog.records] == [True]


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens is 0"),
    ({"max_tokens": -3}, "max_tokens is -3"),
    ({"max_tokens": 2.0}, "max_tokens is 2.0"),
    ({"temperature": NAN}, "temperature is nan"),
    ({"temperature": math.inf}, "temperature is inf"),
    ({"temperature": -0.5}, "temperature is -0.5"),
    ({"temperature": 1e-45}, "temperature is 1e-45"),
    ({"temperature": "hot"}, "temperature is 'hot'"),
    ({"temperature": None}, "temperature is None"),
    ({"seed": -1}, "seed is -1"),
    ({"seed": 2**32}, "seed is 4294967296"),
    ({"seed": 1.5}, "seed is 1.5"),
    ({"stop": ""}, "stop is ('',)"),
    ({"stop": ["x", ""]}, "stop is ('x', '')"),
    ({"stop": 5}, "stop is (5,)"),
    ({"stop": b"x"}, "stop is (b'x',)"),
    ({"draft_max": -2}, "draft_max is -2"),
    ({"draft_max": "all"}, "draft_max is 'all'"),
    ({"temperature": True}, "temperature is True"),
    ({"temperature": 101}, "temperature is 101; it must be 0 or lie in 0.000001 to 100"),
    ({"seed": 2**32 - 1}, "0 to 4294967294"),
    ({"top_k": -1}, "top_k is -1"),
    ({"top_p": 1.1}, "top_p is 1.1; it must lie in 0 to 1"),
    ({"top_p": NAN}, "top_p is nan"),
    ({"min_p": -0.1}, "min_p is -0.1"),
    ({"typical_p": None}, "typical_p is None"),
    ({"repeat_penalty": 0}, "repeat_penalty is 0; it must lie in 0.01 to 100"),
    ({"repeat_penalty": math.inf}, "repeat_penalty is inf"),
    ({"repeat_last_n": -2}, "repeat_last_n is -2"),
    ({"presence_penalty": 1e9}, "presence_penalty is 1000000000.0"),
    ({"frequency_penalty": "x"}, "frequency_penalty is 'x'"),
    ({"dry_multiplier": -1}, "dry_multiplier is -1"),
    ({"dry_base": 0.5}, "dry_base is 0.5"),
    ({"dry_allowed_length": 0}, "dry_allowed_length is 0"),
    ({"dry_penalty_last_n": 1.5}, "dry_penalty_last_n is 1.5"),
    ({"dry_sequence_breakers": ["\n", ""]}, "dry_sequence_breakers is"),
    ({"dry_sequence_breakers": "a\0"}, "NUL"),
    ({"dry_sequence_breakers": "\ud800"}, "surrogate"),
    ({"logit_bias": [1, 2]}, "must map token ids"),
    ({"logit_bias": {-1: 1.0}}, "a token of logit_bias is -1"),
    ({"logit_bias": {"5": 1.0}}, "a token of logit_bias is '5'"),
    ({"logit_bias": {5: math.inf}}, "logit_bias of token 5 is inf"),
    ({"logit_bias": {5: NAN}}, "logit_bias of token 5 is nan"),
    ({"logprobs": -1}, "logprobs is -1"),
    ({"logprobs": 101}, "logprobs is 101; it must be a whole number in 0 to 100"),
    ({"grammar": 5}, "grammar is 5"),
    ({"grammar": "root ::= [a]", "json_schema": {}}, "exclude each other"),
    ({"json_schema": "{"}, "json_schema is no JSON"),
    ({"temprature": 1.0}, "unknown option 'temprature'"),
]


@pytest.mark.parametrize(("arguments", "word"), ARGUMENTS, ids=str)
def test_a_bad_argument_is_refused(session: Session, arguments: dict[str, Any], word: str) -> None:
    for call in (session.generate, session.stream):
        with pytest.raises(OptionError) as refused:
            call(PROMPT, **arguments)
        assert word in str(refused.value)


NEITHER = "none of: text, a flat list of token ids, a list of chat messages"
PROMPTS: list[tuple[Any, str]] = [
    ("", "prompt is empty"),
    ([], "prompt is empty"),
    (np.array([], np.int32), "prompt is empty"),
    ([4096], "token id 4096 lies outside the vocabulary of 4096"),
    ([5, -1], "token id -1 lies outside"),
    ([2**40], f"token id {2**40} lies outside"),
    ([2**70], NEITHER),
    ([1.5], NEITHER),
    ([True], NEITHER),
    (["a"], NEITHER),
    ([[1, 2]], NEITHER),
    ([[1], [2, 3]], NEITHER),
    ([1, None], NEITHER),
    (None, NEITHER),
    (5, NEITHER),
    (b"bytes", NEITHER),
    ({"role": "user", "content": "a message, not a list of them"}, NEITHER),
    (iter([1, 2]), NEITHER),
    ([{"content": "x"}], "message 0"),
    ([{"role": "user", "content": "x"}, 5], "message 1"),
    ([{"role": "user", "content": None}], "fails on these messages"),
    ("caf\udce9", "lone surrogate"),
    ([{"role": "user", "content": "\ud83c"}], "lone surrogate"),
]


@pytest.mark.parametrize(("prompt", "word"), PROMPTS, ids=lambda value: ascii(value)[:40])
def test_a_bad_prompt_is_refused(session: Session, prompt: object, word: str) -> None:
    with pytest.raises(OptionError) as refused:
        session.generate(prompt, max_tokens=4)  # type: ignore[arg-type]
    assert word in str(refused.value)


def test_a_prompt_longer_than_the_context_names_both_lengths(session: Session) -> None:
    for length in (512, 513, 10_000):
        with pytest.raises(ContextFullError, match=f"{length} tokens but the context 512"):
            session.generate([1] * length)
    done = session.generate([1] * 511, max_tokens=5)
    assert (len(done.token_ids), done.finish_reason) == (1, "length")


def test_nul_is_a_character_like_others(session: Session) -> None:
    assert len(session.tokenize("a\0b")) == 3
    assert len(session.generate("a\0b", max_tokens=3).token_ids) > 0


COMMANDS: list[tuple[tuple[object, ...], str]] = [
    (("-n", 0), "max_tokens is 0"),
    (("-n", -5), "max_tokens is -5"),
    (("--temp", "nan"), "temperature is nan"),
    (("--temp", "-1"), "temperature is -1"),
    (("--head", "rust"), "'rust'"),
    (("-t", -1), "threads is -1"),
    (("-c", 8), "10 tokens but the context 8"),
    (("-c", -1), "context is -1"),
    (("-c", 99999999999), "context is 99999999999"),
    (("-c", 2000000000), "a context of 2000000000 positions takes"),
    (("-ngl", 99999999999), "n_gpu_layers is 99999999999"),
    (("--device", "CUDA77"), "there is no device 'CUDA77'"),
    (("--device-draft", ""), "device_draft is ''"),
    (("--split-mode", "diagonal"), "split_mode is 'diagonal'"),
    (("--seed", -1), "seed is -1"),
    (("--stop", ""), "stop is"),
    (("--draft-max", -2), "draft_max is -2"),
    (("--top-k", -1), "top_k is -1"),
    (("--logit-bias", "5"), "--logit-bias is '5'"),
    (("--logit-bias", "x=1"), "ID=BIAS"),
    (("--logit-bias", "4096=1"), "token 4096, outside the vocabulary of 4096"),
    (("--dry-sequence-breaker", ""), "dry_sequence_breakers is"),
    (("--grammar", "root ::= ("), "grammar cannot be used: expecting ')'"),
    (("--grammar", "@no/such/file"), "--grammar no/such/file: cannot be read"),
    (("--json-schema", f"@{TARGET}"), "not text in UTF-8"),
    (("--json-schema", '{"type": "nothing"}'), "unrecognized type nothing"),
    (("--grammar", 'root ::= "a"', "--json-schema", "{}"), "exclude each other"),
    (("--plain", "--compare"), "exclude each other"),
    (("-d", DRAFT), "without a model"),
    (("-m", ""), "model is ''"),
]


def test_a_bad_option_is_refused() -> None:
    shown = together({str(words): ("run", "-t", 1, *words, "hi") for words, _ in COMMANDS})
    for words, expected in COMMANDS:
        assert expected in refusal(shown[str(words)]), words


def test_a_prompt_longer_than_the_context_is_refused() -> None:
    line = refusal(llamaspec("run", "-t", 1, "-c", 64, stdin=b"word " * 5000))
    assert "tokens but the context 64" in line


def test_an_empty_prompt_is_refused() -> None:
    for raw in ((), ("--raw",)):
        assert "prompt is empty" in refusal(llamaspec("run", "-t", 1, *raw, ""))
    assert "no prompt" in refusal(llamaspec("run", "-t", 1, "-m", TARGET))


def test_text_that_is_not_utf8_is_refused() -> None:
    assert "lone surrogate" in refusal(llamaspec("run", "-t", 1, stdin=b"caf\xe9"))
    assert "lone surrogate" in refusal(llamaspec("run", "-t", 1, os.fsdecode(b"caf\xe9")))


PROMPT_ID_FILES = {
    "open": (b"[1, 2", "not a list of token ids"),
    "fraction": (b"[1.5]", "not a list of token ids"),
    "infinity": (b"[1, Infinity]", "not a list of token ids"),
    "huge": (b"[1e400]", "not a list of token ids"),
    "text": (b'["1"]', "not a list of token ids"),
    "nested": (b"[[1]]", "not a list of token ids"),
    "deep": (b"[" * 100_000, "not a list of token ids"),
    "true": (b"[true]", "not a list of token ids"),
    "null": (b"[null]", "not a list of token ids"),
    "object": (b'{"ids": [1]}', "not a list of token ids"),
    "words": (b"one two", "not a list of token ids"),
    "binary": (b"\xff\xfe\x00", "not a list of token ids"),
    "digits": (b"9" * 10_000, "not a list of token ids"),
    "empty": (b"", "prompt is empty"),
    "empty-list": (b"[]", "prompt is empty"),
    "negative": (b"3 -1", "token id -1 lies outside"),
    "unknown": (b"[1, 4096]", "token id 4096 lies outside"),
}


def test_a_bad_file_of_prompt_ids_is_refused(tmp_path: Path) -> None:
    for name, (content, _) in PROMPT_ID_FILES.items():
        (tmp_path / name).write_bytes(content)
    option = ("run", "-t", 1, "--prompt-ids")
    shown = together({name: (*option, tmp_path / name) for name in PROMPT_ID_FILES})
    for name, (_, word) in PROMPT_ID_FILES.items():
        assert word in refusal(shown[name]), name


def test_prompt_ids_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    assert "No such file" in refusal(llamaspec("run", "-t", 1, "--prompt-ids", absent))
    assert "Is a directory" in refusal(llamaspec("run", "-t", 1, "--prompt-ids", tmp_path))
    line = refusal(llamaspec("run", "-t", 1, "--prompt-ids", absent, "a prompt too"))
    assert "not both" in line


def test_a_draft_max_beyond_the_block_is_clamped_with_a_notice(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    done = session.generate(PROMPT, max_tokens=30, draft_max=100)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "draft_max 100 is more than the draft's block gives; using 7" in record.message
    assert done.token_ids == session.generate(PROMPT, max_tokens=30).token_ids
    assert max(len(r.draft) for r in done.rounds) == session.draft_limit == 7
    shown = llamaspec("run", "-t", 1, "-n", 30, "--draft-max", 100, PROMPT)
    assert shown.returncode == 0
    assert shown.stderr.count("draft_max 100") == 1


HOSTILE_TEMPLATES = {
    "escape": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", ("not safe",)),
    "shell": (
        "{{ cycler.__init__.__globals__.os.system('touch owned') }}",
        ("not safe", "undefined"),
    ),
    "memory": ("{{ 'x' * 10000000000 }}", ("chat template of hostile.gguf",)),
    "broken": ("{% for %}", ("does not compile",)),
    "refusing": ("{{ raise_exception('not\nyou') }}", ("refuses these messages: not you",)),
    "long": ("x" * (2**20 + 1), ("limit is 1048576",)),
}


@pytest.mark.parametrize("name", HOSTILE_TEMPLATES)
def test_a_hostile_chat_template_does_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    template, words = HOSTILE_TEMPLATES[name]
    path = tmp_path / "hostile.gguf"
    rewrite(TARGET, path, {"tokenizer.chat_template": template})
    with load(path, threads=1, context=64) as session:
        with pytest.raises((ModelLoadError, OptionError)) as refused:
            session.generate([{"role": "user", "content": "hi"}])
        # the prompt as plain text does not need the template
        assert session.generate("hi", max_tokens=2).token_ids
    line = refusal(llamaspec("run", "-t", 1, "-m", path, "hi"))
    assert line == str(refused.value)
    assert any(word in line for word in words), line
    assert not (tmp_path / "owned").exists()


@pytest.fixture(scope="module")
def nan_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target that answers NaN to everything."""
    out = tmp_path_factory.mktemp("nan") / "target.gguf"
    return rewrite(TARGET, out, {}, {"output_norm.weight": np.full(256, NAN, np.float32)})


@pytest.fixture(scope="module")
def nan_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("nan") / "draft.gguf"
    return rewrite(DRAFT, out, {}, {"output_norm.weight": np.full(256, NAN, np.float32)})


def test_a_target_of_nan_neither_hangs_nor_crashes(nan_target: Path) -> None:
    with load(nan_target, DRAFT, threads=1, context=256) as session:
        done = session.generate(PROMPT, max_tokens=10)
        assert 1 <= len(done.token_ids) <= 10
        with pytest.raises(SamplingError, match="logits are not numbers"):
            session.generate(PROMPT, max_tokens=10, temperature=0.8, seed=1)
        # the session is whole after it
        assert session.generate(PROMPT, max_tokens=10).token_ids == done.token_ids
    options = ("-t", 1, "-n", 10, "-c", 256, "-m", nan_target, "-d", DRAFT, PROMPT)
    shown = llamaspec("run", *options)
    assert (shown.returncode, "Traceback" in shown.stderr) == (0, False)
    assert "logits are not numbers" in refusal(llamaspec("run", "--temp", 0.8, *options))


@pytest.mark.parametrize("head", ["native", "graph", "python"])
def test_a_draft_of_nan_leaves_the_text_alone(nan_draft: Path, head: Head) -> None:
    with load(TARGET, nan_draft, threads=1, context=256, head=head) as session:
        done = session.generate(PROMPT, max_tokens=20)
        assert done.token_ids == session.generate(PROMPT, max_tokens=20, draft_max=0).token_ids
    options = ("-t", 1, "-n", 20, "-c", 256, "--head", head, "--json", "--raw")
    shown = llamaspec("run", *options, "-m", TARGET, "-d", nan_draft, PROMPT)
    assert (shown.returncode, shown.stderr) == (0, "")
    told = json.loads(shown.stdout, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
    assert tuple(told["token_ids"]) == done.token_ids


def test_the_changed_copies_are_otherwise_whole(tmp_path: Path) -> None:
    copy = rewrite(TARGET, tmp_path / "t.gguf", {"general.name": "A copy"})
    same = rewrite(DRAFT, tmp_path / "d.gguf", {}, {"fc.weight": tensor(DRAFT, "fc.weight")})
    with load(copy, same, threads=1, context=256) as session:
        done = session.generate(PROMPT, max_tokens=20)
    with load(TARGET, DRAFT, threads=1, context=256) as session:
        assert done.token_ids == session.generate(PROMPT, max_tokens=20).token_ids


def test_a_value_of_another_type_is_refused(tmp_path: Path) -> None:
    text = As("ten", gguf.GGUFValueType.STRING)
    path = rewrite(TARGET, tmp_path / "t.gguf", {"qwen3.block_count": text})
    line = refusal(llamaspec("run", "-m", path, PROMPT))
    assert "'qwen3.block_count' is 'ten', not an integer" in line


def test_a_file_name_that_is_not_utf8_is_opened(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"mod\xe8le.gguf")
    path.symlink_to(TARGET)
    shown = llamaspec("run", "-t", 1, "-n", 3, "-m", path, PROMPT)
    assert (shown.returncode, "no draft" in shown.stderr) == (0, True)
