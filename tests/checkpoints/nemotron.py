"""Nemotron's draft: causal, windowed, with sinks, some of its linears in NVFP4."""

import numpy as np

from tests.checkpoints import targets
from tests.checkpoints.shapes import (
    HEADS,
    LAYERS,
    TAPS,
    WIDTH,
    Checkpoint,
    Config,
    add_attention,
    qwen3_sizes,
    single,
)
from tests.checkpoints.tokenizer import MASK, VOCABULARY
from tests.checkpoints.writing import Weights

FFN, RANK = 128, 64  # GGUF's blocks of NVFP4 hold 64 columns
GROUP = 16


def nemotron(*, activations: bool = False) -> Checkpoint:
    """fc, the feed-forward networks and markov_w2 in NVFP4; an embedding, no head, no confidence.

    `activations`: declared W4A4 and with the scales of the inputs, instead of weights only.
    """
    weights = Weights("nemotron-nvfp4")
    weights.norm("hidden_norm.weight", WIDTH)
    weights.norm("norm.weight", WIDTH)
    weights.bf16("embed_tokens.weight", VOCABULARY, WIDTH)
    weights.bf16("markov_head.markov_w1.weight", VOCABULARY, RANK)
    linears = {
        "fc": (WIDTH, len(TAPS) * WIDTH),
        "markov_head.markov_w2": (VOCABULARY, RANK),
    }
    for layer in range(LAYERS):
        add_attention(weights, layer)
        weights.bf16(f"layers.{layer}.self_attn.attention_sink_bias", HEADS)
        linears[f"layers.{layer}.mlp.gate_proj"] = (FFN, WIDTH)
        linears[f"layers.{layer}.mlp.up_proj"] = (FFN, WIDTH)
        linears[f"layers.{layer}.mlp.down_proj"] = (WIDTH, FFN)
    for name, (rows, columns) in linears.items():
        _add_nvfp4(weights, name, rows, columns)
        if activations:
            weights.exact(f"{name}.input_scale", "F32", np.array(0.0078125 * 1.3, np.float32))
    algorithm = "NVFP4" if activations else "W4A16_NVFP4"
    extra = {"hf_quant_config.json": _quantization(algorithm)}
    return single(_config(algorithm), weights, targets.nemotron(), extra)


def _add_nvfp4(weights: Weights, name: str, rows: int, columns: int) -> None:
    weights.packed(f"{name}.weight", "U8", rows, columns // 2)
    weights.e4m3(f"{name}.weight_scale", rows, columns // GROUP, signed=False)
    scale = np.float32(0.0001) + np.float32(0.00001) * np.float32(len(weights.stored))
    weights.exact(f"{name}.weight_scale_2", "F32", np.array(scale, np.float32))


def _config(algorithm: str) -> Config:
    return {
        **qwen3_sizes(),
        "architectures": ["Qwen3DSparkModel"],
        "attention_sink_bias": True,
        "block_size": 8,
        "dflash_config": {
            "attention_sink_bias": True,
            "causal": True,
            "mask_token_id": MASK,
            "sample_from_anchor": False,
            "swa_window_size": 1024,
            "target_layer_ids": TAPS,
            "use_swa": True,
        },
        "dflash_query_causal": True,
        "draft_vocab_size": None,
        "dspark_bonus_anchor": True,
        "dspark_fixup_head_type": "markov",
        "dspark_markov_rank": RANK,
        "dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": [tap + 1 for tap in TAPS],
        "has_embed_tokens": True,
        "has_lm_head": False,
        "intermediate_size": FFN,
        "layer_types": ["sliding_attention"] * LAYERS,
        "markov_head_type": "vanilla",
        "markov_rank": RANK,
        "mask_token_id": MASK,
        "num_aux_layers": len(TAPS),
        "pard_token": MASK,
        "quantization_config": {
            "ignore": _not_quantized(),
            "kv_cache_quant_algo": None,
            "quant_algo": algorithm,
            "quant_method": "modelopt",
        },
        "rope_parameters": None,
        "rope_theta": 10000,
        "sample_from_anchor": False,
        "sliding_window": 1024,
        "target_layer_ids": TAPS,
        "train_embed_tokens": False,
        "use_cache": False,
    }


def _quantization(algorithm: str) -> Config:
    return {
        "producer": {"name": "modelopt", "version": "0.44.0"},
        "quantization": {
            "exclude_modules": _not_quantized(),
            "group_size": GROUP,
            "kv_cache_quant_algo": None,
            "quant_algo": algorithm,
        },
    }


def _not_quantized() -> list[str]:
    return ["embed_tokens", "markov_head.markov_w1", "layers.*.self_attn*"]
