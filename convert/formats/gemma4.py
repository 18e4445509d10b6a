"""DeepSpec for Gemma 4 (`Gemma4DSparkModel`): keys serve as values, norms after each part.

Values are the unweighted RMS norm of the keys' projection; the embedding is scaled by the square
root of the width; attention is not scaled; the activation is the tanh GELU.
"""

import math
from dataclasses import replace
from typing import Any

from llamaspec.convert.backbone import Choices, decoder_taps, dense_config
from llamaspec.convert.checkpoint import Checkpoint
from llamaspec.convert.dense import BLOCK_NAMES, map_dense
from llamaspec.convert.plan import DraftConfig, Mapped, Packaging
from llamaspec.convert.rope import read_rope
from llamaspec.convert.settings import Settings
from llamaspec.convert.shown import shown
from llamaspec.convert.target import Target

_NAMES = BLOCK_NAMES | {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "layer_scalar": "layer_output_scale.weight",
    "layer_scalar.weight": "layer_output_scale.weight",
}
# what transformers' Gemma4TextConfig turns to where rope_parameters is absent
_ROPE = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}


def recognises(source: Checkpoint) -> bool:
    """By its class or model type: the schema is DeepSpec's."""
    kind = source.settings.config.get("model_type")
    gemma = isinstance(kind, str) and kind.startswith("gemma4")
    return source.architecture == "Gemma4DSparkModel" or (gemma and _is_draft(source.settings))


def _is_draft(settings: Settings) -> bool:
    return settings.find("target_layer_ids") is not None


def configure(source: Checkpoint, target: Target) -> DraftConfig:
    """The configuration in neutral terms. What the draft graph cannot do is refused."""
    settings = source.settings
    _refuse(settings)
    notes: tuple[str, ...] = ()
    if settings.find("rope_parameters") is None and settings.find("rope_theta") is None:
        given: dict[str, Any] = {**settings.config, "rope_parameters": {"full_attention": _ROPE}}
        settings = settings.with_config(given)
        notes = ("rope_parameters is absent: Gemma 4's own, proportional, a quarter, theta 1e6",)
    wide = settings.whole("global_head_dim")
    plain = settings.with_config(
        {
            **settings.config,
            "head_dim": wide,
            "num_key_value_heads": settings.whole("num_global_key_value_heads"),
        }
    )
    taps = decoder_taps(settings)
    config = dense_config(
        source.with_settings(plain), target, Choices(taps, anchor_first=True, tables="own")
    )
    extra = {
        **config.extra,
        "embedding_scale": math.sqrt(config.shape.width),
        "attention.scale": 1.0,
        "hidden_activation": "gelu_pytorch_tanh",
    }
    rope = replace(read_rope(plain, wide, mrope_target=False), dimensions=wide)
    return replace(config, rope=rope, extra=extra, shared_kv=True, notes=notes)


def _refuse(settings: Settings) -> None:
    if settings.flag("attention_k_eq_v") is not True:
        raise settings.wrong("attention_k_eq_v is not true: only drafts whose keys serve as values")
    kinds = settings.texts("layer_types")
    if kinds is not None and set(kinds) != {"full_attention"}:
        raise settings.wrong(
            f"layer_types is {shown(list(kinds))}: only full attention is possible"
        )
    if settings.flag("enable_moe_block"):
        raise settings.wrong("enable_moe_block is true: a draft with experts is not possible")
    if settings.find("final_logit_softcapping"):
        raise settings.wrong(
            f"final_logit_softcapping is {settings.find('final_logit_softcapping')}: llama.cpp's "
            "draft graph does not apply it before the Markov bias, so proposals would be wrong"
        )


def map_tensors(source: Checkpoint, config: DraftConfig) -> Mapped:
    """The tensors under GGUF names; RoPE factors are added where it is proportional."""
    mapped = map_dense(source, config, _NAMES)
    if mapped.head is not None or mapped.embedding is None:
        return mapped
    if source.settings.flag("tie_word_embeddings") is False:
        raise source.settings.wrong(
            "tie_word_embeddings is false, but the checkpoint has an embedding and no lm_head"
        )
    return replace(mapped, head=mapped.embedding)


PACKAGING = Packaging("DeepSpec for Gemma 4", recognises, configure, map_tensors)
