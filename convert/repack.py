"""Drafts that are GGUFs already, of a vendor's or an older layout, under today's keys and names.

Architectures: `dspark` (PrismML), `dflash-draft` and `qwen35-dflash-draft` (forks before the
merge), and `dflash` itself, as files of other converters need their tables put right. Tensor data
is copied as it is unless another type is asked for.
"""

import re
from dataclasses import dataclass
from typing import Any

from llamaspec.convert.check import (
    check_fit,
    check_tensors,
    common_shapes,
    dense_shapes,
    optional_shapes,
)
from llamaspec.convert.formats import deepseek4
from llamaspec.convert.plan import DraftConfig, DraftShape, Mapped, MarkovType, Plan, Rope
from llamaspec.convert.recognise import Wishes, check_overrides
from llamaspec.convert.reduced import check_ids
from llamaspec.convert.settings import MAX_HEAD_WIDTH, Settings
from llamaspec.convert.shown import shown
from llamaspec.convert.tables import EMBEDDING, HEAD, decide
from llamaspec.convert.target import Target
from llamaspec.convert.weights import Weights, constant
from llamaspec.errors import ModelLoadError
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.gguf_types import MetaArray
from llamaspec.runtime.metadata import MAX_LAYERS

ARCHITECTURES = ("dspark", "dflash-draft", "qwen35-dflash-draft", "dflash")
_NESTED = re.compile(r"(?:dspark|dflash|dflash2)\.(.+)")
_KEYS = {
    "target_layer_ids": "target_layers",
    "capture_layer_ids": "target_layers",
    "conv_taps": "conv_kernel_size",
    "rope_theta": "rope.freq_base",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
# what the tensors say themselves, or what only another runtime reads
_OTHERS = """
markov_rank n_target_features n_target_layers target.block_count enabled confidence_head
confidence_with_markov confidence_bias target_checkpoint_sha256
"""
_DROPPED = frozenset(_OTHERS.split())
_NAMES = {
    "dspark.fc.weight": "fc.weight",
    "dspark.hidden_norm.weight": "enc.output_norm.weight",
    "dspark.markov_head_a.weight": "markov_w1.weight",
    "dspark.markov_head_b.weight": "markov_w2.weight",
    "dspark.confidence_head.weight": "conf_proj.weight",
    "dspark.confidence_head.bias": "conf_proj.bias",
    "dflash_fc.weight": "fc.weight",
    "dflash_hidden_norm.weight": "enc.output_norm.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "dflash.fc.weight": "fc.weight",
    "dflash.hidden_norm.weight": "enc.output_norm.weight",
    "dflash.dspark.markov.w1": "markov_w1.weight",
    "dflash.dspark.markov.w2": "markov_w2.weight",
    "dflash.dspark.confidence.weight": "conf_proj.weight",
    "dflash.dspark.confidence.bias": "conf_proj.bias",
    "confidence_proj.weight": "conf_proj.weight",
    "selector_hproj.weight": "selector_hidden.weight",
    "selector_pred": "selector_predecessor.weight",
    "selector_succ": "selector_successor.weight",
}
_DFLASH2 = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_STAGES = (
    "hyper_connection.count",
    "attention.q_lora_rank",
    "attention.output_lora_rank",
    "attention.output_group_count",
    "expert_count",
    "expert_feed_forward_length",
    "expert_shared_count",
)
_FEED_FORWARD_NORM = re.compile(r"(blk\.\d+)\.post_attention_norm\.weight")


@dataclass(frozen=True)
class _Source:
    file: GGUFFile
    fields: dict[str, Any]
    tensors: dict[str, Weights]


def plan_repack(file: GGUFFile, target: Target, wishes: Wishes) -> Plan:
    """Every tensor and key of the draft, under today's names, checked as a conversion is.

    Raises:
        ModelLoadError: no draft of a known layout, or one whose layer numbers cannot be known.
        IncompatibleDraftError: made for another target.
    """
    if file.architecture not in ARCHITECTURES:
        raise ModelLoadError(
            f"{file.path}: architecture {file.architecture} is no draft that can be repacked, only "
            f"{', '.join(ARCHITECTURES)} are"
        )
    source = _Source(file, _fields(file), _tensors(file))
    settings = Settings(file.path, source.fields, wishes.overrides)
    config = _config(source, settings)
    check_fit(config, target, None)
    check_overrides(settings, wishes)
    if (d2t := source.tensors.get("d2t")) is not None:
        check_ids(d2t.whole().reshape(-1), config)
    tensors = dict(source.tensors)
    mapped = Mapped(tensors, tensors.pop(EMBEDDING, None), tensors.pop(HEAD, None))
    tables = decide(mapped, config, target, wishes.standalone)
    plan = Plan(
        packaging=f"GGUF ({file.architecture})",
        config=config,
        tensors={**tables.tensors, **tensors},
        left_out=tables.left_out,
        notes=(tables.note,),
    )
    stages = "hyper_connection.count" in config.extra
    shapes = (deepseek4.expected if stages else dense_shapes)(config)
    check_tensors(plan, shapes | common_shapes(config, target), optional_shapes(config))
    return plan


def _fields(file: GGUFFile) -> dict[str, Any]:
    """`dflash.` keys without that prefix, from whatever the architecture calls them."""
    found: dict[str, Any] = {}
    prefixes = (f"{file.architecture}.", "dflash.")
    for key, value in file.metadata.items():
        prefix = next((prefix for prefix in prefixes if key.startswith(prefix)), None)
        if prefix is None:
            continue
        rest = key.removeprefix(prefix)
        nested = _NESTED.fullmatch(rest)
        name = nested[1] if nested else rest
        name = _KEYS.get(name, name)
        plain = value.tolist() if isinstance(value, MetaArray) else value
        if name not in _DROPPED and found.setdefault(name, plain) != plain:
            raise ModelLoadError(
                f"{file.path}: {name} is {shown(found[name])} and, as {key}, {shown(plain)}"
            )
    mask = file.metadata.get("tokenizer.ggml.mask_token_id")
    if mask is not None:
        found.setdefault("mask_token_id", mask)
    return found


def _tensors(file: GGUFFile) -> dict[str, Weights]:
    """The tensors under today's names."""
    found: dict[str, Weights] = {}
    today = any(re.fullmatch(r"blk\.\d+\.ffn_norm\.weight", name) for name in file.tensors)
    for name in file.tensors:
        new = _NAMES.get(name, name)
        match = _FEED_FORWARD_NORM.fullmatch(name)
        if match is not None and not today:
            new = f"{match[1]}.ffn_norm.weight"
        if new in found:
            raise ModelLoadError(f"{file.path}: {name} and {found[new].source[0]} are both {new}")
        found[new] = _weights(file, name)
    return found


def _weights(file: GGUFFile, name: str) -> Weights:
    info = file.tensors[name]
    integers = info.type in ("I8", "I16", "I32", "I64")
    if integers != (name == "d2t"):
        raise ModelLoadError(f"{file.path}: tensor {name!r} has type {info.type}")
    if integers:
        return constant(file.integers(name), (name,))
    if info.type == "F64" or (len(info.shape) < 2 and info.type not in ("F32", "F16", "BF16")):
        raise ModelLoadError(
            f"{file.path}: tensor {name!r} has {len(info.shape)} dimensions and type {info.type}; "
            "convert it to F32"
        )
    rows = info.shape[0] if info.shape else 1
    size = info.nbytes // max(1, rows)
    dtype = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}.get(info.type, "|u1")
    return Weights(
        info.shape or (1,),
        info.type,
        lambda start, stop: (
            file.raw(name, start * size, stop * size)
            .view(dtype)
            .reshape(stop - start, *(info.shape[1:] if dtype != "|u1" else (*info.shape[1:-1], -1)))
        ),
        (name,),
    )


def _config(source: _Source, settings: Settings) -> DraftConfig:
    fields = dict(source.fields)
    theta = settings.number("rope.freq_base")
    if not theta > 1:
        raise settings.wrong(f"rope.freq_base is {theta:g}, not above 1")
    heads = settings.whole("attention.head_count")
    w1, w2 = (source.tensors.get(f"markov_{name}.weight") for name in ("w1", "w2"))
    embedding, d2t = source.tensors.get(EMBEDDING), source.tensors.get("d2t")
    tokens = source.file.metadata.get("tokenizer.ggml.tokens")
    vocabulary = next(
        (
            size
            for size in (
                w1.shape[0] if w1 else None,
                embedding.shape[0] if embedding else None,
                len(tokens) if isinstance(tokens, MetaArray) else None,
            )
            if size
        ),
        None,
    )
    shape = DraftShape(
        layers=settings.whole("block_count", most=MAX_LAYERS),
        width=settings.whole("embedding_length"),
        feed_forward=settings.whole_or(0, "feed_forward_length") or None,
        heads=heads,
        kv_heads=settings.whole_or(heads, "attention.head_count_kv"),
        head_width=settings.whole_or(0, "attention.key_length", most=MAX_HEAD_WIDTH) or None,
        context=settings.whole("context_length"),
        rms_epsilon=settings.epsilon("attention.layer_norm_rms_epsilon"),
        vocabulary=vocabulary or settings.whole("vocab_size"),
    )
    kind: MarkovType = "none"
    if w1 is not None and w2 is not None:
        names = source.tensors
        kind = "gated" if "markov_gate.weight" in names else "vanilla"
        kind = "rnn" if "markov_joint.weight" in names else kind
    stated = settings.flag("sample_from_anchor")
    # DeepSeek-V4's stages are anchor-first by themselves, and say nothing of it
    chooses = kind != "none" and "hyper_connection.count" not in fields
    extra = {name: value for name, value in fields.items() if name not in _HANDLED}
    return DraftConfig(
        shape=shape,
        rope=Rope(theta),
        block=settings.whole("block_size"),
        mask=settings.whole("mask_token_id", least=0),
        taps=_taps(source, settings),
        anchor_first=True if stated is None and chooses else stated,
        markov=(kind, w1.shape[-1] if w1 and kind != "none" else 0),
        draft_vocabulary=d2t.shape[0] if d2t else shape.vocabulary,
        confidence=(
            "conf_proj.weight" in source.tensors
            if chooses
            else settings.flag("has_confidence_head")
        ),
        # of the converters only those for Gemma 4 keep tables that are not the target's
        tables="own" if _shares_kv(source) else "copies",
        extra=extra | _sizes(settings),
        shared_kv=_shares_kv(source),
    )


def _sizes(settings: Settings) -> dict[str, int]:
    """The keys, beside those of every draft, from which shapes of tensors follow."""
    for mark, names in (("selector_rank", _DFLASH2), ("hyper_connection.count", _STAGES)):
        if settings.find(mark) is not None or settings.find(names[0]) is not None:
            return {name: settings.whole(name) for name in names}
    return {}


def _shares_kv(source: _Source) -> bool:
    """Keys serve as values, as in Gemma 4's drafts."""
    names = source.tensors
    return "blk.0.attn_k.weight" in names and "blk.0.attn_v.weight" not in names


_BY_NAME = """
block_count embedding_length feed_forward_length attention.head_count attention.head_count_kv
attention.key_length attention.value_length context_length attention.layer_norm_rms_epsilon
rope.freq_base block_size mask_token_id target_layers sample_from_anchor has_confidence_head
markov_head_type layer_ids vocab_size
"""
_HANDLED = frozenset(_BY_NAME.split())


def _taps(source: _Source, settings: Settings) -> tuple[int, ...]:
    ids = settings.ids("target_layers")
    if ids is None:
        settings.need("target_layers")
    assert ids is not None
    arch = source.file.architecture
    known = {"dspark": "outputs", "dflash": "inputs"}.get(arch)
    old = any(
        key.endswith(("target_layer_ids", "capture_layer_ids")) for key in source.file.metadata
    )
    meant = settings.text("layer_ids") or (None if old and arch == "dflash" else known)
    if meant == "inputs":
        return ids
    if meant == "outputs":
        return tuple(layer + 1 for layer in ids)
    raise settings.wrong(
        f"its target layers {list(ids)} may count layers by their output, as checkpoints do, or by "
        f"their input: files of architecture {arch} are found of both kinds; say --set "
        "layer_ids=outputs or --set layer_ids=inputs (one too low or high makes acceptance bad)"
    )
