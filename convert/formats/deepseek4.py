"""DeepSeek-V4's embedded draft: the `mtp.*` tensors inside of a full checkpoint.

Stages are DeepSeek-V4 blocks: latent attention over a sliding window, experts, hyper-connections.
Experts are E2M1 with a scale for each 32, dense weights E4M3 with a scale for each 128 x 128.
Anchor-first. Only shards that hold `mtp.*` tensors are opened.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from llamaspec.convert.checkpoint import Checkpoint
from llamaspec.convert.plan import DraftConfig, DraftShape, Mapped, Packaging, Shapes
from llamaspec.convert.quantised import linear, mx_codes
from llamaspec.convert.rope import read_rope
from llamaspec.convert.scaled import FP8
from llamaspec.convert.settings import MAX_HEAD_WIDTH, Settings
from llamaspec.convert.shown import shown
from llamaspec.convert.target import Target
from llamaspec.convert.weights import Weights, stacked
from llamaspec.errors import ModelLoadError
from llamaspec.runtime.metadata import MAX_LAYERS

_MARKS = ("dspark_block_size", "dspark_noise_token_id", "dspark_target_layer_ids")
_ROOT = {
    "main_proj.weight": "fc.weight",
    "main_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight",
    "confidence_head.proj.weight": "conf_proj.weight",
    "confidence_head.proj.bias": "conf_proj.bias",
    "hc_head_fn": "output_hc_fn.weight",
    "hc_head_base": "output_hc_base.weight",
    "hc_head_scale": "output_hc_scale.weight",
}
_STAGE = {
    "hc_attn_fn": "hc_attn_fn.weight",
    "hc_attn_base": "hc_attn_base.weight",
    "hc_attn_scale": "hc_attn_scale.weight",
    "hc_ffn_fn": "hc_ffn_fn.weight",
    "hc_ffn_base": "hc_ffn_base.weight",
    "hc_ffn_scale": "hc_ffn_scale.weight",
    "attn.attn_sink": "attn_sinks.weight",
    "attn.wq_a.weight": "attn_q_a.weight",
    "attn.wq_b.weight": "attn_q_b.weight",
    "attn.q_norm.weight": "attn_q_a_norm.weight",
    "attn.wkv.weight": "attn_kv.weight",
    "attn.kv_norm.weight": "attn_kv_a_norm.weight",
    "attn.wo_a.weight": "attn_output_a.weight",
    "attn.wo_b.weight": "attn_output_b.weight",
    "attn_norm.weight": "attn_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "ffn.gate.weight": "ffn_gate_inp.weight",
    "ffn.gate.bias": "exp_probs_b.bias",
    "ffn.shared_experts.w1.weight": "ffn_gate_shexp.weight",
    "ffn.shared_experts.w2.weight": "ffn_down_shexp.weight",
    "ffn.shared_experts.w3.weight": "ffn_up_shexp.weight",
}
_EXPERTS = {"w1": "ffn_gate_exps", "w2": "ffn_down_exps", "w3": "ffn_up_exps"}
_EXPERT = re.compile(r"ffn\.experts\.(\d{1,9})\.(w[123])\.weight")
_NAME = re.compile(r"mtp\.(\d{1,9})\.(.+)")
_UNUSED = {
    "ffn.gate.bias_vl": "for images",
    "ffn.gate.tid2eid": "routing by hash, which drafts do not use",
}
Wanted = Callable[[str], bool]
_GATES = {"softmax": 1, "sigmoid": 2, "sqrtsoftplus": 4}


def wanted(name: str) -> bool:
    """Whether a tensor of the full checkpoint belongs to the draft."""
    return name.startswith("mtp.")


def marked(config: Mapping[str, object]) -> bool:
    """Whether a configuration is that of a full model with an embedded draft."""
    return sum(key in config for key in _MARKS) >= 2


def recognises(source: Checkpoint) -> bool:
    """The draft's own keys in the full model's configuration."""
    return marked(source.settings.config)


def configure(source: Checkpoint, target: Target) -> DraftConfig:
    """The configuration in neutral terms."""
    settings = source.settings
    stages = [int(match[1]) for name in source.entries if (match := _NAME.fullmatch(name))]
    if not stages:
        raise settings.wrong(f"has {_MARKS[0]}, but the checkpoint has no mtp.* tensors")
    layers, width = 1 + max(stages), settings.whole("head_dim", most=MAX_HEAD_WIDTH)
    if layers > MAX_LAYERS:
        raise settings.wrong(f"there are tensors mtp.{layers - 1}.*, {MAX_LAYERS} stages at most")
    shape = DraftShape(
        layers=layers,
        width=settings.whole("hidden_size"),
        feed_forward=settings.whole_or(0, "intermediate_size") or None,
        heads=settings.whole("num_attention_heads"),
        kv_heads=settings.whole("num_key_value_heads"),
        head_width=width,
        context=settings.whole("max_position_embeddings"),
        rms_epsilon=settings.epsilon("rms_norm_eps"),
        vocabulary=settings.whole("vocab_size"),
    )
    ids = settings.ids("dspark_target_layer_ids")
    if ids is None:
        settings.need("dspark_target_layer_ids")
    w1 = next((name for name in source.entries if name.endswith("markov_w1.weight")), None)
    rank = (source.entry(w1).shape or (1,))[-1] if w1 else 0
    return DraftConfig(
        shape=shape,
        rope=replace(
            read_rope(settings, width, mrope_target=False),
            dimensions=settings.whole("qk_rope_head_dim", most=width),
        ),
        block=settings.whole("dspark_block_size"),
        mask=settings.whole("dspark_noise_token_id", least=0),
        taps=tuple(layer + 1 for layer in ids or ()),
        anchor_first=None,
        markov=("vanilla", rank) if rank else ("none", 0),
        draft_vocabulary=shape.vocabulary,
        tables="none",
        extra=_extra(settings, layers),
    )


def _extra(settings: Settings, layers: int) -> dict[str, object]:
    score = settings.text("scoring_func")
    if score not in _GATES:
        raise settings.wrong(f"scoring_func is {shown(score)}, none of {', '.join(_GATES)}")
    limit, normed = settings.number("swiglu_limit"), settings.flag("norm_topk_prob")
    if normed is None:
        settings.need("norm_topk_prob")
    keys: dict[str, object] = {
        "attention.q_lora_rank": settings.whole("q_lora_rank"),
        "attention.sliding_window": settings.whole("sliding_window"),
        "attention.output_group_count": settings.whole("o_groups"),
        "attention.output_lora_rank": settings.whole("o_lora_rank"),
        "attention.compress_ratios": [0] * layers,
        "expert_count": settings.whole("n_routed_experts"),
        "expert_used_count": settings.whole("num_experts_per_tok"),
        "expert_feed_forward_length": settings.whole("moe_intermediate_size"),
        "expert_shared_count": settings.whole("n_shared_experts"),
        "expert_weights_scale": settings.number("routed_scaling_factor"),
        "expert_weights_norm": bool(normed),
        "expert_gating_func": _GATES[score],
        "swiglu_clamp_exp": [limit] * layers,
        "swiglu_clamp_shexp": [limit] * layers,
        "hyper_connection.count": settings.whole("hc_mult"),
        "hyper_connection.sinkhorn_iterations": settings.whole("hc_sinkhorn_iters"),
        "hyper_connection.epsilon": settings.number("hc_eps"),
        "hash_layer_count": 0,
    }
    # of the full model's attention, which the draft's stages do not have; the loader wants them
    for key, name in (
        ("attention.indexer.head_count", "index_n_heads"),
        ("attention.indexer.key_length", "index_head_dim"),
        ("attention.indexer.top_k", "index_topk"),
    ):
        keys[key] = settings.whole(name)
    keys["attention.compress_rope_freq_base"] = settings.number("compress_rope_theta")
    for key, name in (("expert_group_count", "n_group"), ("expert_group_used_count", "topk_group")):
        if settings.find(name) is not None:
            keys[key] = settings.whole(name)
    return keys


def map_tensors(source: Checkpoint, config: DraftConfig) -> Mapped:
    """The tensors under GGUF names; experts stacked and kept as MXFP4."""
    mapped, experts = Mapped({}), dict[tuple[str, str], dict[int, str]]()
    for name in source.entries:
        match = _NAME.fullmatch(name)
        if match is None:
            if not wanted(name):
                mapped.left_out[name] = "of the full model"
            continue
        stage, rest = match.groups()
        if rest in _UNUSED:
            mapped.left_out[name] = _UNUSED[rest]
        elif (expert := _EXPERT.fullmatch(rest)) is not None:
            experts.setdefault((stage, expert[2]), {})[int(expert[1])] = name
        elif rest in _ROOT:
            _put(mapped, _ROOT[rest], _kept(source, name))
        elif rest in _STAGE:
            _put(mapped, f"blk.{stage}.{_STAGE[rest]}", _kept(source, name))
    count = int(config.extra["expert_count"])
    for (stage, part), names in experts.items():
        if len(names) != count or sorted(names) != list(range(count)):
            raise ModelLoadError(
                f"{source.folder}: stage {stage} has {len(names)} experts with {part}, "
                f"n_routed_experts is {count}"
            )
        parts = [
            mx_codes(source, names[number], names[number].removesuffix("weight") + "scale")
            for number in range(count)
        ]
        mapped.tensors[f"blk.{stage}.{_EXPERTS[part]}.weight"] = stacked(parts)
    return mapped


def _put(mapped: Mapped, name: str, weights: Weights) -> None:
    if name in mapped.tensors:
        raise ModelLoadError(
            f"{weights.source[0]} and {mapped.tensors[name].source[0]} are both {name}"
        )
    mapped.tensors[name] = weights


def _kept(source: Checkpoint, name: str) -> Weights:
    if source.entry(name).dtype not in FP8:
        return source.weights(name)
    return replace(linear(source, name), auto="Q8_0")


def expected(config: DraftConfig) -> Shapes:
    """Tensors of a draft of DeepSeek-V4 stages."""
    shape, extra = config.shape, config.extra
    wide, head, heads = shape.width, shape.head_width or 0, shape.heads
    streams = int(extra["hyper_connection.count"])
    query, low = int(extra["attention.q_lora_rank"]), int(extra["attention.output_lora_rank"])
    groups, experts = int(extra["attention.output_group_count"]), int(extra["expert_count"])
    inner = int(extra["expert_feed_forward_length"])
    shared = inner * int(extra["expert_shared_count"])
    mix = (2 + streams) * streams
    found: Shapes = {
        "output_hc_fn.weight": (streams, streams * wide),
        "output_hc_base.weight": (streams,),
        "output_hc_scale.weight": (1,),
    }
    stage = {
        "attn_norm.weight": (wide,),
        "attn_sinks.weight": (heads,),
        "attn_q_a.weight": (query, wide),
        "attn_q_a_norm.weight": (query,),
        "attn_q_b.weight": (heads * head, query),
        "attn_kv.weight": (head, wide),
        "attn_kv_a_norm.weight": (head,),
        "attn_output_a.weight": (groups * low, heads * head // groups),
        "attn_output_b.weight": (wide, groups * low),
        "ffn_gate_inp.weight": (experts, wide),
        "exp_probs_b.bias": (experts,),
        "ffn_norm.weight": (wide,),
        "ffn_gate_exps.weight": (experts, inner, wide),
        "ffn_down_exps.weight": (experts, wide, inner),
        "ffn_up_exps.weight": (experts, inner, wide),
        "ffn_gate_shexp.weight": (shared, wide),
        "ffn_down_shexp.weight": (wide, shared),
        "ffn_up_shexp.weight": (shared, wide),
    }
    for part in ("attn", "ffn"):
        stage |= {
            f"hc_{part}_fn.weight": (mix, streams * wide),
            f"hc_{part}_base.weight": (mix,),
            f"hc_{part}_scale.weight": (3,),
        }
    for layer in range(shape.layers):
        found |= {f"blk.{layer}.{name}": size for name, size in stage.items()}
    return found


PACKAGING = Packaging("DeepSeek-V4 embedded", recognises, configure, map_tensors, expected)
