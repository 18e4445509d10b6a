"""What a pair will take of every device's memory, before anything of it is loaded.

llama.cpp itself plans: models of which only the metadata is read, and contexts with the very
parameters of loading, which take no memory. What it does not count is added here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Self

from llamaspec.errors import LlamaSpecError
from llamaspec.ffi import ffi, lib
from llamaspec.runtime import log
from llamaspec.runtime.context import KEPT_GRAPHS, KEPT_ROWS, Context, ContextShape, TargetContext
from llamaspec.runtime.description import FileDescription
from llamaspec.runtime.draft_context import DraftContext
from llamaspec.runtime.model import ON_CPU, Model
from llamaspec.runtime.placement import Placement

HOST = "CPU"
_MOST_DEVICES = 64
# a position's entry in llama.cpp's table of cells, and in its sets of used cells and of positions
_CELL, _USED_CELL = 52, 96
# the table is there for real: of more positions than this the rest is extrapolated
_MOST_PLANNED = 1 << 21
# a node of a graph with what its scheduler notes of it, and a token with its merge: as measured
_NODE, _TOKEN = 1250, 270
# beside those that are kept, a context has its last graph, and its largest for reserving
_OWN_GRAPHS = 2
# llama.cpp rounds a sequence's positions up to this
_PADDING = 256
# features of a batch's rows: llama.cpp's, gathered, a batch's and the copy that is computed on
_FEATURE_COPIES = 4
_FLOAT = 4


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes on one device.

    Attributes:
        device: its name, as `doctor` lists it.
        weights: of both models.
        kv_target, kv_draft: the caches, recurrent states among them.
        compute: what passes compute in; of the most rows at once.
        graphs: the same of the graphs that are kept, each of few rows, and the graphs themselves.
        outputs: logits and features.
        tables: which position is where in the caches, filled; the vocabularies.
        prefixes: texts that had to leave their places, at most.
    """

    device: str
    weights: int = 0
    kv_target: int = 0
    kv_draft: int = 0
    compute: int = 0
    graphs: int = 0
    outputs: int = 0
    tables: int = 0
    prefixes: int = 0

    @property
    def total(self) -> int:
        return sum(int(getattr(self, name)) for name in KINDS)

    def plus(self, **bytes_: int) -> Self:
        return replace(self, **{name: getattr(self, name) + n for name, n in bytes_.items()})

    def along(self, other: Self, steps: float) -> Self:
        """So many steps further on the line from `other` to this one."""
        ends = {name: (getattr(self, name), getattr(other, name)) for name in KINDS}
        return replace(self, **{n: a + round((a - b) * steps) for n, (a, b) in ends.items()})


KINDS = tuple(field.name for field in fields(Part) if field.name != "device")


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a pair takes with n_ctx positions of all its sequences together.

    per_sequence: bytes that each of them adds at this length: caches, tables, outputs.
    """

    parts: tuple[Part, ...]
    n_ctx: int
    n_seq: int

    @property
    def total(self) -> int:
        return sum(part.total for part in self.parts)

    def with_prefixes(self, most: int) -> Self:
        """The same with so many bytes of stored texts, which are in the CPU's memory."""
        parts = (p.plus(prefixes=most) if p.device == HOST else p for p in self.parts)
        return replace(self, parts=tuple(parts))

    @property
    def per_sequence(self) -> int:
        own = ("kv_target", "kv_draft", "outputs", "tables")
        taken = (int(getattr(part, name)) for part in self.parts for name in own)
        return sum(taken) // self.n_seq

    def lines(self) -> list[str]:
        """As a table: a line a device, and one about a sequence."""
        heads = [name.replace("_", " ") for name in ("device", *KINDS, "total")]
        rows = [
            [p.device, *(_size(getattr(p, name)) for name in KINDS), _size(p.total)]
            for p in self.parts
        ]
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        shown = [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in (heads, *rows)
        ]
        many = f"{self.n_seq} sequences" if self.n_seq > 1 else "1 sequence"
        return [
            *shown,
            f"{self.n_ctx} positions, {many}, {_size(self.per_sequence)} each; in all "
            f"{_size(self.total)}",
        ]

    def __str__(self) -> str:
        return ", ".join(
            f"{part.device} {_size(part.total)} ("
            + ", ".join(
                f"{name.replace('_', ' ')} {_size(getattr(part, name))}"
                for name in KINDS
                if getattr(part, name)
            )
            + ")"
            for part in self.parts
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


@dataclass(frozen=True, slots=True)
class DraftSide:
    """How a draft's context is going to be made and configured.

    Attributes:
        shape: of its context.
        taps: the target's layer inputs that it reads.
        causal, confidence, lattice, base: as `DraftContext.configure` takes them.
    """

    shape: ContextShape
    taps: tuple[int, ...]
    causal: bool
    confidence: bool
    lattice: bool
    base: bool


class Plan:
    """A pair of which only the metadata is read. A context manager."""

    def __init__(self, target: Model, draft: Model | None) -> None:
        self.target, self.draft = target, draft

    @classmethod
    def open(
        cls,
        target: FileDescription,
        at: Placement,
        draft: FileDescription | None = None,
        draft_at: Placement = ON_CPU,
    ) -> Self:
        """Read the metadata of both. Raises ModelLoadError with llama.cpp's reason."""
        model = Model.plan(target, at)
        try:
            return cls(model, Model.plan(draft, draft_at) if draft else None)
        except BaseException:
            model.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.draft is not None:
            self.draft.close()
        self.target.close()

    def forecast(self, shape: ContextShape, side: DraftSide | None) -> Forecast:
        """What the pair takes with such contexts; side: None without a draft that is a model.

        Raises LlamaSpecError where llama.cpp cannot make such contexts.
        """
        if shape.n_ctx <= _MOST_PLANNED:
            return Forecast(tuple(self._parts(shape, side)), shape.n_ctx, shape.n_seq)
        # all of it grows with the positions, in a straight line from a batch's rows on
        whole = _PADDING * shape.n_seq
        low, high = (
            self.forecast(*_shortened(shape, side, count - count % whole))
            for count in (_MOST_PLANNED // 2, _MOST_PLANNED)
        )
        steps = (shape.n_ctx - high.n_ctx) / (high.n_ctx - low.n_ctx)
        pairs = zip(high.parts, low.parts, strict=True)
        return Forecast(tuple(h.along(w, steps) for h, w in pairs), shape.n_ctx, shape.n_seq)

    def _parts(self, shape: ContextShape, side: DraftSide | None) -> list[Part]:
        found: dict[str, Part] = {}

        def add(device: str, **bytes_: int) -> None:
            found[device] = found.get(device, Part(device)).plus(**bytes_)

        apart = False
        for kind, context in self._contexts(shape, side):
            apart = context.apart
            for part in memory_of(context, kind):
                add(part.device, **{name: getattr(part, name) for name in KINDS})
            rows = min(context.shape.n_ctx, context.shape.n_batch)
            nodes = lib.ls_graph_nodes(context.ptr, rows)
            add(
                HOST,
                graphs=(KEPT_GRAPHS + _OWN_GRAPHS) * nodes * _NODE,
                outputs=_outputs(context),
                tables=context.shape.n_ctx * (_CELL + _USED_CELL)
                + context.model.vocab.size * _TOKEN,
            )
        if side is not None:
            width = len(side.taps) * self.target.n_embd
            add(HOST, outputs=_FEATURE_COPIES * _FLOAT * width * shape.n_batch)
        few = replace(side, shape=_few(side.shape, apart=apart)) if side else None
        for _, context in self._contexts(_few(shape, apart=apart), few):
            for part in memory_of(context):
                add(part.device, graphs=KEPT_GRAPHS * part.compute)
        # the CPU last, as doctor has it
        return sorted(found.values(), key=lambda part: part.device == HOST)

    def _contexts(
        self, shape: ContextShape, side: DraftSide | None
    ) -> Iterator[tuple[str, Context]]:
        """Both contexts, planned; the target's stays until the draft's is looked at."""
        with TargetContext.create(self.target, shape) as target:
            if side is not None:
                # whether the target has them all is asked when it is loaded
                target._check(lib.ls_set_taps(target.ptr, side.taps, len(side.taps), True))
            yield "kv_target", _planned(target)
            if side is None or self.draft is None:
                return
            with DraftContext.create(self.draft, side.shape, target) as draft:
                draft.configure(
                    feature_width=len(side.taps) * self.target.n_embd,
                    causal=side.causal,
                    confidence=side.confidence,
                    lattice=side.lattice,
                    base=side.base,
                )
                yield "kv_draft", _planned(draft)


def _planned(context: Context) -> Context:
    # asking for a layer's input plans anew with what was set after the context was made
    lib.ls_has_layer_input(context.ptr, 0)
    log.drain()
    return context


def memory_of(context: Context, kind: str = "kv_target") -> list[Part]:
    """What llama.cpp counts of a context and its model, kept graphs as compute; kind: what its
    cache counts as.
    """
    parts = ffi.new("struct ls_memory[]", _MOST_DEVICES)
    count = lib.ls_memory_of(context.ptr, parts, _MOST_DEVICES)
    if count < 0:
        raise LlamaSpecError(f"{context.model.path.name}: {log.reason(log.drain())}")
    return [
        Part(ffi.string(p.device).decode(), p.weights, compute=p.compute).plus(**{kind: p.cache})
        for p in parts[0:count]
    ]


def _outputs(context: Context) -> int:
    return _FLOAT * context.shape.n_outputs * (context.model.vocab.size + context.model.n_embd)


def _few(shape: ContextShape, *, apart: bool) -> ContextShape:
    """The shape of the passes whose graphs are kept, over all positions that they can see."""
    n_outputs = min(KEPT_ROWS, shape.n_outputs)
    n_seq = min(n_outputs, shape.n_seq)
    return replace(
        shape,
        n_ctx=shape.n_ctx // shape.n_seq * n_seq if apart else shape.n_ctx,
        n_batch=max(n_outputs, shape.snapshots + 2),
        n_seq=n_seq,
        n_outputs=n_outputs,
    )


def _shortened(
    shape: ContextShape, side: DraftSide | None, n_ctx: int
) -> tuple[ContextShape, DraftSide | None]:
    beyond = side.shape.n_ctx - shape.n_ctx if side else 0
    short = replace(side, shape=replace(side.shape, n_ctx=n_ctx + beyond)) if side else None
    return replace(shape, n_ctx=n_ctx), short
