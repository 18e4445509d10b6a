"""What a packaging module makes of a checkpoint: one neutral form, whatever the exporter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from llamaspec.convert.weights import Weights

if TYPE_CHECKING:
    from llamaspec.convert.checkpoint import Checkpoint
    from llamaspec.convert.target import Target

Tables = Literal["copies", "own", "none"]
MarkovType = Literal["none", "vanilla", "gated", "rnn"]


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of a draft.

    Attributes:
        theta: base.
        scaling: GGUF keys below `dflash.rope.scaling.` and their values; {} for none.
        dimensions: rotated dimensions of a head, where not all.
        sections: M-RoPE sections, where the target has such positions.
        factors: divisors of the frequencies, [head_width / 2], where they differ from 1.
    """

    theta: float
    scaling: Mapping[str, str | float | int] = field(default_factory=dict)
    dimensions: int | None = None
    sections: tuple[int, int, int, int] | None = None
    factors: Weights | None = None


@dataclass(frozen=True)
class DraftShape:
    """Sizes that every packaging has. Widths in elements."""

    layers: int
    width: int
    feed_forward: int | None
    heads: int
    kv_heads: int
    head_width: int | None
    context: int
    rms_epsilon: float
    vocabulary: int


@dataclass(frozen=True)
class DraftConfig:
    """The configuration of a draft in GGUF's terms.

    Attributes:
        shape: sizes.
        rope: rotary embedding.
        block: slots of a block.
        mask: token id of the mask.
        taps: target layers whose *input* is read, that is decoder layer id + 1; 0 the embedding.
        anchor_first: slot 0 proposes; None: the packaging has no such choice (DFlash).
        markov: kind and rank of the head.
        draft_vocabulary: rows of the draft's head; the whole vocabulary unless there is a d2t.
        confidence: there is a confidence head; None as for anchor_first.
        tables: whether the checkpoint's embedding and head are copies of the target's.
        extra: further `dflash.` keys.
        shared_kv: keys serve as values: there is no attn_v.
        notes: what a user should know.
    """

    shape: DraftShape
    rope: Rope
    block: int
    mask: int
    taps: tuple[int, ...]
    anchor_first: bool | None
    markov: tuple[MarkovType, int] = ("none", 0)
    draft_vocabulary: int = 0
    confidence: bool | None = None
    tables: Tables = "copies"
    extra: Mapping[str, Any] = field(default_factory=dict)
    shared_kv: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A draft ready to be written.

    Attributes:
        packaging: the name of what was recognised.
        config: see there.
        tensors: by GGUF name, in the order in which they are written.
        left_out: tensors of the checkpoint that are not needed, and why.
        notes: what a user should know.
    """

    packaging: str
    config: DraftConfig
    tensors: Mapping[str, Weights]
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Mapped:
    """Tensors under their GGUF names, and those of the checkpoint that are not needed.

    `embedding` and `head` are the checkpoint's own, if any: whether they are written is decided
    for all packagings in one place.
    """

    tensors: dict[str, Weights]
    embedding: Weights | None = None
    head: Weights | None = None
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Packaging:
    """One way in which drafts are published; the four steps of a conversion.

    Attributes:
        name: for people.
        recognises: step 1.
        configure: step 2, its config.json in neutral terms.
        map_tensors: step 3, its tensors under GGUF names; what is left over is unexpected.
        expected: step 4, the tensors that must be there and their shapes.
    """

    name: str
    recognises: "Callable[[Checkpoint], bool]"
    configure: "Callable[[Checkpoint, Target], DraftConfig]"
    map_tensors: "Callable[[Checkpoint, DraftConfig], Mapped]"
    expected: "Callable[[DraftConfig], Shapes] | None" = None
