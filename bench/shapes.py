"""The shapes of published models, for files of random weights."""

from dataclasses import dataclass, replace

from llamaspec.errors import OptionError


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Qwen3 target and of a DSpark draft for it. tied: the embedding is the head too.

    taps: checkpoint layers whose output the draft reads.
    """

    name: str
    width: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    tied: bool
    head_width: int = 128
    vocabulary: int = 151936
    mask: int = 151669
    context: int = 40960
    rope_theta: float = 1e6
    rms_epsilon: float = 1e-6
    draft_layers: int = 5
    block: int = 7
    rank: int = 256
    taps_count: int = 5

    @property
    def taps(self) -> tuple[int, ...]:
        """Evenly spread from the second layer to the third from the end, as published drafts have
        them.
        """
        span, gaps = self.layers - 4, max(1, self.taps_count - 1)
        return tuple(round(1 + i * span / gaps) for i in range(self.taps_count))


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("qwen3-0.6b", 1024, 28, 16, 8, 3072, tied=True),
        Shape("qwen3-1.7b", 2048, 28, 16, 8, 6144, tied=True),
        Shape("qwen3-4b", 2560, 36, 32, 8, 9728, tied=True),
        Shape("qwen3-8b", 4096, 36, 32, 8, 12288, tied=False),
        Shape("qwen3-14b", 5120, 40, 40, 8, 17408, tied=False),
        Shape("qwen3-32b", 5120, 64, 64, 8, 25600, tied=False),
    )
}
TINY = replace(
    Shape("tiny", 64, 6, 4, 2, 128, tied=True),
    head_width=32,
    vocabulary=1024,
    mask=1000,
    context=512,
    draft_layers=2,
    rank=32,
    taps_count=3,
)


def named(name: str) -> Shape:
    """A shape by its name. Raises OptionError for an unknown one."""
    known = {**SHAPES, TINY.name: TINY}
    if name not in known:
        raise OptionError(f"there is no shape {name!r}; the shapes are {', '.join(known)}")
    return known[name]
