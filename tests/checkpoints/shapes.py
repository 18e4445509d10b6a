"""The sizes that the miniature checkpoints share, and a Qwen3-like draft's tensors."""

from dataclasses import dataclass, field
from typing import Any

from tests.checkpoints.tokenizer import VOCABULARY
from tests.checkpoints.writing import Stored, Weights

Config = dict[str, Any]

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, RANK = 64, 2, 4, 2, 16, 96, 32
TARGET_LAYERS = 6
TAPS = [1, 3, 4]
CONTEXT = 4096


@dataclass(frozen=True)
class Checkpoint:
    """What a folder of a draft holds, and the config of its target.

    `shards` is file name -> tensors; `target` is None where the draft is inside the target's own
    checkpoint; `extra` is file name -> JSON value.
    """

    config: Config
    shards: dict[str, dict[str, Stored]]
    target: Config | None
    extra: Config = field(default_factory=dict)


def single(
    config: Config, weights: Weights, target: Config, extra: Config | None = None
) -> Checkpoint:
    """A checkpoint with all tensors in one file."""
    return Checkpoint(config, {"model.safetensors": weights.stored}, target, extra or {})


def add_fusion(weights: Weights) -> None:
    """The projection of the taps and the two norms around the layers."""
    weights.bf16("fc.weight", WIDTH, len(TAPS) * WIDTH)
    weights.norm("hidden_norm.weight", WIDTH)
    weights.norm("norm.weight", WIDTH)


def add_attention(weights: Weights, layer: int) -> None:
    """A layer's attention with its per-head norms, and the layer's two norms."""
    at = f"layers.{layer}."
    weights.norm(f"{at}input_layernorm.weight", WIDTH)
    weights.norm(f"{at}post_attention_layernorm.weight", WIDTH)
    weights.bf16(f"{at}self_attn.q_proj.weight", HEADS * HEAD_DIM, WIDTH)
    weights.bf16(f"{at}self_attn.k_proj.weight", KV_HEADS * HEAD_DIM, WIDTH)
    weights.bf16(f"{at}self_attn.v_proj.weight", KV_HEADS * HEAD_DIM, WIDTH)
    weights.bf16(f"{at}self_attn.o_proj.weight", WIDTH, HEADS * HEAD_DIM)
    weights.norm(f"{at}self_attn.q_norm.weight", HEAD_DIM)
    weights.norm(f"{at}self_attn.k_norm.weight", HEAD_DIM)


def add_mlp(weights: Weights, layer: int) -> None:
    """A layer's gated feed-forward network."""
    at = f"layers.{layer}.mlp."
    weights.bf16(f"{at}gate_proj.weight", FFN, WIDTH)
    weights.bf16(f"{at}up_proj.weight", FFN, WIDTH)
    weights.bf16(f"{at}down_proj.weight", WIDTH, FFN)


def add_backbone(weights: Weights) -> None:
    """Fusion and all layers."""
    add_fusion(weights)
    for layer in range(LAYERS):
        add_attention(weights, layer)
        add_mlp(weights, layer)


def add_heads(weights: Weights, draft_vocabulary: int = VOCABULARY) -> None:
    """The vanilla Markov head and the confidence head that reads it."""
    weights.bf16("markov_head.markov_w1.weight", VOCABULARY, RANK)
    weights.bf16("markov_head.markov_w2.weight", draft_vocabulary, RANK)
    weights.bf16("confidence_head.proj.weight", 1, WIDTH + RANK)
    weights.bf16("confidence_head.proj.bias", 1)


def qwen3_sizes() -> Config:
    """The keys of a Qwen3 config that say its sizes, for a draft."""
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "initializer_range": 0.02,
        "intermediate_size": FFN,
        "layer_types": ["full_attention"] * LAYERS,
        "max_position_embeddings": CONTEXT,
        "max_window_layers": LAYERS,
        "model_type": "qwen3",
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-06,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": VOCABULARY,
    }
