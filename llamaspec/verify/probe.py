"""Whether passes over several rows compute what passes over one row compute, measured.

The rows of a fixed text are decoded one by one, as plain decoding does, and in blocks of every
width in use, as verifying does, each over a KV cache filled in its own way: what rounding does to
earlier rows counts too.
"""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llamaspec.runtime.arrays import FloatArray, IntArray
from llamaspec.runtime.batch import ALL_OUTPUT, NO_OUTPUT, Batch
from llamaspec.runtime.context import ContextShape, TargetContext

TEXT = """The lighthouse keeper counted 17 ships before noon. def area(width, height): return width
* height. Pourquoi la mer est-elle salée? {"name": "Ivan", "age": 41}. He wrote the date, closed the
book and went down the stairs; on the third step he stopped. 12 + 30 = 42, so nine boxes remain.
"""
ROWS = 32
LONG_ROWS = 16
LONG_PROMPT = 560
"""Past the 512 cells from which some backends compute attention in another way."""
COMPETITORS = 8
SAFETY = 8.0
"""The bound is this times the largest deviation seen. Over 3,840 rows of other texts in each of
five settings, the largest deviation was 2.6 to 4.0 times the probe's; this doubles that.
"""
_N_CTX = 768
_CELLS = 256
"""Of each of several sequences."""
_N_BATCH = 64


@dataclass(frozen=True, slots=True)
class Exactness:
    """What the probe found.

    Attributes:
        bitwise: passes of every width gave, bit by bit, the logits of single rows.
        deviation: by how much the gap between the target's choice and one of its closest
            competitors changed at most, in logits; 0 where bitwise.
        bound: the gap above which a choice is taken to be plain decoding's: a multiple of the
            deviation, 0 where bitwise.
        near_ties: share of the rows whose two largest logits lie no further apart than the bound.
        changed: share of the rows that chose another token, over all widths.
        unequal: the widths that were not bitwise equal.
        widths: the widths that were compared, 1 being a single row with the features published.
        rows: rows compared for each.
        settings: what it depends on, by name.
    """

    bitwise: bool
    deviation: float
    bound: float
    near_ties: float
    changed: float
    unequal: tuple[int, ...]
    widths: tuple[int, ...]
    rows: int
    settings: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        spoken = f"passes of {_spoken(self.widths)} rows"
        if self.bitwise:
            return f"{spoken}: bitwise what single rows give ({self.rows} rows each)"
        return (
            f"{spoken}: not bitwise what single rows give (widths {_spoken(self.unequal)}); gaps "
            f"moved by up to {self.deviation:.2g}, taken to stay within {self.bound:.2g}, and "
            f"{self.near_ties:.1%} of the rows are that close; {self.changed:.1%} chose another "
            "token"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows of logits computed singly and in blocks of one width, both [n, vocabulary]."""

    width: int
    single: FloatArray
    block: FloatArray


def measure(
    target: TargetContext, widths: Iterable[int], settings: Sequence[tuple[str, str]] = ()
) -> Exactness:
    """Probe a target in the settings of its context, in a context of its own.

    widths: rows of the passes to compare, for one that publishes features also 1. A target for
    several sequences is also compared in passes over all of them, with one row and with the most
    rows each. Takes about 200 passes and a prompt of 560 tokens.
    """
    drafting = bool(target.taps) or target.snapshots > 0
    wanted = tuple(sorted({*widths} | ({1} if drafting else set())))
    shape = replace(
        target.shape,
        n_ctx=_N_CTX,
        n_batch=max(_N_BATCH, *wanted, target.snapshots + 2),
        n_seq=1,
        n_outputs=max(wanted),
    )
    ids = text_ids(target)
    with TargetContext.create(target.model, shape) as context, contextlib.ExitStack() as more:
        if target.taps:
            context.set_taps(target.taps)
        if target.rows_alike:
            context.compute_rows_alike()
        plain = context
        if target.snapshots:
            # with snapshots a graph may be another one than plain decoding's
            alone = TargetContext.create(target.model, replace(shape, snapshots=0))
            plain = more.enter_context(alone)
        rows = [
            *_compare((plain, context), ids[: 2 * ROWS], ROWS, wanted),
            *_compare((plain, context), ids, LONG_ROWS, wanted),
        ]
        if target.shape.n_seq > 1 and not target.recurrent:
            rows += _together(target, shape, rows[0].single, ids[: 2 * ROWS])
    return replace(judge(rows), settings=tuple(settings))


def text_ids(target: TargetContext) -> list[int]:
    """The probe's text, over and over, as token ids."""
    ids: list[int] = target.model.vocab.tokenize(TEXT).tolist()
    return (ids * (1 + (LONG_PROMPT + LONG_ROWS) // len(ids)))[: LONG_PROMPT + LONG_ROWS]


def judge(found: Sequence[Comparison]) -> Exactness:
    """The figures of some comparisons. A gap is the target's choice among single rows less one of
    its closest competitors.
    """
    widths = tuple(sorted({c.width for c in found}))
    unequal = {c.width for c in found if not np.array_equal(c.single, c.block)}
    deviation = max(_deviation(c) for c in found) if unequal else 0.0
    bound = SAFETY * deviation
    gaps = np.concatenate([_gaps(c.single, _closest(c.single))[:, 0] for c in found])
    changed = np.concatenate([c.single.argmax(1) != c.block.argmax(1) for c in found])
    return Exactness(
        bitwise=not unequal,
        deviation=deviation,
        bound=bound,
        near_ties=float((gaps <= bound).mean()) if unequal else 0.0,
        changed=float(changed.mean()),
        unequal=tuple(sorted(unequal)),
        widths=widths,
        rows=sum(len(c.single) for c in found if c.width == widths[0]),
    )


def _compare(
    contexts: tuple[TargetContext, TargetContext],
    ids: list[int],
    rows: int,
    widths: Sequence[int],
) -> Iterable[Comparison]:
    plain, context = contexts
    prompt = len(ids) - rows
    batch = Batch.create(context.shape.n_batch)
    plain.truncate(0, 0)
    _fill(plain, batch, ids[:prompt])
    single = _logits(plain, batch, ids, prompt, 1)
    if context is not plain:
        context.truncate(0, 0)
        _fill(context, batch, ids[:prompt])
    for width in widths:
        if not context.truncate(0, prompt):
            # a recurrent state that blocks have overwritten
            _fill(context, batch, ids[:prompt])
        context.publish(True)
        yield Comparison(width, single, _logits(context, batch, ids, prompt, width))


def _together(
    target: TargetContext, shape: ContextShape, single: FloatArray, ids: list[int]
) -> Iterable[Comparison]:
    """Passes over all sequences, each of which has the same text, against single rows of one."""
    count, widest, prompt = target.shape.n_seq, shape.n_outputs, len(ids) - len(single)
    rows = count * widest
    wide = replace(
        shape, n_seq=count, n_ctx=count * _CELLS, n_batch=max(_N_BATCH, rows), n_outputs=rows
    )
    with TargetContext.create(target.model, wide) as context:
        if target.taps:
            context.set_taps(target.taps)
        if target.rows_alike:
            context.compute_rows_alike()
        batch = Batch.create(wide.n_batch)
        for seq in range(count):
            _fill(context, batch, ids[:prompt], seq)
        for width in {1, widest}:
            context.publish(True)
            block = _logits_together(context, batch, (ids, prompt, width), single)
            yield Comparison(count * width, single, block)
            for seq in range(count):
                context.truncate(seq, prompt)


def _logits_together(
    context: TargetContext, batch: Batch, text: tuple[list[int], int, int], single: FloatArray
) -> FloatArray:
    """Of every position the rows of a sequence that differ from single ones, if one does."""
    ids, prompt, width = text
    count, found = context.shape.n_seq, []
    for start in range(prompt, len(ids), width):
        part = ids[start : start + width]
        batch.clear()
        for seq in range(count):
            batch.add_tokens(part, start=start, seq=seq, output=ALL_OUTPUT)
        context.decode(batch)
        views = context.logits_view(batch.size).reshape(count, len(part), -1)
        alone = single[start - prompt : start - prompt + len(part)]
        odd = (view for view in views if not np.array_equal(view, alone))
        found.append(next(odd, views[0]).copy())
    return np.concatenate(found)


def _fill(context: TargetContext, batch: Batch, prompt: list[int], seq: int = 0) -> None:
    context.publish(False)
    for start in range(0, len(prompt), _N_BATCH):
        batch.clear()
        part = prompt[start : start + _N_BATCH]
        batch.add_tokens(part, start=start, seq=seq, output=NO_OUTPUT)
        context.decode(batch)


def _logits(
    context: TargetContext, batch: Batch, ids: list[int], prompt: int, width: int
) -> FloatArray:
    found = []
    for start in range(prompt, len(ids), width):
        part = ids[start : start + width]
        batch.clear()
        batch.add_tokens(part, start=start, seq=0, output=ALL_OUTPUT)
        context.decode(batch)
        found.append(context.logits_view(len(part)).copy())
    return np.concatenate(found)


def _deviation(rows: Comparison) -> float:
    closest = _closest(rows.single)
    moved = np.abs(_gaps(rows.single, closest) - _gaps(rows.block, closest))
    # a logit that is no number is no basis for anything
    return float(moved.max()) if np.isfinite(moved).all() else float("inf")


def _closest(logits: FloatArray) -> IntArray:
    """Indices of the largest logits of each row, in falling order [n, COMPETITORS]."""
    most = min(COMPETITORS, logits.shape[1])
    found = np.argpartition(-logits, most - 1, axis=1)[:, :most]
    order = np.argsort(-np.take_along_axis(logits, found, 1), axis=1)
    return np.take_along_axis(found, order, 1).astype(np.int32)


def _gaps(logits: FloatArray, ids: IntArray) -> FloatArray:
    values = np.take_along_axis(logits, ids, 1)
    gaps: FloatArray = values[:, :1] - values[:, 1:]
    return gaps


def _spoken(widths: Sequence[int]) -> str:
    if len(widths) > 2 and list(widths) == list(range(widths[0], widths[-1] + 1)):
        return f"{widths[0]} to {widths[-1]}"
    return ", ".join(map(str, widths))
