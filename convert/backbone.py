"""The configuration that dense packagings share: sizes, heads, windows, activations."""

from dataclasses import dataclass

from llamaspec.convert.checkpoint import Checkpoint
from llamaspec.convert.plan import DraftConfig, DraftShape, MarkovType, Tables
from llamaspec.convert.rope import read_rope
from llamaspec.convert.settings import MAX_HEAD_WIDTH, Settings
from llamaspec.convert.shown import shown
from llamaspec.convert.target import Target
from llamaspec.runtime.metadata import MAX_LAYERS

_CONFIDENCE = ("confidence_head.proj.weight", "confidence_proj.weight")
NO_HEAD: MarkovType = "none"


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
