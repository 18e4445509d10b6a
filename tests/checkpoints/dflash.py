"""DFlash drafts: z-lab's with a nested `dflash_config`, and DFlash 2 with its selector."""

from tests.checkpoints import targets
from tests.checkpoints.shapes import (
    HEADS,
    LAYERS,
    TAPS,
    TARGET_LAYERS,
    WIDTH,
    Checkpoint,
    Config,
    add_backbone,
    qwen3_sizes,
    single,
)
from tests.checkpoints.tokenizer import END, MASK, STOP, VOCABULARY
from tests.checkpoints.writing import Weights

BLOCK = 16
KERNEL, GROUP, SELECTOR_RANK, TOP_K = 2, 16, 32, 4


def zlab(*, sliding: bool = False, mrope: bool = False, sinks: bool = False) -> Checkpoint:
    """Block 16, no heads, no embedding.

    `sliding`: all layers but the last see a window. `mrope`: the target is a Qwen3.5. `sinks`: as
    for MiMo, per-head attention sinks, scaled values, half of each head rotated, a window that
    `dflash_config` declares.
    """
    weights = Weights("zlab")
    add_backbone(weights)
    config: Config = {
        **qwen3_sizes(),
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": BLOCK,
        "bos_token_id": None,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": TAPS},
        "dtype": "bfloat16",
        "eos_token_id": STOP,
        "num_target_layers": TARGET_LAYERS,
        "pad_token_id": END,
        "rope_scaling": None,
        "rope_theta": 1000000,
    }
    if sliding:
        config["layer_types"] = ["sliding_attention"] * (LAYERS - 1) + ["full_attention"]
        config |= {"sliding_window": 2048, "use_sliding_window": True}
    if sinks:
        for layer in range(LAYERS):
            weights.bf16(f"layers.{layer}.self_attn.attention_sink_bias", HEADS)
        config |= {"partial_rotary_factor": 0.5, "rope_theta": 10000, "sliding_window": 1024}
        config["dflash_config"] |= {
            "attention_sink_bias": True,
            "attention_value_scale": 0.612,
            "block_size": 8,
            "swa_window_size": 1024,
            "use_swa": True,
        }
    return single(config, weights, targets.qwen35() if mrope else targets.qwen3())


def dflash2() -> Checkpoint:
    """Block 8; grouped dynamic convolutions in every layer and a selector of candidates."""
    weights = Weights("dflash2")
    add_backbone(weights)
    for layer in range(LAYERS):
        for part in ("attention_conv", "mlp_conv"):
            at = f"layers.{layer}.{part}"
            weights.bf16(f"{at}.base_kernel", 2, KERNEL, WIDTH)
            weights.bf16(f"{at}.kernel_projection.weight", 2 * KERNEL * WIDTH // GROUP, WIDTH)
    weights.bf16("candidate_selector.hidden_projection.weight", SELECTOR_RANK, WIDTH)
    weights.bf16("candidate_selector.predecessor_codebook", VOCABULARY, SELECTOR_RANK)
    weights.bf16("candidate_selector.successor_codebook", VOCABULARY, SELECTOR_RANK)
    config = {
        **qwen3_sizes(),
        "architectures": ["DFlash2DraftModel"],
        "dflash_config": {
            "block_size": 8,
            "conv_group_size": GROUP,
            "conv_kernel_size": KERNEL,
            "mask_token_id": MASK,
            "selector_rank": SELECTOR_RANK,
            "selector_top_k": TOP_K,
            "target_layer_ids": TAPS,
        },
        "dtype": "bfloat16",
        "eos_token_id": STOP,
        "is_causal": False,
        "layer_types": ["sliding_attention"] * LAYERS,
        "num_target_layers": TARGET_LAYERS,
        "pad_token_id": END,
        "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
        "sliding_window": 2048,
        "use_sliding_window": True,
    }
    assert TOP_K * (TOP_K + 1) <= WIDTH  # as llama.cpp demands
    return single(config, weights, targets.qwen35())
