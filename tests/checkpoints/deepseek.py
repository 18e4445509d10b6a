"""DeepSeek-V4: the draft's stages are the `mtp.*` tensors of the target's own checkpoint."""

from tests.checkpoints.shapes import CONTEXT, RANK, TARGET_LAYERS, Checkpoint, Config
from tests.checkpoints.tokenizer import END, MASK, STOP, VOCABULARY
from tests.checkpoints.writing import Weights

WIDTH, HEADS, HEAD_DIM, ROPE_DIM = 160, 4, 32, 16  # no multiple of the 128 that a scale covers
Q_RANK, O_RANK, O_GROUPS = 64, 32, 2
EXPERTS, EXPERT_FFN, STREAMS, STAGES = 4, 64, 4, 2
MIXES = STREAMS * (STREAMS + 2)
TAPS = [3, 4, 5]
TILE = 128


def deepseek4() -> Checkpoint:
    """Four files with an index: the target's embedding and a layer, its head, two stages."""
    return Checkpoint(
        config=_config(),
        shards={
            "model-00001-of-00004.safetensors": _first().stored,
            "model-00002-of-00004.safetensors": _last().stored,
            "model-00003-of-00004.safetensors": _stage(0).stored,
            "model-00004-of-00004.safetensors": _stage(1).stored,
        },
        target=None,
    )


def _first() -> Weights:
    weights = Weights("deepseek4")
    weights.bf16("embed.weight", VOCABULARY, WIDTH)
    weights.norm("layers.0.attn_norm.weight", WIDTH)
    _add_fp8(weights, "layers.0.attn.wkv", HEAD_DIM, WIDTH)
    return weights


def _last() -> Weights:
    weights = Weights("deepseek4")
    weights.bf16("head.weight", VOCABULARY, WIDTH)
    weights.norm("norm.weight", WIDTH)
    _add_hyper_head(weights, "")
    return weights


def _stage(stage: int) -> Weights:
    weights = Weights("deepseek4")
    at = f"mtp.{stage}."
    for part in ("attn", "ffn"):
        weights.norm(f"{at}{part}_norm.weight", WIDTH)
        weights.f32(f"{at}hc_{part}_fn", MIXES, STREAMS * WIDTH)
        weights.f32(f"{at}hc_{part}_base", MIXES)
        weights.f32(f"{at}hc_{part}_scale", 3)
    _add_attention(weights, f"{at}attn.")
    _add_experts(weights, f"{at}ffn.")
    if stage == 0:
        _add_fp8(weights, f"{at}main_proj", WIDTH, len(TAPS) * WIDTH)
        weights.norm(f"{at}main_norm.weight", WIDTH)
    if stage == STAGES - 1:
        weights.norm(f"{at}norm.weight", WIDTH)
        weights.bf16(f"{at}markov_head.markov_w1.weight", VOCABULARY, RANK)
        weights.bf16(f"{at}markov_head.markov_w2.weight", VOCABULARY, RANK)
        weights.bf16(f"{at}confidence_head.proj.weight", 1, WIDTH + RANK)
        _add_hyper_head(weights, at)
    return weights


def _add_attention(weights: Weights, at: str) -> None:
    weights.f32(f"{at}attn_sink", HEADS)
    weights.norm(f"{at}q_norm.weight", Q_RANK)
    weights.norm(f"{at}kv_norm.weight", HEAD_DIM)
    _add_fp8(weights, f"{at}wq_a", Q_RANK, WIDTH)
    _add_fp8(weights, f"{at}wq_b", HEADS * HEAD_DIM, Q_RANK)
    _add_fp8(weights, f"{at}wkv", HEAD_DIM, WIDTH)
    _add_fp8(weights, f"{at}wo_a", O_GROUPS * O_RANK, HEADS * HEAD_DIM // O_GROUPS)
    _add_fp8(weights, f"{at}wo_b", WIDTH, O_GROUPS * O_RANK)


def _add_experts(weights: Weights, at: str) -> None:
    weights.bf16(f"{at}gate.weight", EXPERTS, WIDTH)
    weights.f32(f"{at}gate.bias", EXPERTS, around=8.0)
    shapes = {"w1": (EXPERT_FFN, WIDTH), "w2": (WIDTH, EXPERT_FFN), "w3": (EXPERT_FFN, WIDTH)}
    for name, (rows, columns) in shapes.items():
        _add_fp8(weights, f"{at}shared_experts.{name}", rows, columns)
        for expert in range(EXPERTS):
            weights.packed(f"{at}experts.{expert}.{name}.weight", "I8", rows, columns // 2)
            weights.e8m0(f"{at}experts.{expert}.{name}.scale", rows, columns // 32)


def _add_hyper_head(weights: Weights, at: str) -> None:
    weights.f32(f"{at}hc_head_fn", STREAMS, STREAMS * WIDTH)
    weights.f32(f"{at}hc_head_base", STREAMS)
    weights.f32(f"{at}hc_head_scale", 1)


def _add_fp8(weights: Weights, name: str, rows: int, columns: int) -> None:
    weights.e4m3(f"{name}.weight", rows, columns)
    weights.e8m0(f"{name}.scale", -(-rows // TILE), -(-columns // TILE))


def _config() -> Config:
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": END,
        "compress_ratios": [0, 0, 4, 128, 4, 128] + [0] * STAGES,
        "compress_rope_theta": 160000,
        "dspark_block_size": 5,
        "dspark_markov_rank": RANK,
        "dspark_noise_token_id": MASK,
        "dspark_target_layer_ids": TAPS,
        "eos_token_id": STOP,
        "expert_dtype": "fp4",
        "hc_eps": 1e-06,
        "hc_mult": STREAMS,
        "hc_sinkhorn_iters": 20,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "index_head_dim": 32,
        "index_n_heads": 4,
        "index_topk": 32,
        "initializer_range": 0.02,
        "max_position_embeddings": CONTEXT,
        "model_type": "deepseek_v4",
        "moe_intermediate_size": EXPERT_FFN,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": HEADS,
        "num_experts_per_tok": 2,
        "num_hash_layers": 3,
        "num_hidden_layers": TARGET_LAYERS,
        "num_key_value_heads": 1,
        "num_nextn_predict_layers": 1,
        "o_groups": O_GROUPS,
        "o_lora_rank": O_RANK,
        "q_lora_rank": Q_RANK,
        "qk_rope_head_dim": ROPE_DIM,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "scale_fmt": "ue8m0",
            "weight_block_size": [TILE, TILE],
        },
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 16,
            "original_max_position_embeddings": 65536,
            "type": "yarn",
        },
        "rope_theta": 10000,
        "routed_scaling_factor": 1.5,
        "scoring_func": "sqrtsoftplus",
        "sliding_window": 128,
        "swiglu_limit": 10.0,
        "tie_word_embeddings": False,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }
