"""Gemma 4 drafts as DeepSpec saves them: four norms a layer, keys that are also the values."""

from tests.checkpoints import targets
from tests.checkpoints.shapes import (
    FFN,
    HEADS,
    LAYERS,
    RANK,
    TAPS,
    TARGET_LAYERS,
    WIDTH,
    Checkpoint,
    Config,
    add_fusion,
    add_heads,
    add_mlp,
    single,
)
from tests.checkpoints.tokenizer import END, MASK, STOP, VOCABULARY
from tests.checkpoints.writing import Weights

HEAD_DIM, KV_HEADS = 32, 1


def gemma4(*, rope: str | None = "proportional", tied: bool = False) -> Checkpoint:
    """`rope` is the full layers' rope_type, None no rope_parameters; `tied` leaves the head out."""
    weights = Weights("gemma4")
    add_fusion(weights)
    for layer in range(LAYERS):
        _add_attention(weights, layer)
        add_mlp(weights, layer)
    add_heads(weights)
    weights.bf16("embed_tokens.weight", VOCABULARY, WIDTH)
    if not tied:
        weights.bf16("lm_head.weight", VOCABULARY, WIDTH)
    config = _config() | {"tie_word_embeddings": tied}
    if rope == "proportional":
        full = {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": rope}
        sliding = {"rope_theta": 10000.0, "rope_type": "default"}
        config["rope_parameters"] = {"full_attention": full, "sliding_attention": sliding}
    elif rope is not None:
        full = {"rope_theta": 500000.0, "rope_type": rope}
        sliding = {"rope_theta": 10000.0, "rope_type": "default"}
        config["rope_parameters"] = {"full_attention": full, "sliding_attention": sliding}
    return single(config, weights, targets.gemma4())


def _add_attention(weights: Weights, layer: int) -> None:
    at = f"layers.{layer}."
    for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        weights.norm(f"{at}{name}_layernorm.weight", WIDTH)
    weights.norm(f"{at}layer_scalar", 1)
    weights.bf16(f"{at}self_attn.q_proj.weight", HEADS * HEAD_DIM, WIDTH)
    weights.bf16(f"{at}self_attn.k_proj.weight", KV_HEADS * HEAD_DIM, WIDTH)
    weights.bf16(f"{at}self_attn.o_proj.weight", WIDTH, HEADS * HEAD_DIM)
    weights.norm(f"{at}self_attn.q_norm.weight", HEAD_DIM)
    weights.norm(f"{at}self_attn.k_norm.weight", HEAD_DIM)


def _config() -> Config:
    return {
        "architectures": ["Gemma4DSparkModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attention_k_eq_v": True,
        "block_size": 7,
        "confidence_head_with_markov": True,
        "dtype": "bfloat16",
        "enable_confidence_head": True,
        "enable_moe_block": False,
        "eos_token_id": STOP,
        "final_logit_softcapping": None,
        "global_head_dim": HEAD_DIM,
        "head_dim": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": WIDTH,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": FFN,
        "layer_types": ["full_attention"] * LAYERS,
        "markov_head_type": "vanilla",
        "markov_rank": RANK,
        "mask_token_id": MASK,
        "max_position_embeddings": 4096,
        "model_type": "gemma4_text",
        "num_anchors": 512,
        "num_attention_heads": HEADS,
        "num_global_key_value_heads": KV_HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 0,
        "num_target_layers": TARGET_LAYERS,
        "pad_token_id": END,
        "rms_norm_eps": 1e-06,
        "sliding_window": 1024,
        "target_layer_ids": TAPS,
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }
