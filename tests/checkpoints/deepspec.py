"""Qwen3 drafts as DeepSpec saves them: a flat config, own copies of embedding and head."""

from tests.checkpoints import targets
from tests.checkpoints.shapes import (
    RANK,
    TAPS,
    TARGET_LAYERS,
    WIDTH,
    Checkpoint,
    Config,
    add_backbone,
    add_heads,
    qwen3_sizes,
    single,
)
from tests.checkpoints.tokenizer import END, MASK, STOP, VOCABULARY
from tests.checkpoints.writing import Weights

BLOCK = 7


def vanilla(*, untied: bool = False) -> Checkpoint:
    """DSpark with the low-rank Markov head; `untied` gives the target a head of its own."""
    weights = _backbone("deepspec")
    add_heads(weights)
    target = targets.qwen3() | {"tie_word_embeddings": not untied}
    return single(_config("vanilla"), weights, target)


def rank0() -> Checkpoint:
    """Markov rank 0 and no confidence head: DFlash in DeepSpec's layout."""
    config = _config("vanilla") | {
        "confidence_head_with_markov": False,
        "enable_confidence_head": False,
        "markov_rank": 0,
    }
    return single(config, _backbone("deepspec-rank0"), targets.qwen3())


def gated() -> Checkpoint:
    """A Markov head with a gate over [hidden ; W1 row], bias included."""
    weights = _backbone("deepspec-gated")
    add_heads(weights)
    weights.bf16("markov_head.gate_proj.weight", RANK, WIDTH + RANK)
    weights.bf16("markov_head.gate_proj.bias", RANK)
    return single(_config("gated"), weights, targets.qwen3())


def rnn() -> Checkpoint:
    """A recurrent Markov head: one projection of [state ; W1 row ; hidden] to three parts."""
    weights = _backbone("deepspec-rnn")
    add_heads(weights)
    weights.bf16("markov_head.joint_proj.weight", 3 * RANK, WIDTH + 2 * RANK)
    weights.bf16("markov_head.joint_proj.bias", 3 * RANK)
    return single(_config("rnn"), weights, targets.qwen3())


def _backbone(seed: str) -> Weights:
    weights = Weights(seed)
    add_backbone(weights)
    weights.bf16("embed_tokens.weight", VOCABULARY, WIDTH)
    weights.bf16("lm_head.weight", VOCABULARY, WIDTH)
    return weights


def _config(head: str) -> Config:
    return {
        **qwen3_sizes(),
        "architectures": ["Qwen3DSparkModel"],
        "block_size": BLOCK,
        "bos_token_id": None,
        "confidence_head_with_markov": True,
        "dtype": "bfloat16",
        "enable_confidence_head": True,
        "eos_token_id": STOP,
        "markov_head_type": head,
        "markov_rank": RANK,
        "mask_token_id": MASK,
        "num_anchors": 512,
        "num_target_layers": TARGET_LAYERS,
        "pad_token_id": END,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "target_layer_ids": TAPS,
        "transformers_version": "5.10.2",
    }
