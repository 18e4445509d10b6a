"""Checkpoints, targets and jobs that are no good: the right error in one line, and no file.

The miniature checkpoints are damaged one thing at a time; each line must name what was found.
"""

import json
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from llamaspec.errors import IncompatibleDraftError, LlamaSpecError, ModelLoadError
from tests import mutate
from tests.checkpoints import Pair
from tests.checkpoints.shapes import RANK, WIDTH
from tests.checkpoints.tokenizer import MASK, VOCABULARY
from tests.checkpoints.writing import Weights, write_safetensors
from tests.damage import (
    GONE,
    INDEX,
    SHARD,
    Change,
    config_text,
    cut,
    d2t,
    elsewhere,
    entry,
    header,
    holding,
    index,
    indexed,
    instead,
    job,
    linked,
    pickled,
    place,
    raw_header,
    refused,
    renamed,
    said,
    settings,
    shaped,
    spoilt,
    swapped,
    target_as_draft,
    target_settings,
    tensor,
    tensors,
    together,
)

NAN, INF = float("nan"), float("inf")
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
STAGES = "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors"


class Bad(NamedTuple):
    """What is done to a packaging, and the refusal: its kind, and words of its line."""

    packaging: str
    change: Change
    kind: type[LlamaSpecError]
    words: tuple[str, ...]


def bad(packaging: str, change: Change, *words: str) -> Bad:
    return Bad(packaging, change, ModelLoadError, words)


def unfit(packaging: str, change: Change, *words: str) -> Bad:
    return Bad(packaging, change, IncompatibleDraftError, words)


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    with mutate.bounded():
        yield


def linked_folder(pair: Pair) -> None:
    """A folder within the draft's that is one outside."""
    (pair.draft / "sub").symlink_to(pair.draft.parent)


def fill_page(pair: Pair) -> None:
    """Spaces in the header until the file ends where a page of memory does."""
    path = pair.draft / SHARD
    fields, data = mutate.split(path.read_bytes())
    text = json.dumps(fields).encode()
    text += b" " * (-(8 + len(text) + len(data)) % mmap.PAGESIZE)
    path.write_bytes(mutate.joined(text, data))


def other_tables(pair: Pair) -> None:
    """A target with an embedding and a head that are not the draft's."""
    tables = Weights("others")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tables.bf16(name, VOCABULARY, WIDTH)
    write_safetensors(pair.target / SHARD, tables.stored)


ZLAB, SPEC, DEEP = "zlab", "speculators", "deepspec"
V4, NEMOTRON = "deepseek4", "nemotron-nvfp4"
DEPTH = 300

SHARDS: dict[str, Bad] = {
    "parent": bad(ZLAB, indexed("../m.safetensors"), "'../m.safetensors'", "norm"),
    "parent-within": bad(ZLAB, indexed("a/../../m.safetensors"), "no .safetensors"),
    "absolute": bad(ZLAB, indexed("/etc/m.safetensors"), "'/etc/m.safetensors'"),
    "backslash": bad(ZLAB, indexed("..\\m.safetensors"), "no .safetensors"),
    "drive": bad(ZLAB, indexed("C:m.safetensors"), "no .safetensors"),
    "newline": bad(ZLAB, indexed("a\nb.safetensors"), "'a\\nb.safetensors'"),
    "half-a-character": bad(ZLAB, indexed("\ud800.safetensors"), "\\ud800"),
    "long-name": bad(ZLAB, indexed("x" * 10**6 + ".safetensors"), "too long"),
    "pickle-in-index": bad(ZLAB, indexed("model.bin"), "'model.bin'"),
    "no-name": bad(ZLAB, indexed(None), "into None"),
    "list-for-name": bad(ZLAB, indexed(["x"] * 10**6), "into ['x'", "..."),
    "absent-shard": bad(ZLAB, indexed("b.safetensors"), "b.safetensors", "no such"),
    "index-lacks-map": bad(ZLAB, index({}), "no weight_map"),
    "index-is-a-list": bad(ZLAB, index([1]), "no weight_map"),
    "index-lies": bad(ZLAB, index({"weight_map": {"x.weight": SHARD}}), "'x.weight'", "lacks it"),
    "index-is-a-pipe": bad(ZLAB, instead(INDEX, os.mkfifo), "regular file"),
    "link-outside": bad(ZLAB, instead(SHARD, elsewhere), "outside", "is a link to"),
    "link-to-itself": bad(ZLAB, instead(SHARD, linked(SHARD)), "cannot be read"),
    "link-to-nothing": bad(ZLAB, instead(SHARD, linked("gone")), "no such file"),
    "link-to-device": bad(ZLAB, instead(SHARD, linked("/dev/zero")), "/dev/zero"),
    "pipe": bad(ZLAB, instead(SHARD, os.mkfifo), "not a regular file"),
    "linked-folder": bad(
        ZLAB,
        together(indexed("sub/outside.safetensors"), instead("x", elsewhere), linked_folder),
        "sub/outside.safetensors",
        "outside of the folder",
    ),
    "folder": bad(ZLAB, instead(SHARD, Path.mkdir), "not a regular file"),
    "pickled": bad(ZLAB, pickled, "pickled", "pytorch_model.bin", "safetensors"),
    "mask-pickled": bad(
        ZLAB,
        instead("mask_embedding.pt", lambda path: path.write_bytes(b"\x80\x04.")),
        "mask_embedding.pt",
        "pickled",
    ),
    "none": bad(ZLAB, lambda pair: (pair.draft / SHARD).unlink(), "no .safetens"),
    "empty": bad(ZLAB, cut(SHARD, 0), "0 bytes"),
    "cut-in-header": bad(ZLAB, cut(SHARD, 500), "492 are left", "truncated"),
    "cut-in-data": bad(ZLAB, cut(SHARD, 50_000), "50000", "truncated"),
    "two-shards-one-name": bad(
        V4,
        renamed("mtp.1.attn.attn_sink", "mtp.0.attn.attn_sink", STAGES[1]),
        "'mtp.0.attn.attn_sink'",
        "00003-of",
        "00004-of",
    ),
}

HEADERS: dict[str, Bad] = {
    "longer-than-file": bad(ZLAB, raw_header(b"{}", 2**40), str(2**40), "2 are"),
    "longest": bad(ZLAB, raw_header(b"{}", 2**64 - 1), str(2**64 - 1)),
    "lfs-pointer": bad(
        ZLAB,
        lambda pair: (pair.draft / SHARD).write_bytes(b"version https://git-lfs.x/1\noid sha256:0"),
        "LFS",
    ),
    "no-json": bad(ZLAB, raw_header(b"\xff\xfe{]"), "no JSON"),
    "not-utf8": bad(ZLAB, raw_header(b'{"a\xff": 1}'), "no JSON", "utf-8"),
    "a-list": bad(ZLAB, raw_header(b"[]"), "no JSON object"),
    "deep": bad(ZLAB, raw_header(b"[" * 10**6), "no JSON"),
    "name-twice": bad(
        ZLAB,
        raw_header(b'{"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}, "a": 1}'),
        "twice",
    ),
    "no-description": bad(
        ZLAB, header(lambda fields: fields.update({"fc.weight": 5})), "'fc.weight'", "description"
    ),
    "type": bad(ZLAB, entry("fc.weight", dtype="F99"), "'F99'", "BF16"),
    "type-no-name": bad(ZLAB, entry("fc.weight", dtype=["F32"]), "['F32']"),
    "shape-negative": bad(ZLAB, entry("fc.weight", shape=[-1, 2]), "[-1, 2]"),
    "shape-true": bad(ZLAB, entry("fc.weight", shape=[True]), "[True]"),
    "shape-text": bad(ZLAB, entry("fc.weight", shape="64"), "'64'"),
    "shape-float": bad(ZLAB, entry("fc.weight", shape=[64.0, 192]), "64.0"),
    "shape-deep": bad(
        ZLAB,
        entry("fc.weight", shape=json.loads("[" * DEPTH + "]" * DEPTH)),
        "'fc.weight'",
        "[[[",
        "...",
    ),
    "nine-dimensions": bad(ZLAB, entry("fc.weight", shape=[1] * 9), "shape [1, 1"),
    "huge-shape": bad(ZLAB, entry("fc.weight", shape=[2**31] * 3), "24576", "2147"),
    "zeros-of-huge": bad(
        ZLAB, entry("fc.weight", shape=[0, 2**59, 2**59], data_offsets=[0, 0]), "'fc.weight'"
    ),
    "million-dimensions": bad(ZLAB, entry("fc.weight", shape=[1] * 10**6), "..."),
    "megabyte-name": bad(ZLAB, renamed("fc.weight", "x" * 10**6), "xxx", " ... "),
    "control-characters": bad(ZLAB, renamed("fc.weight", "a\x1b[31m\n"), "a\\x1b[31m\\n"),
    "layer-of-5000-digits": bad(
        ZLAB,
        renamed("layers.0.mlp.up_proj.weight", f"layers.{'9' * 5000}.mlp.up_proj.weight"),
        "layers.999",
        "--drop-unexpected",
    ),
    "offsets-one": bad(ZLAB, entry("fc.weight", data_offsets=[0]), "[0]"),
    "offsets-backwards": bad(ZLAB, entry("fc.weight", data_offsets=[9, 1]), "-8"),
    "offsets-beyond": bad(
        ZLAB,
        entry("fc.weight", data_offsets=[2**50, 2**50 + 24576]),
        str(2**50 + 24576)[:6],
        "truncated",
    ),
    "overlap": bad(
        ZLAB, header(lambda fields: fields["norm.weight"].update(data_offsets=[0, 128])), "overlaps"
    ),
    "gap": bad(ZLAB, header(lambda fields: fields.pop("fc.weight")), "a gap after"),
    "trailing-garbage": bad(ZLAB, header(lambda _: None, tail=b"garbage"), "end at byte"),
}

TENSORS: dict[str, Bad] = {
    "missing": bad(ZLAB, tensor("layers.1.mlp.up_proj.weight", None), "blk.1.ffn_up.weight"),
    "unexpected": bad(
        ZLAB,
        tensors(lambda found: found.update({"adapter.weight": found["norm.weight"]})),
        "adapter.weight",
        "--drop-unexpected",
    ),
    "with-and-without-model": bad(
        ZLAB,
        tensors(lambda found: found.update({"model.norm.weight": found["norm.weight"]})),
        "with and without 'model.'",
    ),
    "fc-for-other-taps": unfit(ZLAB, tensor("fc.weight", shaped(WIDTH, 128)), "128]", "192]"),
    "scalar": unfit(ZLAB, tensor("norm.weight", shaped()), "[1]", "[64]"),
    "zero-sized": unfit(ZLAB, tensor("norm.weight", shaped(0)), "[0]", "64]"),
    "f64": bad(
        ZLAB,
        header(lambda f: f["norm.weight"].update(dtype="F64", shape=[16])),
        "F64",
        "F32, F16 and BF16",
    ),
    "integers": bad(ZLAB, entry("norm.weight", dtype="I16"), "I16"),
    "fp8-without-scale": bad(
        ZLAB,
        entry("fc.weight", dtype="F8_E4M3", shape=[WIDTH, 6 * WIDTH]),
        "fc.weight_scale_inv",
        "missing",
    ),
    "nan": bad(ZLAB, tensor("fc.weight", holding(NAN)), "fc.weight", "a NaN"),
    "nan-bf16": bad(ZLAB, tensor("norm.weight", holding(NAN, "BF16")), "a NaN"),
    "infinity": bad(ZLAB, tensor("norm.weight", holding(-INF)), "norm.weight"),
    "nan-in-mxfp4": bad(V4, spoilt("mtp.0.ffn.experts.1.w2.scale", STAGES[0], 255), "NaN"),
    "nan-in-fp8": bad(
        V4, spoilt("mtp.0.attn.wq_a.weight", STAGES[0], 0x7F), "mtp.0.attn.wq_a.weight", "NaN"
    ),
    "infinite-product-in-nvfp4": bad(
        NEMOTRON, tensor("fc.weight_scale_2", holding(9e36)), "fc.weight", "infinity"
    ),
    "no-scale-in-nvfp4": bad(
        NEMOTRON, tensor("fc.weight_scale_2", holding(0.0)), "fc.weight_scale_2", "above 0"
    ),
    "scales-of-nvfp4": bad(
        NEMOTRON, tensor("fc.weight_scale", shaped(3, 3)), "F8_E4M3 [3, 3]", "[64, 12]"
    ),
    "markov-shape": unfit(
        DEEP,
        tensor("markov_head.markov_w1.weight", shaped(VOCABULARY, 16)),
        "[320, 16]",
        "[320, 32]",
    ),
    "markov-scalar": bad(
        V4,
        header(
            lambda fields: fields["mtp.1.markov_head.markov_w1.weight"].update(shape=[]), STAGES[1]
        ),
        "markov_w1",
    ),
    "markov-without-second": bad(
        DEEP, tensor("markov_head.markov_w2.weight", None), "markov_w2.weight is"
    ),
    "markov-rank-lies": unfit(
        DEEP, settings(markov_rank=2**31 - 1), "[1, 96]", f"[1, {2**31 - 1 + WIDTH}]"
    ),
    "markov-rank-zero": bad(DEEP, settings(markov_rank=0), "markov_rank is 0"),
    "markov-absent": bad(DEEP, tensor("markov_head.markov_w1.weight", None), "markov_rank is 32"),
    "confidence-shape": unfit(
        DEEP,
        tensor("confidence_head.proj.weight", shaped(1, 100)),
        "[1, 100]",
        f"[1, {WIDTH + RANK}]",
    ),
    "confidence-of-rank-that-lies": unfit(
        DEEP,
        together(
            tensor("confidence_head.proj.weight", shaped(1, WIDTH)),
            settings(markov_rank=2**31 - 1),
        ),
        "[1, 64]",
        f"[1, {2**31 - 1 + WIDTH}]",
    ),
    "head-type": bad(DEEP, settings(markov_head_type="lstm"), "'lstm'", "vanilla, gated and rnn"),
    "head-type-without-its-tensors": bad(
        DEEP, settings(markov_head_type="gated"), "markov_gate.weight"
    ),
    "head-of-no-known-type": bad(
        "deepspec-gated", settings(markov_head_type="vanilla"), "vanilla", "gate"
    ),
    "lone-embedding": bad(
        DEEP, together(other_tables, tensor(HEAD, None)), "an embedding and no head", "--standalone"
    ),
    "lone-head": bad(
        DEEP, together(other_tables, tensor(EMBEDDING, None)), "a head and no embedding"
    ),
    "lone-embedding-untied": bad(
        "gemma4", tensor(HEAD, None), "tie_word_embeddings is false", "no lm_head"
    ),
    "head-shape": unfit(DEEP, tensor(HEAD, shaped(300, WIDTH)), "[300, 64]", "[320, 64]"),
    "reduced-without-head": bad(SPEC, tensor("lm_head.weight", None), "160 of 320", "lm_head"),
    "experts-lie": bad(
        "deepseek4", settings(n_routed_experts=2**31 - 1), "4 experts", "2147483647"
    ),
    "stages-lie": bad(
        V4,
        together(
            instead(INDEX, lambda _: None),
            renamed("mtp.1.norm.weight", "mtp.999999999.norm.weight", STAGES[1]),
        ),
        "mtp.999999999",
        "512",
    ),
}

D2T: dict[str, Bad] = {
    "twice": unfit(SPEC, d2t(lambda ids: np.negative(np.arange(160), out=ids)), "only 1 tokens"),
    "beyond": unfit(SPEC, d2t(lambda ids: ids.__setitem__(-1, 161)), "320"),
    "below": unfit(SPEC, d2t(lambda ids: ids.__setitem__(0, -1)), "-1 to"),
    "wraps": unfit(SPEC, d2t(lambda ids: ids.fill(2**63 - 1)), "320"),
    "length": unfit(SPEC, tensor("d2t", shaped(100)), "100", "160"),
    "none": unfit(SPEC, tensor("d2t", shaped(0)), "0 rows", "160"),
    "missing": bad(SPEC, together(tensor("d2t", None), tensor("t2d", None)), "d2t"),
    "floats": bad(SPEC, entry("d2t", dtype="F64"), "F64"),
    "bf16": bad(SPEC, entry("d2t", dtype="BF16", shape=[640]), "BF16"),
    "t2d-disagrees": unfit(SPEC, tensor("t2d", shaped(VOCABULARY)), "t2d marks 0", "160"),
    "t2d-of-nothing-at-the-end-of-a-page": unfit(
        SPEC, together(tensor("t2d", shaped(0)), fill_page), "t2d marks 0 of 0", "160 of 320"
    ),
    "t2d-length": unfit(SPEC, tensor("t2d", shaped(300)), "300", "320"),
    "more-than-target": unfit(SPEC, settings(draft_vocab_size=400), "400", "320"),
}


def sparse(path: Path) -> None:
    """A file that says it has a terabyte."""
    with path.open("wb") as file:
        file.truncate(2**40)


def settings_text(key: str, raw: str) -> Change:
    """A setting as no JSON writer would put it, in the place of the one that is there."""
    return together(settings(**{key: GONE}), said(key, raw))


def without_tokenizer(pair: Pair) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"):
        (pair.target / name).unlink()


MASK_KEY = "dflash_config__mask_token_id"
SETTINGS: dict[str, Bad] = {
    "no-folder": bad(
        ZLAB, lambda pair: pair.draft.rename(pair.draft.with_name("x")), "no such folder"
    ),
    "no-config": bad(ZLAB, instead("config.json", lambda _: None), "config.json", "no such file"),
    "pipe": bad(ZLAB, instead("config.json", os.mkfifo), "not a regular file"),
    "folder": bad(ZLAB, instead("config.json", Path.mkdir), "not a regular file"),
    "device": bad(ZLAB, instead("config.json", linked("/dev/zero")), "not a regular file"),
    "link-to-itself": bad(ZLAB, instead("config.json", linked("config.json")), "cannot be read"),
    "too-large": bad(ZLAB, instead("config.json", sparse), str(2**40), str(64 << 20)),
    "empty": bad(ZLAB, cut("config.json", 0), "no JSON"),
    "cut": bad(ZLAB, cut("config.json", 100), "no JSON"),
    "list": bad(ZLAB, config_text(lambda _: b"[1]"), "no JSON object"),
    "not-utf8": bad(ZLAB, config_text(lambda text: text + b"\xff"), "no JSON", "utf-8"),
    "deep": bad(ZLAB, said("x", "[" * 10**6), "no JSON"),
    "deeper-than-any": bad(ZLAB, said("x", "[" * DEPTH + "]" * DEPTH), "50 levels"),
    "key-twice": bad(ZLAB, said("block_size", "7"), "'block_size' twice"),
    "inner-key-twice": bad(ZLAB, said("a", '{"b": 1, "b": 2}'), "'b' twice"),
    "digits": bad(ZLAB, settings_text("rms_norm_eps", "9" * 400), "rms_norm_eps is 9999"),
    "too-many-digits": bad(ZLAB, settings_text("rms_norm_eps", "9" * 5000), "4300 digits"),
    "infinite": bad(ZLAB, settings_text("rms_norm_eps", "1e400"), "rms_norm_eps is inf"),
    "nan": bad(ZLAB, settings_text("rms_norm_eps", "NaN"), "rms_norm_eps is nan"),
    "epsilon-zero": bad(ZLAB, settings(rms_norm_eps=0), "rms_norm_eps is 0"),
    "epsilon-negative": bad(ZLAB, settings(rms_norm_eps=-1e-6), "rms_norm_eps is -1e-06"),
    "true-for-one": bad(ZLAB, settings(num_hidden_layers=True), "num_hidden_layers is True"),
    "text-for-number": bad(ZLAB, settings(hidden_size="64"), "hidden_size is '64'"),
    "half": bad(ZLAB, settings(num_attention_heads=3.5), "num_attention_heads is 3.5"),
    "number-for-flag": bad(ZLAB, settings(use_sliding_window=1), "use_sliding_window is 1"),
    "no-layers": bad(ZLAB, settings(num_hidden_layers=0), "num_hidden_layers is 0"),
    "negative-layers": bad(ZLAB, settings(num_hidden_layers=-5), "num_hidden_layers is -5"),
    "a-billion-layers": bad(ZLAB, settings(num_hidden_layers=10**9), "1000000000", "512"),
    "a-billion-windows": bad(
        "nemotron-nvfp4", settings(num_hidden_layers=10**9), "1000000000", "512"
    ),
    "more-layers-than-tensors": bad(ZLAB, settings(num_hidden_layers=3), "blk.2.attn_k"),
    "wide-heads": bad(ZLAB, settings(head_dim=2**31 - 1), "head_dim is 2147483647", "65536"),
    "wide-heads-of-gemma": bad("gemma4", settings(global_head_dim=2**31 - 1), "2147483647"),
    "odd-heads": bad("lfm2", settings(head_dim=15), "heads of 15"),
    "uneven-heads": bad(ZLAB, settings(head_dim=None, num_attention_heads=3), "3 heads", "64"),
    "heads-beyond-width": bad(
        ZLAB, settings(head_dim=None, num_attention_heads=10**9), "1000000000 heads"
    ),
    "biases": bad(ZLAB, settings(attention_bias=True), "attention_bias is true"),
    "activation": bad(ZLAB, settings(hidden_act="relu2"), "'relu2'", "silu and gelu"),
    "activation-list": bad(ZLAB, settings(hidden_act=["silu"] * 10**6), "['silu'", "..."),
    "kinds-of-a-million-layers": bad(
        ZLAB,
        settings(layer_types=["full_attention"] * 10**6, use_sliding_window=True, sliding_window=8),
        "layer_types",
        "each of 2 layers",
    ),
    "window-beyond": bad(
        NEMOTRON,
        settings(sliding_window=2**40, dflash_config__swa_window_size=2**40),
        str(2**40),
    ),
    "window-of-no-length": bad(
        "dflash2", settings(sliding_window=None), "sliding window", "--set sliding_window="
    ),
    "experts-weights": bad(V4, settings(norm_topk_prob=GONE), "no norm_topk_prob"),
    "window-text": bad(
        "nemotron-nvfp4", settings(dflash_config__swa_window_size="8"), "swa_window_size is '8'"
    ),
    "unknown-packaging": bad(
        ZLAB, settings(dflash_config=GONE, architectures=["Foo\x1b"]), "Foo", "SpecForge, "
    ),
    "contradiction": bad(
        ZLAB, settings(mask_token_id=7), "mask_token_id is 7", str(MASK), "dflash_config", "--set"
    ),
    "contradiction-of-taps": bad(
        "nemotron-nvfp4", settings(target_layer_ids=[0, 3, 4]), "[0, 3, 4]", "[1, 3, 4]"
    ),
    "contradiction-of-theta": bad(
        DEEP, settings(rope_theta=5e5), "500000.0", "1000000.0", "rope_theta"
    ),
    "contradiction-of-rope": bad(
        DEEP,
        settings(rope_scaling={"rope_type": "yarn", "rope_theta": 1e6}),
        "rope_type is 'default'",
        "'yarn'",
    ),
    "theta-below": bad(DEEP, settings(rope_parameters__rope_theta=0.5), "0.5, not above 1"),
    "theta-text": bad(DEEP, settings(rope_parameters__rope_theta="1e6"), "'1e6'"),
    "rope-kind": bad(DEEP, settings(rope_parameters__rope_type="longrope"), "'longrope'", "yarn"),
    "rope-kind-list": bad(DEEP, settings(rope_parameters__rope_type=[1]), "[1]"),
    "rope-list": bad(DEEP, settings(rope_parameters=[1]), "rope_parameters is [1]"),
    "yarn-without-its-name": bad(
        "specforge", settings(rope_parameters__rope_type=GONE), "factor 32", "no rope_type"
    ),
    "yarn-without-numbers": bad(DEEP, settings(rope_parameters__rope_type="yarn"), "no factor"),
    "yarn-without-ramp": bad(
        "specforge",
        settings(rope_parameters__beta_fast=1, rope_parameters__beta_slow=2),
        "beta_slow 2",
        "beta_fast 1",
    ),
    "yarn-extrapolated": bad(
        "specforge", settings(rope_parameters__extrapolation_factor=-8), "extrapolation_factor -8"
    ),
    "yarn-length": bad(
        "specforge", settings(rope_parameters__original_max_position_embeddings=2**40), str(2**40)
    ),
    "yarn-attention": bad(
        "specforge",
        settings(rope_parameters__mscale=-3.0, rope_parameters__mscale_all_dim=1.0),
        "mscale -3",
    ),
    "yarn-no-factor": bad("specforge", settings(rope_parameters__factor=0), "factor is 0"),
    "sections": bad(DEEP, settings(rope_parameters__mrope_section=[2**40]), str(2**40)),
    "partial": bad(DEEP, settings(rope_parameters__partial_rotary_factor=1.5), "1.5"),
    "block-of-none": bad(ZLAB, settings(block_size=0), "block_size is 0"),
    "block-of-one": bad(ZLAB, settings(block_size=1), "block_size is 1", "2 to 1024"),
    "endless-block": bad(ZLAB, settings(block_size=10**6), "1000000", "1024"),
    "mask-beyond": unfit(ZLAB, settings(**{MASK_KEY: 320}), "mask token is 320", "320 tokens"),
    "mask-negative": bad(ZLAB, settings(**{MASK_KEY: -1}), "mask_token_id is -1"),
    "group-that-does-not-divide": bad(
        "dflash2", settings(dflash_config__conv_group_size=48), "48", "width 64"
    ),
    "lattice-beyond-width": bad("dflash2", settings(dflash_config__selector_top_k=8), "72", "64"),
    "rotated-beyond-head": bad(V4, settings(qk_rope_head_dim=64), "64", "32"),
    "gate": bad(V4, settings(scoring_func="tanh"), "'tanh'", "sqrtsoftplus"),
    "no-stages": bad(
        DEEP, settings(dspark_block_size=5, dspark_noise_token_id=1), "no mtp.* tensors"
    ),
    "softcap": bad("gemma4", settings(final_logit_softcapping=30.0), "30.0"),
}

TAP = "dflash_config__target_layer_ids"
FIT: dict[str, Bad] = {
    "width": unfit(ZLAB, target_settings(hidden_size=128), "width is 64", "has 128"),
    "layers": unfit(ZLAB, target_settings(num_hidden_layers=8), "layers is 6", "has 8"),
    "stated-layers-text": bad(ZLAB, settings(num_target_layers="6"), "num_target_layers is '6'"),
    "vocabulary": unfit(ZLAB, target_settings(vocab_size=330), "vocabulary is 320", "has 330"),
    "taps-unsorted": bad(ZLAB, settings(**{TAP: [3, 1, 4]}), "[3, 1, 4]", "ascending"),
    "taps-repeated": bad(ZLAB, settings(**{TAP: [1, 3, 3]}), "[1, 3, 3]", "each once"),
    "taps-beyond": unfit(ZLAB, settings(**{TAP: [1, 3, 6]}), "[1, 3, 6]", "0 to 5"),
    "taps-below": bad(ZLAB, settings(**{TAP: [-2, 3, 4]}), "is -2"),
    "no-taps": bad(ZLAB, settings(**{TAP: []}), "empty"),
    "a-million-taps": bad(ZLAB, settings(**{TAP: [1] * 10**6}), "[1, 1", "..."),
    "taps-of-text": bad(ZLAB, settings(**{TAP: ["1", "3"]}), "is '1'"),
    "fewer-taps": unfit(ZLAB, settings(**{TAP: [1, 3]}), "[64, 192]", "[64, 128]"),
    "states-below": bad(
        SPEC, settings(aux_hidden_state_layer_ids=[-1, 4, 5]), "[-1, 4, 5]", "from 0"
    ),
    "a-draft-as-target": bad(DEEP, swapped, "is a draft (Qwen3DSparkModel)"),
    "a-target-as-draft": bad(ZLAB, target_as_draft, "Qwen3ForCausalLM", "none of the draft"),
    "no-target": bad(
        ZLAB, lambda pair: pair.target.rename(pair.target.with_name("x")), "target", "no such file"
    ),
    "target-without-tokenizer": bad(ZLAB, without_tokenizer, "tokenizer.json"),
    "target-without-config": bad(
        ZLAB, instead("config.json", lambda _: None, target=True), "config.json"
    ),
    "target-config-pipe": bad(
        ZLAB, instead("config.json", os.mkfifo, target=True), "not a regular file"
    ),
    "target-tokenizer-pipe": bad(
        ZLAB, instead("tokenizer.json", os.mkfifo, target=True), "tokenizer"
    ),
    "target-without-width": bad(ZLAB, target_settings(hidden_size=GONE), "hidden_size"),
    "target-of-huge-vocabulary": bad(ZLAB, target_settings(vocab_size=2**31 - 1), "2147483647"),
    "target-rope-list": bad(ZLAB, target_settings(rope_parameters=[1]), "rope_parameters is [1]"),
}

EVERY = {
    f"{table}-{name}": case
    for table, cases in (
        ("shards", SHARDS),
        ("header", HEADERS),
        ("tensor", TENSORS),
        ("d2t", D2T),
        ("settings", SETTINGS),
        ("fit", FIT),
    )
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", EVERY)
def test_bad_input_is_refused(name: str, tmp_path: Path) -> None:
    case = EVERY[name]
    pair = place(case.packaging, tmp_path)
    case.change(pair)
    line = refused(job(pair, tmp_path), case.kind)
    for word in case.words:
        assert word in line
