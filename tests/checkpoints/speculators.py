"""Drafts that vLLM's speculators saves: a nested config of the layers, taps as state indices."""

import numpy as np

from tests.checkpoints import targets
from tests.checkpoints.shapes import (
    RANK,
    TAPS,
    WIDTH,
    Checkpoint,
    Config,
    add_backbone,
    add_heads,
    qwen3_sizes,
    single,
)
from tests.checkpoints.tokenizer import MASK, VOCABULARY
from tests.checkpoints.writing import Weights

BLOCK = 8
DRAFT_VOCABULARY = VOCABULARY // 2


def speculators(
    *,
    full: bool = False,
    from_anchor: bool | None = False,
    architecture: str = "DSparkDraftModel",
) -> Checkpoint:
    """A reduced vocabulary with d2t and t2d, or the `full` one without them.

    `from_anchor` is `sample_from_anchor`; None leaves the key out, which means false here.
    """
    weights = Weights("speculators")
    add_backbone(weights)
    rows = VOCABULARY if full else DRAFT_VOCABULARY
    add_heads(weights, rows)
    weights.bf16("embed_tokens.weight", VOCABULARY, WIDTH)
    weights.bf16("lm_head.weight", rows, WIDTH)
    if not full:
        draft_ids = np.arange(DRAFT_VOCABULARY, dtype=np.int64)
        target_ids = 2 * draft_ids + draft_ids % 2
        weights.exact("d2t", "I64", target_ids - draft_ids)
        weights.exact("t2d", "BOOL", np.isin(np.arange(VOCABULARY), target_ids))
    config: Config = {
        "architectures": [architecture],
        "aux_hidden_state_layer_ids": [tap + 1 for tap in TAPS],
        "block_size": BLOCK,
        "confidence_head_with_markov": True,
        "draft_vocab_size": rows,
        "dtype": "bfloat16",
        "enable_confidence_head": True,
        "markov_head_type": "vanilla",
        "markov_rank": RANK,
        "mask_token_id": MASK,
        "max_anchors": 1024,
        "sliding_window_non_causal": False,
        "speculators_config": _proposals(),
        "speculators_model_type": "dspark",
        "speculators_version": "0.9.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            **qwen3_sizes(),
            "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
        },
    }
    if from_anchor is not None:
        config["sample_from_anchor"] = from_anchor
    return single(config, weights, targets.qwen3())


def _proposals() -> Config:
    return {
        "algorithm": "dspark",
        "default_proposal_method": "greedy",
        "proposal_methods": [
            {
                "accept_tolerance": 0.0,
                "proposal_type": "greedy",
                "speculative_tokens": BLOCK - 1,
                "verifier_accept_k": 1,
            }
        ],
        "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "miniature"},
    }
