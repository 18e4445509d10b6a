"""Miniature targets of llama.cpp's architectures: metadata alone, from which the program of
tests/native/layer_inputs.cpp makes a model with every tensor that the loader asks for.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.miniature import write_gguf

WIDTH, LAYERS, VOCABULARY, HEADS, HEAD, CONTEXT = 64, 4, 64, 4, 16, 256
Keys = Mapping[str, Any]

_DENSE = """
apertus arcee baichuan bitnet bloom chatglm codeshell cogvlm cohere2 command-r deci ernie4_5
exaone exaone4 falcon gemma gemma2 gemma3 gemma3n gemma4 glm4 gpt2 gptneox granite granite_swa
hrm_text hunyuan-dense hunyuan_vl internlm2 jais jais2 llama maincoder minicpm minicpm3 mistral3
mpt muse-glimmer nanbeige nemotron olmo olmo2 openelm orion paddleocr pangu-embedded phi2 phi3
plamo plamo3 pockettts qwen qwen2 qwen2vl qwen3 qwen3vl refact seed_oss smollm3 spark2_5 stablelm
starcoder starcoder2 talkie xverse
"""
_EXPERTS = """
afmoe arctic bailingmoe bailingmoe2 cohere2moe dbrx deepseek deepseek2 deepseek2-ocr deepseek32
dots1 ernie4_5-moe exaone-moe glm-dsa glm4moe gpt-oss granitemoe grok grovemoe hunyuan-moe hy_v3
hy_v4 laguna llama4 maple mellum mimo2 minimax-m2 minimax-m3 mistral4 olmoe phimoe qwen2moe
qwen3moe qwen3vlmoe smallthinker step35
"""
STREAMS = frozenset({"gemma3n", "glm5-next", "hy_v4", "qwen4exp"})
"""Architectures whose layers hand on several rows a token, which no draft can read."""
_ROLLING_EXPERTS = """
bailingmoe3 deepseek4 glm5-next kimi-k3 lfm2moe nemotron_h_moe qwen35moe qwen4exp
"""
MERGED = frozenset({"deepseek4", "kimi-k3"})
"""Whose layers read several rows too: of deepseek4 a draft reads the mean, of kimi-k3 nothing."""
EXPERTS = frozenset([*_EXPERTS.split(), *_ROLLING_EXPERTS.split(), "qwen3next"])
ROLLING = frozenset(["lfm2", "nemotron_h", "qwen35", *_ROLLING_EXPERTS.split()])
"""Architectures with a recurrent state of which llama.cpp keeps snapshots."""
STUCK = frozenset({"falcon-h1", "granitehybrid", "jamba", "mamba", "mamba2", "qwen3next"})
"""Some with a state of which it keeps none."""
TARGETS = frozenset(_DENSE.split()) | (EXPERTS - STUCK) | ROLLING

_SLIDING: Keys = {"attention.sliding_window_pattern": [True, False, True, False]}
_SECTIONS: Keys = {"rope.dimension_sections": [2, 2, 2, 2]}
_INDEXER: Keys = {
    "attention.indexer.head_count": 64,
    "attention.indexer.key_length": 128,
    "attention.indexer.top_k": 4096,
    "attention.indexer.block_size": 4,
    "attention.indexer.local_blocks": 1,
    "attention.indexer.types": [1, 0, 1, 0],
}
_LATENT: Keys = {
    "attention.q_lora_rank": 32,
    "attention.kv_lora_rank": 32,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.key_length": 48,
    "attention.value_length": 32,
    "attention.key_length_mla": 32,
    "attention.value_length_mla": 16,
    "rope.dimension_count": 16,
}
_STATES: Keys = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 64,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
}
_WIDE: Keys = {**_STATES, "ssm.inner_size": 2 * WIDTH}
# layers 1 and 2 keep a state, 0 and 3 attend
_MIXED: Keys = {
    "attention.head_count": [HEADS, 0, 0, HEADS],
    "attention.head_count_kv": [HEADS, 0, 0, HEADS],
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
}
_SHORT: Keys = {**_MIXED, "shortconv.l_cache": 3}
_NEMOTRON: Keys = {**_STATES, **_MIXED, "block_count": 5} | {
    "attention.head_count": [HEADS, 0, 0, HEADS, 0],
    "attention.head_count_kv": [HEADS, 0, 0, HEADS, 0],
    "feed_forward_length": [0, 0, 0, 0, 96],
}
_DELTA: Keys = {**_STATES, **_SECTIONS, "full_attention_interval": 2}
_HYPER: Keys = {
    "attention.indexer.kpool": 4,
    "attention.indexer.kpool_select_tail": True,
    "attention.compress_ratios": [4, 4, 4, 4],
    "hyper_connection.count": 4,
    "hyper_connection.sinkhorn_iterations": 2,
    "hyper_connection.epsilon": 1e-6,
    "hyper_connection.low_rank": 8,
}
_SPARSE: Keys = {key: _INDEXER[key] for key in _INDEXER if "types" not in key}
_KDA: Keys = {
    **_LATENT,
    "attention.head_count": [2, 0, 0, 2],
    "attention.head_count_kv": [1, 0, 0, 1],
    "ssm.conv_kernel": 4,
    "kda.head_dim": 16,
    "kda.safe_gate": True,
    "kda.gate_lower_bound": -5.0,
    "attn_res.block_size": 12,
    "activation.situ_beta": 4.0,
    "activation.situ_linear_beta": 25.0,
    "expert_latent_length": 48,
}
_OWN: Mapping[str, Keys] = {
    "bailingmoe3": _KDA,
    "deepseek4": {
        "attention.head_count_kv": 1,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "rope.dimension_count": 8,
        "attention.q_lora_rank": 32,
        **_SPARSE,
        "attention.output_group_count": 4,
        "attention.output_lora_rank": 16,
        "attention.compress_ratios": [0, 0, 4, 128],
        "attention.compress_rope_freq_base": 160000.0,
        "hyper_connection.count": 4,
        "hyper_connection.sinkhorn_iterations": 2,
        "hyper_connection.epsilon": 1e-6,
        "hash_layer_count": 0,
        "swiglu_clamp_exp": 10.0,
        "expert_weights_norm": True,
        "expert_gating_func": 4,
    },
    "falcon-h1": _STATES,
    "glm5-next": {
        **_KDA,
        **_SPARSE,
        **_HYPER,
        "attention.head_count": 2,
        "attention.key_length": 32,
        "rope.dimension_count": 0,
        "swiglu_clamp_exp": 10.0,
        "expert_weights_norm": True,
    },
    "granitehybrid": {**_WIDE, **_MIXED},
    "jamba": {**_WIDE, **_MIXED},
    "kimi-k3": _KDA,
    "lfm2": _SHORT,
    "lfm2moe": _SHORT,
    "mamba": _WIDE,
    "mamba2": _WIDE,
    "nemotron_h": _NEMOTRON,
    "nemotron_h_moe": _NEMOTRON,
    "qwen35": _DELTA,
    "qwen35moe": _DELTA,
    "qwen3next": _DELTA,
    "qwen4exp": {**_DELTA, **_SPARSE, **_HYPER, "attention.indexer.key_length": HEAD},
    "apertus": {f"xielu.{name}": [0.8] * LAYERS for name in ("alpha_p", "alpha_n", "beta", "eps")},
    "deepseek2": _LATENT,
    "deepseek32": {**_LATENT, **_INDEXER},
    "gemma3": {"block_count": 7, "attention.sliding_window": 9, "rope.freq_base": 1000000.0},
    "gemma4": {
        **_SLIDING,
        "embedding_length_per_layer_input": 16,
        "attention.shared_kv_layers": 0,
        "attention.key_length_swa": HEAD,
        "attention.value_length_swa": HEAD,
        "rope.freq_base_swa": 10000.0,
    },
    "glm-dsa": {**_LATENT, **_INDEXER},
    "granite": {"embedding_scale": 3.0, "residual_scale": 0.7},
    "granite_swa": _SLIDING,
    "grovemoe": {
        "expert_group_scale": 0.05,
        "experts_per_group": 2,
        "expert_chunk_feed_forward_length": 32,
    },
    "hrm_text": {"block_count": 6, "hrm.layers_per_stack": 1, "hrm.h_cycles": 2, "hrm.l_cycles": 2},
    "hy_v4": {
        **_LATENT,
        **_INDEXER,
        "hyper_connection.count": 4,
        "hyper_connection.epsilon": 1e-6,
        "hyper_connection.magnitude": 2.0,
        "swiglu_clamp_exp": 10.0,
        "expert_weights_norm": True,
    },
    "maple": {**_SLIDING, "swiglu_clamp_exp": 7.0},
    "mimo2": _SLIDING,
    "minicpm3": {
        "attention.q_lora_rank": 32,
        "attention.kv_lora_rank": 32,
        "attention.key_length": 16,
        "rope.dimension_count": 8,
    },
    "minimax-m3": {**_INDEXER, "attention.indexer.head_count": HEADS, "rope.dimension_count": HEAD},
    "mistral4": _LATENT,
    "paddleocr": _SECTIONS,
    "qwen2vl": _SECTIONS,
    "qwen3vl": {**_SECTIONS, "n_deepstack_layers": 2},
    "qwen3vlmoe": {**_SECTIONS, "n_deepstack_layers": 2},
    "spark2_5": _SLIDING,
    "step35": _SLIDING,
}
_MIXTURE: Keys = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 48,
    "expert_shared_count": 1,
    "expert_shared_feed_forward_length": 48,
    "expert_weights_scale": 1.0,
    "expert_gating_func": 2,
    "leading_dense_block_count": 1,
    "interleave_moe_layer_step": 2,
    "moe_every_n_layers": 2,
}


def tokenizer(size: int = VOCABULARY) -> dict[str, Any]:
    """Keys of a byte-level tokenizer of single characters and one merge."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*(chr(33 + i) for i in range(size - 1)), "ab"],
        "tokenizer.ggml.token_type": [1] * size,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def write_metadata(path: Path, arch: str) -> Path:
    """A GGUF of an architecture without tensors: 4 layers, 64 wide, 64 tokens."""
    keys: dict[str, Any] = {
        "block_count": LAYERS,
        "embedding_length": WIDTH,
        "context_length": CONTEXT,
        "feed_forward_length": 96,
        "vocab_size": VOCABULARY,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.sliding_window": 32,
        "attention.max_alibi_bias": 8.0,
        "attention.clamp_kqv": 8.0,
        "use_parallel_residual": True,
        "logit_scale": 0.5,
    }
    keys |= dict(_MIXTURE if arch in EXPERTS else {}) | dict(_OWN.get(arch, {}))
    # the parameters of Apertus' activation stand without the architecture
    named = {name if name.startswith("xielu.") else f"{arch}.{name}": keys[name] for name in keys}
    return write_gguf(path, arch, named | tokenizer(), {})


def write_bigram_draft(
    path: Path,
    taps: Sequence[int],
    text: Sequence[int],
    sizes: tuple[int, int] = (WIDTH, VOCABULARY),
) -> Path:
    """An untrained DSpark draft of one layer for a target of these sizes (width, vocabulary), with
    the target's tables. Where text is given, its Markov head knows which tokens followed which.
    """
    (width, vocabulary), generator = sizes, np.random.default_rng(7)
    keys = {
        "block_count": 1,
        "embedding_length": width,
        "context_length": CONTEXT,
        "feed_forward_length": width,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.causal": False,
        "block_size": 5,
        "target_layers": list(taps),
        "sample_from_anchor": True,
    }

    def random(*shape: int) -> npt.NDArray[np.float32]:
        return (generator.standard_normal(shape) / 8).astype(np.float32)

    inner = HEADS * HEAD
    shapes = {
        "attn_q": (inner, width),
        "attn_k": (inner, width),
        "attn_v": (inner, width),
        "attn_output": (width, inner),
        "ffn_gate": (width, width),
        "ffn_up": (width, width),
        "ffn_down": (width, width),
    }
    norms = {"attn_norm": width, "attn_q_norm": HEAD, "attn_k_norm": HEAD, "ffn_norm": width}
    tensors = {f"blk.0.{name}.weight": random(*shape) for name, shape in shapes.items()}
    tensors |= {f"blk.0.{name}.weight": 1 + random(size) for name, size in norms.items()}
    tensors |= {f"{name}.weight": 1 + random(width) for name in ("enc.output_norm", "output_norm")}
    tensors["fc.weight"] = random(width, len(taps) * width)
    if text:
        followers = np.zeros((vocabulary, vocabulary), np.float32)
        followers[text[1:], text[:-1]] = 1000
        tensors |= {
            "markov_w1.weight": np.eye(vocabulary, dtype=np.float32),
            "markov_w2.weight": followers,
        }
    named = {f"dflash.{name}": value for name, value in keys.items()}
    named |= {"dflash.vocab_size": vocabulary, "tokenizer.ggml.model": "no_vocab"}
    named |= {"tokenizer.ggml.mask_token_id": 0}
    return write_gguf(path, "dflash", named, tensors)
