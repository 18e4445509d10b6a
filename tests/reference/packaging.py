"""From a checkpoint folder of any packaging to a draft."""

import math
from pathlib import Path
from typing import Any

from llamaspec.errors import ModelLoadError
from tests.reference import deepseek4
from tests.reference.backbone import DenseBackbone
from tests.reference.checkpoint import Checkpoint, FloatArray
from tests.reference.draft import Draft
from tests.reference.heads import make_head
from tests.reference.layers import Convolution, Layer, Shape, Sight
from tests.reference.rope import make_rope

Settings = dict[str, Any]

# training leftovers and what follows from the configuration
_UNUSED = ("t2d", "rotary_emb.inv_freq", "mask_embedding", "input_scale")


def load(folder: Path, target: Path) -> Draft:
    """Read the draft in `folder`; embedding and head come from the target's checkpoint folder
    where the draft has none.

    Packagings: DeepSpec (Qwen3DSparkModel, Gemma4DSparkModel), SpecForge and LFM2 (nested
    dflash_config), z-lab (DFlashDraftModel, DFlash2DraftModel), speculators, DeepSeek-V4 (mtp.*).
    Raises ModelLoadError for tensors that are missing, or that nothing here reads.
    """
    draft = Checkpoint(folder)
    settings = flatten(draft.config)
    if draft.names("mtp."):
        return deepseek4.load(draft, settings, *_embedding_and_head(Checkpoint(target)))
    embedding, head = _own_or_targets(draft, settings, target)
    loaded = Draft(
        backbone=_backbone(draft, settings, embedding, head),
        head=make_head(draft, settings),
        taps=_taps(settings),
        block_size=settings["block_size"],
        first=_first(draft, settings),
        mask=settings["mask_token_id"],
    )
    unread = [name for name in sorted(draft.unread) if not name.endswith(_UNUSED)]
    if unread:
        raise ModelLoadError(f"{folder}: nothing reads {', '.join(unread)}")
    return loaded


def flatten(config: Settings) -> Settings:
    """One level of keys: the nested ones of speculators, SpecForge, LFM2 and z-lab win."""
    nested = ("transformer_layer_config", "dspark_config", "dflash_config")
    return {**config, **{k: v for part in nested for k, v in (config.get(part) or {}).items()}}


def _taps(settings: Settings) -> tuple[int, ...]:
    # indices of hidden states, where the embedding is number 0
    if "aux_hidden_state_layer_ids" in settings:
        return tuple(settings["aux_hidden_state_layer_ids"])
    return tuple(i + 1 for i in settings["target_layer_ids"])


def _first(draft: Checkpoint, settings: Settings) -> int:
    if "candidate_selector.predecessor_codebook" in draft:
        return 1
    if "sample_from_anchor" in settings:
        return int(not settings["sample_from_anchor"])
    bonus = ("DFlashDraft", "MuseGlimmer")
    return int(_is_speculators(settings) or settings["architectures"][0].startswith(bonus))


def _is_speculators(settings: Settings) -> bool:
    return "transformer_layer_config" in settings or "aux_hidden_state_layer_ids" in settings


def _embedding_and_head(target: Checkpoint) -> tuple[FloatArray, FloatArray]:
    embedding = target([*target.names(suffix="embed_tokens.weight"), "embed.weight"][0])
    heads = [*target.names(suffix="lm_head.weight"), *target.names("head.weight")]
    return embedding, target(heads[0]) if heads else embedding


def _own_or_targets(
    draft: Checkpoint, settings: Settings, target: Path
) -> tuple[FloatArray, FloatArray]:
    embedding, head = draft.get("embed_tokens.weight"), draft.get("lm_head.weight")
    if head is None and settings.get("tie_word_embeddings"):
        head = embedding
    if embedding is None or head is None:
        others = _embedding_and_head(Checkpoint(target))
        embedding = others[0] if embedding is None else embedding
        head = others[1] if head is None else head
    return embedding, head


def _backbone(
    draft: Checkpoint, settings: Settings, embedding: FloatArray, head: FloatArray
) -> DenseBackbone:
    gemma = settings["architectures"][0].startswith("Gemma4")
    scale = settings.get("input_embedding_scale")
    return DenseBackbone(
        shape=make_shape(settings, gemma),
        layers=tuple(
            make_layer(draft, f"layers.{i}.", _sight(settings, i), gemma)
            for i in range(settings["num_hidden_layers"])
        ),
        fc=draft("fc.weight"),
        fc_norm=draft("hidden_norm.weight"),
        norm=draft("norm.weight"),
        embedding=embedding,
        head=head,
        embedding_scale=scale or (math.sqrt(settings["hidden_size"]) if gemma else 1.0),
    )


def make_shape(settings: Settings, gemma: bool) -> Shape:
    """The shape of a Qwen3-like or Gemma4 model."""
    heads = settings["num_attention_heads"]
    head_dim = settings.get("head_dim") or settings["hidden_size"] // heads
    if gemma:
        head_dim = settings["global_head_dim"]
    rope: Settings = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    if gemma and not rope:
        # Gemma4TextConfig's own default
        rope = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
    outside = ("rope_theta", "partial_rotary_factor")
    above = {key: settings[key] for key in outside if key in settings}
    rope = above | rope.get("full_attention", rope)
    interleaved = not settings.get("rope_is_neox_style", True)
    longest = settings.get("max_position_embeddings", 0)
    act = settings.get("hidden_activation") or settings.get("hidden_act") or "silu"
    return Shape(
        head_dim=head_dim,
        eps=settings["rms_norm_eps"],
        rope=make_rope(rope, head_dim, longest, interleaved=interleaved),
        attention_scale=1.0 if gemma else head_dim**-0.5,
        value_scale=settings.get("attention_value_scale") or 1.0,
        value_norm=gemma,
        gelu=gemma or act.startswith("gelu"),
    )


def _sight(settings: Settings, layer: int) -> Sight:
    causal = bool(settings.get("is_causal", settings.get("causal", False)))
    if settings.get("use_swa"):
        return Sight(settings["swa_window_size"], causal)
    kinds = settings.get("layer_types") or []
    window = settings.get("sliding_window") if settings.get("use_sliding_window") else None
    if window is None or kinds[layer : layer + 1] != ["sliding_attention"]:
        return Sight(None, causal)
    # speculators trains windowed layers causally inside the block unless it says otherwise
    stated = settings.get("sliding_window_non_causal", True)
    return Sight(window, causal or (_is_speculators(settings) and not stated))


def make_layer(weights: Checkpoint, at: str, sight: Sight, gemma: bool) -> Layer:
    """Layer weights under Hugging Face's names, beginning with `at`."""
    post, attn = "post_attention_layernorm.weight", f"{at}self_attn."
    sinks = weights.names(f"{attn}sink") + weights.names(f"{attn}attention_sink")
    before_ffn = "pre_feedforward_layernorm.weight" if gemma else post
    return Layer(
        attn_norm=weights(f"{at}input_layernorm.weight"),
        q=weights(f"{attn}q_proj.weight"),
        k=weights(f"{attn}k_proj.weight"),
        v=weights.get(f"{attn}v_proj.weight"),
        o=weights(f"{attn}o_proj.weight"),
        q_norm=weights(f"{attn}q_norm.weight"),
        k_norm=weights(f"{attn}k_norm.weight"),
        ffn_norm=weights(f"{at}{before_ffn}"),
        gate=weights(f"{at}mlp.gate_proj.weight"),
        up=weights(f"{at}mlp.up_proj.weight"),
        down=weights(f"{at}mlp.down_proj.weight"),
        attn_post_norm=weights(f"{at}{post}") if gemma else None,
        ffn_post_norm=weights.get(f"{at}post_feedforward_layernorm.weight"),
        scale=next((weights(name) for name in weights.names(f"{at}layer_scalar")), None),
        sinks=weights(sinks[0]) if sinks else None,
        attn_conv=_convolution(weights, f"{at}attention_conv."),
        ffn_conv=_convolution(weights, f"{at}mlp_conv."),
        sight=sight,
    )


def _convolution(weights: Checkpoint, at: str) -> Convolution | None:
    if f"{at}base_kernel" not in weights:
        return None
    return Convolution(weights(f"{at}base_kernel"), weights(f"{at}kernel_projection.weight"))
