"""The tensors that dense packagings share: a Qwen3-like backbone under one set of names."""

import re
from collections.abc import Mapping
from dataclasses import replace

from llamaspec.convert.checkpoint import Checkpoint
from llamaspec.convert.plan import DraftConfig, Mapped
from llamaspec.convert.quantised import ACTIVATION_SCALES, linear
from llamaspec.convert.reduced import target_ids
from llamaspec.convert.weights import Weights, deinterleaved, padded
from llamaspec.errors import ModelLoadError

_MODULES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_SINKS = ("self_attn.sinks", "self_attn.attention_sink_bias")
BLOCK_NAMES = {f"{theirs}.weight": f"{ours}.weight" for theirs, ours in _MODULES.items()} | {
    f"{name}{end}": "attn_sinks.weight" for name in _SINKS for end in ("", ".weight")
}
"""What follows `layers.N.` in a checkpoint, and `blk.N.` in a GGUF."""
ROOT_NAMES = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight",
    "markov_head.gate_proj.weight": "markov_gate.weight",
    "markov_head.gate_proj.bias": "markov_gate.bias",
    "markov_head.joint_proj.weight": "markov_joint.weight",
    "markov_head.joint_proj.bias": "markov_joint.bias",
    "confidence_head.proj.weight": "conf_proj.weight",
    "confidence_head.proj.bias": "conf_proj.bias",
    "confidence_proj.weight": "conf_proj.weight",
    "confidence_proj.bias": "conf_proj.bias",
}
_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_UNUSED = {
    "t2d": "the inverse of d2t, for training",
    "mask_embedding": "for training",
    "mask_embedding.weight": "for training",
}
_LAYER = re.compile(r"layers\.(\d{1,9})\.(.+)")
_ROPE_PERMUTED = ("attn_q.weight", "attn_k.weight", "attn_q_norm.weight", "attn_k_norm.weight")


def map_dense(
    source: Checkpoint, config: DraftConfig, names: Mapping[str, str] = BLOCK_NAMES
) -> Mapped:
    """A dense backbone's tensors under GGUF names.

    Args:
        source: the checkpoint; names may begin with "model.".
        config: its configuration.
        names: of a layer's parameters, the checkpoint's and GGUF's.

    Raises:
        ModelLoadError: two tensors of one meaning.
    """
    mapped, bare = Mapped({}), {name.removeprefix("model."): name for name in source.entries}
    if len(bare) < len(source.entries):
        raise ModelLoadError(f"{source.folder}: some tensors are there with and without 'model.'")
    for name, full in bare.items():
        if name in _UNUSED or name.endswith("rotary_emb.inv_freq"):
            mapped.left_out[full] = _UNUSED.get(name, "computed")
        elif name.endswith(ACTIVATION_SCALES):
            mapped.left_out[full] = "scale of activations"
        elif name == "d2t":
            mapped.tensors["d2t"] = target_ids(source, full, config)
    tables: dict[str, Weights] = {}
    for name, full in bare.items():
        # a packed weight goes by the name that it would have unpacked
        plain, whole = name.removesuffix("_packed"), full.removesuffix("_packed")
        if plain in (_EMBEDDING, _HEAD):
            tables[plain] = linear(source, whole)
        elif (gguf_name := _gguf_name(plain, names)) is not None:
            if gguf_name in mapped.tensors:
                raise ModelLoadError(f"{source.folder}: {full} is there under two names")
            mapped.tensors[gguf_name] = linear(source, whole)
    found = replace(mapped, embedding=tables.get(_EMBEDDING), head=tables.get(_HEAD))
    _settle_confidence(found, config)
    return found


def _settle_confidence(mapped: Mapped, config: DraftConfig) -> None:
    """Give a confidence head the width that llama.cpp wants, or leave it out without a chain."""
    head = mapped.tensors.get("conf_proj.weight")
    if head is None:
        return
    if config.markov[1] == 0:
        for name in ("conf_proj.weight", "conf_proj.bias"):
            weights = mapped.tensors.pop(name, None)
            for source in weights.source if weights else ():
                mapped.left_out[source] = (
                    "llama.cpp reads a confidence head with a Markov head only"
                )
    elif head.shape == (1, config.shape.width) and _rank(mapped) == config.markov[1]:
        # a head that does not look at the previous token: its weights for that are zero
        mapped.tensors["conf_proj.weight"] = padded(head, config.shape.width + config.markov[1])


def _rank(mapped: Mapped) -> int:
    w1 = mapped.tensors.get("markov_w1.weight")
    return w1.shape[-1] if w1 is not None else 0


def _gguf_name(name: str, names: Mapping[str, str]) -> str | None:
    if name in ROOT_NAMES:
        return ROOT_NAMES[name]
    match = _LAYER.fullmatch(name)
    module = names.get(match[2]) if match else None
    return f"blk.{match[1]}.{module}" if match and module else None


def unmapped(source: Checkpoint, mapped: Mapped) -> list[str]:
    """Tensors of the checkpoint that nothing has used and nothing has explained."""
    used = {name for weights in mapped.tensors.values() for name in weights.source}
    for table in (mapped.embedding, mapped.head):
        used |= set(table.source) if table is not None else set()
    return sorted(set(source.entries) - used - set(mapped.left_out))


def to_neox(mapped: Mapped, width: int) -> Mapped:
    """Queries, keys and their norms from interleaved RoPE pairs to NeoX halves."""
    tensors = {
        name: deinterleaved(weights, width) if name.endswith(_ROPE_PERMUTED) else weights
        for name, weights in mapped.tensors.items()
    }
    return Mapped(tensors, mapped.embedding, mapped.head, mapped.left_out)
