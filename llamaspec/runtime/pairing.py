"""Whether a draft fits a target, told from two descriptions before llama.cpp sees either file.

llamaspec asks a target's graph for layer inputs, which not every graph has; what two headers tell
is settled here, and the rest when the target is loaded.
"""

import itertools
import math
from collections.abc import Iterator, Mapping

from llamaspec.runtime.description import (
    DRAFT_ARCHITECTURE,
    DraftDescription,
    FileDescription,
    Selector,
)

# Targets whose graph gives no layer inputs that a draft could read: several streams side by side,
# of kimi-k3 layers that read a mix of earlier outputs, of plamo2 layers whose output has no name.
# Every other is asked when it is loaded, see TargetContext.set_taps. A test derives the list from
# the sources.
NO_LAYER_INPUT_ARCHITECTURES = frozenset(
    {"gemma3n", "glm5-next", "hy_v4", "kimi-k3", "qwen4exp", "plamo2"}
)
# Targets with recurrent state, alone or beside attention, of which llama.cpp keeps no snapshots,
# so that rejected tokens cannot be dropped. A test derives the list from the sources too, and a
# context is asked when it is made.
_RECURRENT = """
arwkv7 falcon-h1 granitehybrid jamba kimi-linear mamba mamba2 minimax-01 plamo2 qwen3next rwkv6
rwkv6qwen2 rwkv7
"""
RECURRENT_ARCHITECTURES = frozenset(_RECURRENT.split())
FOREIGN_DRAFTS = frozenset({"dspark", "dflash-draft", "qwen35-dflash-draft"})
"""Drafts of vendors' and older layouts, which `llamaspec convert` rewrites."""
_ENCODER_DECODERS = frozenset({"t5"})
Shape = tuple[int, ...]


def pair_problems(target: FileDescription, draft: FileDescription) -> list[str]:
    """Every reason why two described files cannot run together; [] when they fit."""
    kinds = [*target_problems(target), *draft_problems(draft)]
    if kinds or draft.draft is None:
        return kinds
    return [
        *_tap_problems(target, draft.draft),
        *_width_problems(target, draft, draft.draft),
        *_vocabulary_problems(target, draft, draft.draft),
        *_head_problems(draft, draft.draft),
    ]


def pair_notes(target: FileDescription, draft: FileDescription) -> list[str]:
    """What makes a fitting pair slower than it could be; nothing here changes the output."""
    detail = draft.draft
    if detail is None:
        return []
    notes = []
    if not target.tied and detail.own_embedding and not detail.own_head:
        notes.append(
            f"{draft.path.name} brings an embedding but no head, so its embedding serves as head; "
            f"{target.path.name} has a head of its own, and acceptance will be low: convert the "
            "draft again with both or neither"
        )
    if target.mrope and not detail.rope_sections:
        notes.append(
            f"{draft.path.name} has no dflash.rope.dimension_sections, which a draft for an M-RoPE "
            "target needs after images: convert it again"
        )
    if 0 < draft.context_length < target.context_length:
        notes.append(
            f"{draft.path.name} was trained for {draft.context_length} positions, "
            f"{target.path.name} for {target.context_length}: acceptance falls beyond"
        )
    return notes


def target_problems(target: FileDescription) -> Iterator[str]:
    """Why a file cannot be the model; empty where it can."""
    if target.draft is not None:
        width = target.draft.feature_width // max(1, len(target.draft.taps))
        yield (
            f"{target.path}: is a {target.draft.method} draft for a target of width {width} and "
            f"{target.draft.target_vocabulary} tokens, not standalone; "
            "give it as the draft and that target as the model"
        )
    elif target.architecture in _ENCODER_DECODERS:
        yield (
            f"{target.path}: is a {target.architecture} model, an encoder with a decoder, "
            "which llamaspec does not run"
        )
    elif target.kind != "target":
        yield (
            f"{target.path}: is a {target.architecture} file, not a model that generates text "
            "token by token"
        )


def draft_problems(draft: FileDescription) -> Iterator[str]:
    """Why a file cannot be a draft; empty where it can."""
    if draft.draft is None:
        if draft.architecture in FOREIGN_DRAFTS:
            yield (
                f"{draft.path}: is a draft in a layout of architecture {draft.architecture}; "
                f"llamaspec convert {draft.path.name} --target TARGET -o DRAFT.gguf makes one that "
                "can be loaded"
            )
            return
        what = "is a model by itself" if draft.kind == "target" else "is no block draft"
        yield (
            f"{draft.path}: {what} (architecture {draft.architecture}), and a draft must be of "
            f"architecture {DRAFT_ARCHITECTURE} (DSpark, DFlash)"
        )


def _tap_problems(target: FileDescription, detail: DraftDescription) -> Iterator[str]:
    arch = target.architecture
    if arch in NO_LAYER_INPUT_ARCHITECTURES:
        yield (
            f"{target.path.name}: architecture {arch} has no layer inputs of one row a token, so "
            "no draft can read them; run it without a draft"
        )
    if arch in RECURRENT_ARCHITECTURES:
        yield (
            f"{target.path.name}: architecture {arch} keeps recurrent state, from which rejected "
            "tokens cannot be dropped; run it without a draft"
        )
    bad = [tap for tap in detail.taps if not 0 <= tap <= target.n_layer]
    if not detail.taps:
        yield "the draft has no dflash.target_layers; convert it again"
    elif bad:
        yield (
            f"the draft reads the inputs of target layers {bad}, "
            f"{target.path.name} has the layers 0 to {target.n_layer - 1}, and {target.n_layer} is "
            "what leaves the last"
        )


def _width_problems(
    target: FileDescription, draft: FileDescription, detail: DraftDescription
) -> Iterator[str]:
    wanted = len(detail.taps) * target.width
    if detail.feature_width != wanted:
        yield (
            f"the draft takes features of width {detail.feature_width}, {target.path.name} gives "
            f"{wanted} ({len(detail.taps)} layers x {target.width})"
        )
    elif draft.width != target.width:
        yield (
            f"the draft is {draft.width} wide and {target.path.name} {target.width}: "
            "llama.cpp's draft graph needs the same width"
        )


def _vocabulary_problems(
    target: FileDescription, draft: FileDescription, detail: DraftDescription
) -> Iterator[str]:
    if detail.target_vocabulary != target.n_vocab:
        yield (
            f"the draft was made for {detail.target_vocabulary} tokens, "
            f"{target.path.name} has {target.n_vocab}"
        )
    elif draft.tokenizer not in ("", "none", "no_vocab", target.tokenizer):
        yield (
            f"the draft's tokenizer is {draft.tokenizer}, {target.path.name} has {target.tokenizer}"
        )
    if detail.mask_token_id is None:
        yield "the draft has no tokenizer.ggml.mask_token_id; convert it again"
    elif detail.mask_token_id >= detail.target_vocabulary:
        yield (
            f"the draft's mask token is {detail.mask_token_id}, "
            f"its vocabulary has {detail.target_vocabulary} tokens"
        )
    if detail.d2t_range is None:
        return
    low, high = detail.d2t_range
    if low < 0 or high >= detail.target_vocabulary or high < low:
        yield (
            f"the draft's d2t maps to tokens {low} to {high}, "
            f"its vocabulary has {detail.target_vocabulary} tokens"
        )
    if not detail.own_head:
        yield (
            f"the draft has a vocabulary of {detail.draft_vocabulary} tokens and no head for it "
            "(output.weight); convert it again"
        )


def _head_problems(draft: FileDescription, detail: DraftDescription) -> Iterator[str]:
    if detail.proposals < 1:
        yield f"the draft's block of {detail.block_size} slots ({detail.layout}) proposes nothing"
    if detail.selector is not None:
        yield from _selector_problems(draft, detail, detail.selector)
        return
    if detail.head == "none":
        if detail.has_confidence_head:
            yield "the draft has a confidence head (conf_proj) and no Markov head; convert it again"
        return
    width, rank, shapes = draft.width, detail.markov_rank, detail.head_shapes
    wanted: dict[str, Shape] = {
        "markov_w1.weight": (detail.target_vocabulary, rank),
        "markov_w2.weight": (detail.draft_vocabulary, rank),
    }
    # the projection that makes the head what it is, and its bias, which can be missing
    own = {"gated": ("markov_gate", rank, 1), "rnn": ("markov_joint", 3 * rank, 2)}
    if detail.head in own:
        name, rows, states = own[detail.head]
        wanted[f"{name}.weight"] = (rows, width + states * rank)
        if f"{name}.bias" in shapes:
            wanted[f"{name}.bias"] = (rows,)
    sizes = f"{detail.target_vocabulary} tokens, rank {rank} and width {width}"
    yield from _shape_problems(shapes, wanted, f"its {detail.head} head for {sizes}")
    for name in sorted(shapes):
        if name.startswith(("markov_gate", "markov_joint")) and name not in wanted:
            yield f"the draft has a {detail.head} head and a tensor {name} of another"
    found = shapes.get("conf_proj.weight", (width + rank,))
    if math.prod(found) != width + rank:
        yield f"the draft's conf_proj has shape {found}, not (1, {width + rank})"


def _selector_problems(
    draft: FileDescription, detail: DraftDescription, sizes: Selector
) -> Iterator[str]:
    top_k, rank, kernel, group = sizes.top_k, sizes.rank, sizes.kernel, sizes.group
    if min(top_k, rank, kernel, group) < 1:
        yield (
            f"the draft has a DFlash2 selector of {top_k} candidates and rank {rank}, and "
            f"convolutions of {kernel} rows in groups of {group}: none can be 0; convert it again"
        )
        return
    width, vocabulary = draft.width, detail.target_vocabulary
    if width % group:
        yield f"the draft's convolutions have groups of {group}, which do not divide {width}"
    if top_k > detail.draft_vocabulary or top_k * (top_k + 1) > width:
        yield (
            f"the draft's selector has {top_k} candidates of {detail.draft_vocabulary} tokens and "
            f"needs {top_k * (top_k + 1)} elements of a row, which is {width} wide"
        )
    wanted: dict[str, Shape] = {
        "selector_predecessor.weight": (vocabulary, rank),
        "selector_successor.weight": (vocabulary, rank),
        "selector_hidden.weight": (rank, width),
    }
    for layer, part in itertools.product(range(draft.n_layer), ("attn", "ffn")):
        wanted[f"blk.{layer}.{part}_conv_base"] = (2, kernel, width)
        wanted[f"blk.{layer}.{part}_conv_proj.weight"] = (2 * kernel * (width // group), width)
    what = f"its selector of rank {rank} for {vocabulary} tokens and width {width}"
    yield from _shape_problems(detail.head_shapes, wanted, what)
    others = [name for name in detail.head_shapes if name.startswith(("markov_", "conf_proj"))]
    if others:
        yield f"the draft has a selector and also {others[0]}, of another head; convert it again"


def _shape_problems(
    shapes: Mapping[str, Shape], wanted: Mapping[str, Shape], what: str
) -> Iterator[str]:
    for name, right in wanted.items():
        shape = shapes.get(name, ())
        if shape != right:
            yield f"the draft's {name} has shape {shape}, {what} needs {right}"
