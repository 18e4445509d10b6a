"""Step four: whether a plan makes a draft that llama.cpp loads and that fits its target."""

import re

from llamaspec.convert.plan import DraftConfig, Plan, Shapes
from llamaspec.convert.target import Target
from llamaspec.errors import IncompatibleDraftError, ModelLoadError
from llamaspec.runtime.describe import NO_LAYER_INPUT_ARCHITECTURES

MAX_BLOCK = 1024


def check_fit(config: DraftConfig, target: Target, stated_layers: int | None) -> None:
    """Raise IncompatibleDraftError where a draft was not made for the target.

    Args:
        config: the draft's.
        target: the target.
        stated_layers: how many layers the draft's configuration says that its target has.
    """
    for what, theirs, own in (
        ("width", target.width, config.shape.width),
        ("vocabulary", target.vocabulary, config.shape.vocabulary),
        ("number of layers", target.layers, stated_layers),
    ):
        if own is not None and own != theirs:
            raise IncompatibleDraftError(
                f"the draft was made for a target whose {what} is {own}, "
                f"{target.path} has {theirs}; give the target that it was trained for"
            )
    if not 0 <= config.mask < target.vocabulary:
        raise IncompatibleDraftError(
            f"the mask token is {config.mask}, the vocabulary has {target.vocabulary} tokens"
        )
    if config.draft_vocabulary > target.vocabulary:
        raise IncompatibleDraftError(
            f"draft_vocab_size is {config.draft_vocabulary}, the target has {target.vocabulary}"
        )
    _check_taps(config.taps, target)
    least = 1 if config.anchor_first else 2
    if not least <= config.block <= MAX_BLOCK:
        raise ModelLoadError(f"block_size is {config.block}; it must lie in {least} to {MAX_BLOCK}")


def _check_taps(taps: tuple[int, ...], target: Target) -> None:
    ids = [tap - 1 for tap in taps]
    if not ids:
        raise ModelLoadError("the list of target layers is empty")
    if sorted(set(ids)) != ids:
        raise ModelLoadError(
            f"the target layers {ids} are not in ascending order, each once; "
            "the order is that of the columns of fc, and no other is known"
        )
    if ids[0] < -1 or ids[-1] >= target.layers:
        raise IncompatibleDraftError(
            f"the draft reads target layers {ids}, {target.path} has the layers 0 to "
            f"{target.layers - 1} (-1 is the embedding)"
        )
    if target.architecture in NO_LAYER_INPUT_ARCHITECTURES:
        raise IncompatibleDraftError(
            f"{target.path} is a {target.architecture} model, which has no layer outputs of one "
            "row a token, so no draft can read them in this llama.cpp"
        )


def dense_shapes(config: DraftConfig) -> Shapes:
    """Tensors of a dense draft that must be there. Shapes rows first."""
    shape = config.shape
    wide, head = shape.width, shape.head_width or shape.width // shape.heads
    keys, inner = shape.kv_heads * head, shape.feed_forward or 0
    layer: Shapes = {
        "attn_norm.weight": (wide,),
        "attn_q.weight": (shape.heads * head, wide),
        "attn_k.weight": (keys, wide),
        "attn_v.weight": (keys, wide),
        "attn_output.weight": (wide, shape.heads * head),
        "attn_q_norm.weight": (head,),
        "attn_k_norm.weight": (head,),
        "ffn_norm.weight": (wide,),
        "ffn_gate.weight": (inner, wide),
        "ffn_up.weight": (inner, wide),
        "ffn_down.weight": (wide, inner),
    }
    if config.shared_kv:
        del layer["attn_v.weight"]
    kernel = config.extra.get("conv_kernel_size")
    if kernel is not None:
        projected = 2 * kernel * wide // config.extra["conv_group_size"]
        for part in ("attn", "ffn"):
            layer[f"{part}_conv_base"] = (2, kernel, wide)
            layer[f"{part}_conv_proj.weight"] = (projected, wide)
    found: Shapes = {
        f"blk.{number}.{name}": size
        for number in range(shape.layers)
        for name, size in layer.items()
    }
    if kernel is not None:
        rank = config.extra["selector_rank"]
        tokens = (shape.vocabulary, rank)
        found |= {"selector_predecessor.weight": tokens, "selector_successor.weight": tokens}
        found["selector_hidden.weight"] = (rank, wide)
    return found


def optional_shapes(config: DraftConfig) -> Shapes:
    """Tensors that may be there, and the shape that they then have."""
    shape = config.shape
    head = shape.head_width or shape.width // shape.heads
    rank = config.markov[1]
    found: Shapes = {
        "conf_proj.weight": (1, shape.width + rank),
        "conf_proj.bias": (1,),
        "token_embd.weight": (shape.vocabulary, shape.width),
        "output.weight": (config.draft_vocabulary, shape.width),
        "rope_freqs.weight": (head // 2,),
        "d2t": (config.draft_vocabulary,),
    }
    for number in range(shape.layers):
        found |= {
            f"blk.{number}.attn_sinks.weight": (shape.heads,),
            f"blk.{number}.post_attention_norm.weight": (shape.width,),
            f"blk.{number}.post_ffw_norm.weight": (shape.width,),
            f"blk.{number}.layer_output_scale.weight": (1,),
        }
    return found


def common_shapes(config: DraftConfig, target: Target) -> Shapes:
    """Tensors that every draft has, by its heads."""
    wide, (kind, rank) = config.shape.width, config.markov
    found: Shapes = {
        "fc.weight": (wide, len(config.taps) * target.width),
        "enc.output_norm.weight": (wide,),
        "output_norm.weight": (wide,),
    }
    if kind != "none":
        found["markov_w1.weight"] = (config.shape.vocabulary, rank)
        found["markov_w2.weight"] = (config.draft_vocabulary, rank)
    if kind == "gated":
        found |= {"markov_gate.weight": (rank, wide + rank), "markov_gate.bias": (rank,)}
    if kind == "rnn":
        joint = (3 * rank, wide + 2 * rank)
        found |= {"markov_joint.weight": joint, "markov_joint.bias": (3 * rank,)}
    if config.draft_vocabulary < config.shape.vocabulary:
        found["d2t"] = (config.draft_vocabulary,)
    return found


def check_tensors(plan: Plan, required: Shapes, optional: Shapes) -> None:
    """Raise where a tensor is missing, has another shape, or belongs to no such draft.

    Raises:
        ModelLoadError: names the tensors.
        IncompatibleDraftError: a shape, with the one that the configuration asks for.
    """
    missing = sorted(set(required) - set(plan.tensors), key=_by_layer)
    if missing:
        raise ModelLoadError(
            f"{_listed(missing)} missing, which a {plan.packaging} draft of "
            f"{plan.config.shape.layers} layers has; the checkpoint is incomplete"
        )
    for name, weights in plan.tensors.items():
        right = required.get(name) or optional.get(name)
        if right is None:
            raise ModelLoadError(
                f"{name} ({', '.join(weights.source[:2])}) belongs to no {plan.packaging} draft of "
                f"{plan.config.shape.layers} layers with a {plan.config.markov[0]} Markov head"
            )
        if weights.shape != right:
            raise IncompatibleDraftError(
                f"{', '.join(weights.source[:1]) or name} has the shape {list(weights.shape)}, "
                f"the configurations of draft and target ask for {list(right)} ({name})"
            )


def _by_layer(name: str) -> tuple[int, str]:
    match = re.match(r"blk\.(\d+)\.", name)
    return (int(match[1]) if match else -1, name)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more + (" is" if len(names) == 1 else " are")
