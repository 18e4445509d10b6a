"""Configs of the targets that the drafts belong to."""

from tests.checkpoints.shapes import (
    CONTEXT,
    FFN,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    TARGET_LAYERS,
    WIDTH,
    Config,
    qwen3_sizes,
)
from tests.checkpoints.tokenizer import STOP, VOCABULARY


def qwen3() -> Config:
    """Qwen3 with tied embeddings, as its small models have."""
    return {
        **qwen3_sizes(),
        "architectures": ["Qwen3ForCausalLM"],
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": STOP,
        "layer_types": ["full_attention"] * TARGET_LAYERS,
        "max_window_layers": TARGET_LAYERS,
        "num_hidden_layers": TARGET_LAYERS,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
    }


def qwen35() -> Config:
    """A Qwen3.5: multimodal, three-part rotary positions, three linear layers in four."""
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2
    text = {
        **qwen3_sizes(),
        "attn_output_gate": True,
        "eos_token_id": STOP,
        "full_attention_interval": 4,
        "layer_types": kinds[:TARGET_LAYERS],
        "model_type": "qwen3_5_text",
        "num_hidden_layers": TARGET_LAYERS,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
    }
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "tie_word_embeddings": False,
    }


def gemma4() -> Config:
    """A dense Gemma 4: every sixth layer attends globally, with wider heads and one KV head."""
    text = {
        "attention_k_eq_v": True,
        "final_logit_softcapping": 30.0,
        "global_head_dim": 32,
        "head_dim": HEAD_DIM,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": WIDTH,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": FFN,
        "layer_types": ["sliding_attention"] * (TARGET_LAYERS - 1) + ["full_attention"],
        "max_position_embeddings": CONTEXT,
        "model_type": "gemma4_text",
        "num_attention_heads": HEADS,
        "num_global_key_value_heads": 1,
        "num_hidden_layers": TARGET_LAYERS,
        "num_key_value_heads": KV_HEADS,
        "num_kv_shared_layers": 0,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "full_attention": {
                "partial_rotary_factor": 0.25,
                "rope_theta": 1000000.0,
                "rope_type": "proportional",
            },
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "sliding_window": 1024,
        "tie_word_embeddings": True,
        "vocab_size": VOCABULARY,
    }
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "eos_token_id": STOP,
        "model_type": "gemma4",
        "text_config": text,
        "tie_word_embeddings": True,
    }


def lfm2() -> Config:
    """An LFM2: short convolutions and a few attention layers, tied embeddings."""
    return {
        "architectures": ["Lfm2ForCausalLM"],
        "block_auto_adjust_ff_dim": False,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 32,
        "conv_L_cache": 3,
        "conv_bias": False,
        "eos_token_id": STOP,
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "layer_types": ["conv", "conv", "full_attention"] * (TARGET_LAYERS // 3),
        "max_position_embeddings": CONTEXT,
        "model_type": "lfm2",
        "norm_eps": 1e-05,
        "num_attention_heads": HEADS,
        "num_hidden_layers": TARGET_LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rope_theta": 1000000.0,
        "tie_embedding": True,
        "vocab_size": VOCABULARY,
    }


def nemotron() -> Config:
    """A Nemotron-H: Mamba-2, experts and attention by turns."""
    kinds = ["mamba", "moe", "mamba", "attention", "mamba", "moe"]
    assert len(kinds) == TARGET_LAYERS
    return {
        "architectures": ["NemotronHForCausalLM"],
        "eos_token_id": STOP,
        "head_dim": HEAD_DIM,
        "hidden_size": WIDTH,
        "layers_block_type": kinds,
        "max_position_embeddings": CONTEXT,
        "model_type": "nemotron_h",
        "num_attention_heads": HEADS,
        "num_experts_per_tok": 2,
        "num_hidden_layers": TARGET_LAYERS,
        "num_key_value_heads": KV_HEADS,
        "tie_word_embeddings": False,
        "vocab_size": VOCABULARY,
    }
