"""What the dense packagings share: a Qwen3-like backbone under one set of names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from llamaspec.convert.checkpoint import Checkpoint
from llamaspec.convert.plan import DraftConfig, DraftShape, Mapped, MarkovType, Tables
from llamaspec.convert.quantised import ACTIVATION_SCALES, linear
from llamaspec.convert.rope import read_rope
from llamaspec.convert.settings import MAX_HEAD_WIDTH, Settings
from llamaspec.convert.shown import shown
from llamaspec.convert.target import Target
from llamaspec.convert.weights import Weights, constant, deinterleaved, padded
from llamaspec.errors import IncompatibleDraftError, ModelLoadError
from llamaspec.runtime.metadata import MAX_LAYERS

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
_CONFIDENCE = ("confidence_head.proj.weight", "confidence_proj.weight")
NO_HEAD: MarkovType = "none"
_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_UNUSED = {
    "t2d": "the inverse of d2t, for training",
    "mask_embedding": "for training",
    "mask_embedding.weight": "for training",
}
_LAYER = re.compile(r"layers\.(\d{1,9})\.(.+)")
_INTEGERS = ("I64", "I32", "I16", "I8", "U8")
_ROPE_PERMUTED = ("attn_q.weight", "attn_k.weight", "attn_q_norm.weight", "attn_k_norm.weight")


def read_shape(settings: Settings) -> DraftShape:
    """Sizes of a dense backbone."""
    for name in ("attention_bias", "mlp_bias"):
        if settings.flag(name):
            raise settings.wrong(f"{name} is true, and llama.cpp's draft graph has no such biases")
    heads = settings.whole("num_attention_heads")
    shape = DraftShape(
        layers=settings.whole("num_hidden_layers", most=MAX_LAYERS),
        width=settings.whole("hidden_size"),
        feed_forward=settings.whole("intermediate_size"),
        heads=heads,
        kv_heads=settings.whole_or(heads, "num_key_value_heads"),
        head_width=settings.whole_or(0, "head_dim", most=MAX_HEAD_WIDTH) or None,
        context=settings.whole("max_position_embeddings"),
        rms_epsilon=settings.epsilon("rms_norm_eps"),
        vocabulary=settings.whole("vocab_size"),
    )
    wide = head_width(shape)
    if wide % 2 or not wide or (shape.head_width is None and shape.width % heads):
        raise settings.wrong(
            f"heads of {wide} elements ({heads} heads, width {shape.width}): RoPE turns pairs of "
            "them, and all must be as wide"
        )
    return shape


def head_width(shape: DraftShape) -> int:
    """Elements of an attention head."""
    return shape.head_width or shape.width // shape.heads


def read_markov(settings: Settings, source: Checkpoint) -> tuple[MarkovType, int]:
    """Kind and rank of the sequential head; ("none", 0) where the rank is 0."""
    rank = settings.whole_or(0, "markov_rank", least=0)
    kind = settings.text("markov_head_type") or "vanilla"
    if kind not in ("vanilla", "gated", "rnn"):
        raise settings.wrong(
            f"markov_head_type {shown(kind)} is none of the known: vanilla, gated and rnn"
        )
    w1 = next(
        (name for name in source.entries if name.endswith("markov_head.markov_w1.weight")), ""
    )
    if rank == 0:
        if w1:
            raise settings.wrong(f"markov_rank is 0 or missing, but the checkpoint has {w1}")
        return "none", 0
    if not w1:
        raise settings.wrong(
            f"markov_rank is {rank}, but the checkpoint has no markov_head.markov_w1"
        )
    return kind, rank  # type: ignore[return-value]


def read_activation(settings: Settings) -> dict[str, str]:
    """The key for a feed-forward activation other than SiLU."""
    name = settings.find("hidden_act", "hidden_activation") or "silu"
    if name == "silu":
        return {}
    if name in ("gelu_pytorch_tanh", "gelu"):
        return {"hidden_activation": "gelu_pytorch_tanh"}
    raise settings.wrong(
        f"hidden_act {shown(name)} is not in llama.cpp's draft graph: silu and gelu are"
    )


def read_windows(settings: Settings, layers: int) -> dict[str, object]:
    """Sliding windows: the window and which layers have it; {} where none does."""
    every = settings.flag("use_swa") or False
    if not (settings.flag("use_sliding_window") or every):
        return {}
    names = ("swa_window_size", "sliding_window") if every else ("sliding_window",)
    window = settings.whole_or(0, *names)
    if not window:
        if every or "sliding_attention" in (settings.texts("layer_types") or ()):
            raise settings.wrong(
                "says that layers see a sliding window and not how long it is; give --set "
                f"{names[0]}=..."
            )
        return {}
    if every:
        pattern = [True] * layers
    else:
        kinds = settings.texts("layer_types")
        if kinds is None or len(kinds) != layers:
            raise settings.wrong(
                f"there is a sliding window of {window}, but layer_types does not say for each of "
                f"{layers} layers whether it has it"
            )
        for kind in kinds:
            if kind not in ("sliding_attention", "full_attention"):
                raise settings.wrong(
                    f"layer_types has {shown(kind)}, not sliding_ or full_attention"
                )
        pattern = [kind == "sliding_attention" for kind in kinds]
    return {"attention.sliding_window": window, "attention.sliding_window_pattern": pattern}


@dataclass(frozen=True)
class Choices:
    """What tells one dense packaging from another.

    Attributes:
        taps: target layers whose input is read.
        anchor_first: as in DraftConfig.
        tables: as in DraftConfig.
        heads: it can have a Markov and a confidence head.
    """

    taps: tuple[int, ...]
    anchor_first: bool | None
    tables: Tables = "copies"
    heads: bool = True


def dense_config(source: Checkpoint, target: Target, choices: Choices) -> DraftConfig:
    """A dense backbone's configuration; every number of it is looked up, none assumed."""
    settings = source.settings
    shape = read_shape(settings)
    markov = read_markov(settings, source) if choices.heads else (NO_HEAD, 0)
    stated = settings.flag("sample_from_anchor")
    has_confidence = any(name.endswith(_CONFIDENCE) for name in source.entries)
    return DraftConfig(
        shape=shape,
        rope=read_rope(settings, head_width(shape), target.mrope),
        block=settings.nearest("block_size"),
        mask=settings.whole("mask_token_id", "dspark_noise_token_id", least=0),
        taps=choices.taps,
        anchor_first=choices.anchor_first if stated is None else stated,
        markov=markov,
        draft_vocabulary=settings.whole_or(shape.vocabulary, "draft_vocab_size"),
        confidence=(has_confidence and markov[1] > 0) if choices.heads else None,
        tables=choices.tables,
        extra=_extra(settings, shape.layers, markov[1] > 0),
    )


def decoder_taps(settings: Settings) -> tuple[int, ...]:
    """`target_layer_ids` (outputs of decoder layers, -1 the embedding) as inputs of layers."""
    ids = settings.ids("target_layer_ids")
    if ids is None:
        settings.need("target_layer_ids")
    return tuple(layer + 1 for layer in ids or ())


def _extra(settings: Settings, layers: int, biased: bool) -> dict[str, object]:
    keys: dict[str, object] = dict(read_activation(settings))
    keys |= read_windows(settings, layers)
    numbers = {
        "attention.value_scale": settings.number_or_none("attention_value_scale"),
        "embedding_scale": settings.number_or_none("input_embedding_scale"),
        "logit_scale": settings.number_or_none("output_multiplier"),
        "final_logit_softcapping": settings.number_or_none("final_logit_softcapping") or None,
    }
    if biased and (numbers["final_logit_softcapping"] or numbers["logit_scale"] not in (None, 1)):
        raise settings.wrong(
            "scales or softcaps the logits before the Markov bias, which llama.cpp's draft graph "
            "does not do; the proposals would be wrong"
        )
    keys |= {name: value for name, value in numbers.items() if value is not None}
    causal = settings.flag("is_causal")
    causal = settings.flag("causal") if causal is None else causal
    return keys if causal is None else keys | {"attention.causal": causal}


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


def target_ids(source: Checkpoint, name: str, config: DraftConfig) -> Weights:
    """d2t as absolute target ids: checkpoints store id - row.

    Raises:
        IncompatibleDraftError: ids twice or out of range, a wrong length, or a t2d that says
            something else.
    """
    if source.entry(name).dtype not in _INTEGERS:
        raise ModelLoadError(f"{source.folder}: d2t holds {source.entry(name).dtype}, not integers")
    offsets = source.whole(name).reshape(-1)
    ids = offsets.astype(np.int64) + np.arange(offsets.size)
    seen = check_ids(ids, config)
    mask = next((other for other in source.entries if other.removeprefix("model.") == "t2d"), None)
    if mask is not None:
        said = source.whole(mask).reshape(-1).astype(bool)
        size = config.shape.vocabulary
        if said.size != size or (said != seen).any():
            raise IncompatibleDraftError(
                f"t2d marks {int(said.sum())} of {said.size} tokens, "
                f"d2t uses {ids.size} of {size}, and they are not the same ones"
            )
    return constant(ids, (name,))


def check_ids(ids: npt.NDArray[np.int64], config: DraftConfig) -> npt.NDArray[np.bool_]:
    """Check target ids, [draft vocabulary]; returns which tokens they are, [vocabulary].

    Raises:
        IncompatibleDraftError: ids twice or out of range, or a wrong number of them.
    """
    rows, size = config.draft_vocabulary, config.shape.vocabulary
    if ids.size != rows:
        raise IncompatibleDraftError(f"d2t has {ids.size} rows, draft_vocab_size is {rows}")
    low, high = (int(ids.min()), int(ids.max())) if ids.size else (0, -1)
    if not 0 <= low <= high < size:
        raise IncompatibleDraftError(f"d2t maps to tokens {low} to {high}, the target has {size}")
    seen = np.zeros(size, bool)
    seen[ids] = True
    if seen.sum() != ids.size:
        raise IncompatibleDraftError(
            f"d2t maps {ids.size} rows to only {seen.sum()} tokens; each may occur once"
        )
    return seen


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
