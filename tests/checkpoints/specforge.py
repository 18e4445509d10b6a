"""SpecForge's drafts and LFM2's: `dflash_config` nested, embedding and head the target's."""

from tests.checkpoints import targets
from tests.checkpoints.shapes import (
    LAYERS,
    RANK,
    TAPS,
    TARGET_LAYERS,
    Checkpoint,
    Config,
    add_backbone,
    add_heads,
    qwen3_sizes,
    single,
)
from tests.checkpoints.tokenizer import MASK, STOP
from tests.checkpoints.writing import Weights


def specforge(*, mrope: bool = False) -> Checkpoint:
    """YaRN positions; the head's keys at the top and in `dflash_config`; `mrope`: for Qwen3.5."""
    weights = Weights("specforge")
    add_backbone(weights)
    add_heads(weights)
    config = {
        **qwen3_sizes(),
        **_head(),
        "architectures": ["DSparkDraftModel"],
        "block_size": 7,
        "confidence_head_with_markov": True,
        "dflash_config": {
            **_head(),
            "confidence_head_alpha": 1.0,
            "confidence_head_with_markov": True,
            "mask_token_id": MASK,
            "projector_type": "dspark",
            "target_layer_ids": TAPS,
        },
        "dtype": "bfloat16",
        "eos_token_id": STOP,
        "num_target_layers": TARGET_LAYERS,
        "rope_parameters": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 8192,
            "rope_theta": 10000000,
            "rope_type": "yarn",
        },
    }
    return single(config, weights, targets.qwen35() if mrope else targets.qwen3())


def lfm2() -> Checkpoint:
    """Rotary pairs side by side (`rope_is_neox_style` false), block 9."""
    weights = Weights("lfm2")
    add_backbone(weights)
    add_heads(weights)
    config = {
        **qwen3_sizes(),
        **_head(),
        "architectures": ["Lfm2DSparkDraftModel"],
        "block_size": 9,
        "dflash_config": {
            "mask_token_id": MASK,
            "num_target_layers": TARGET_LAYERS,
            "target_layer_ids": TAPS,
        },
        "layer_types": ["full_attention"] * LAYERS,
        "rms_norm_eps": 1e-05,
        "rope_is_neox_style": False,
        "rope_theta": 10000000.0,
    }
    return single(config, weights, targets.lfm2())


def _head() -> Config:
    return {"enable_confidence_head": True, "markov_head_type": "vanilla", "markov_rank": RANK}
