"""Sizes of contexts, from options to llama.cpp's parameters, and whether the machine has room."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from llamaspec.draft.block import BlockLayout
from llamaspec.errors import OptionError
from llamaspec.options import DEFAULT_CONTEXT, MAX_INT, LoadOptions
from llamaspec.runtime.backend import Device
from llamaspec.runtime.context import ContextShape
from llamaspec.runtime.description import DraftDescription
from llamaspec.runtime.forecast import HOST, DraftSide, Forecast, Part, Plan

logger = logging.getLogger("llamaspec")

# llama.cpp rounds context sizes up to this
_PADDING = 256
# with fit, sequences are given up before their contexts get shorter than this
_LEAST_OF_MANY = 1024
# a forecast may be a little low, and others take memory too
_FIT_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Drafting:
    """What proposes. proposals: most of a round, 0 for nothing; described, layout: of a draft that
    is a model, None without one; on_cpu: that computes nowhere else.
    """

    proposals: int
    described: DraftDescription | None = None
    layout: BlockLayout | None = None
    on_cpu: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """Options as they are going to be used, positions of a sequence, and what it takes."""

    options: LoadOptions
    n_ctx: int
    forecast: Forecast


def target_shape(
    n_ctx: int, proposals: int, options: LoadOptions, *, recurrent: bool
) -> ContextShape:
    """Of the target's context, n_ctx positions a sequence."""
    rows = proposals + 1
    return ContextShape(
        n_ctx=options.max_sequences * _padded(n_ctx),
        # llama.cpp asserts that a pass has room for more rows than a state can go back
        n_batch=max(options.batch, options.max_sequences * rows, rows + 1),
        n_seq=options.max_sequences,
        n_outputs=options.max_sequences * rows,
        threads=options.n_threads,
        flash_attention=options.flash_attention,
        cache_type=options.cache_type,
        snapshots=proposals if recurrent else 0,
    )


def draft_side(
    target: ContextShape, described: DraftDescription, layout: BlockLayout, options: LoadOptions
) -> DraftSide:
    """Of the draft's context, beside a target's of such a shape."""
    many, block = options.max_sequences, layout.proposals + layout.first
    in_graph = options.head != "python"
    return DraftSide(
        shape=replace(
            target,
            # a block reaches past the last committed position, by its own length
            n_ctx=many * _padded(target.n_ctx // many + block),
            n_batch=max(options.batch, many * block),
            n_outputs=many * block,
            snapshots=0,
        ),
        taps=described.taps,
        causal=described.causal,
        confidence=layout.confidence and in_graph,
        lattice=layout.candidates > 0,
        base=not in_graph,
    )


def plan_sizes(
    plan: Plan, drafting: Drafting, options: LoadOptions, devices: Sequence[Device] | None
) -> Planned:
    """Plan the pair, with `fit` as large as there is room for, up to what the options say.

    devices: whose free memory it has to fit; None to refuse nothing.

    Raises:
        OptionError: there is no room, or no context is stated anywhere.
        LlamaSpecError: llama.cpp cannot make such contexts.
    """
    there = {device.name: device.free_bytes for device in devices or () if device.total_bytes}
    if options.fit:
        return _fitted(plan, drafting, options, there)
    n_ctx = _stated(plan, options.context or min(plan.target.n_ctx_train, DEFAULT_CONTEXT))
    found = Planned(options, n_ctx, _forecast(plan, drafting, options, n_ctx))
    _check(found, there)
    if n_ctx > plan.target.n_ctx_train:
        logger.warning(
            "context %d is beyond the %d positions that %s was trained for; its text may degrade",
            n_ctx,
            plan.target.n_ctx_train,
            plan.target.path.name,
        )
    return found


def _stated(plan: Plan, n_ctx: int) -> int:
    if n_ctx < 1:
        raise OptionError(f"{plan.target.path.name} states no context length; give a context")
    return n_ctx


def _forecast(plan: Plan, drafting: Drafting, options: LoadOptions, n_ctx: int) -> Forecast:
    recurrent = plan.target.recurrent
    shape = target_shape(n_ctx, drafting.proposals, options, recurrent=recurrent)
    side = None
    if drafting.described is not None and drafting.layout is not None:
        side = draft_side(shape, drafting.described, drafting.layout, options)
    return plan.forecast(shape, side).with_prefixes(options.n_prefix_cache)


def _check(found: Planned, there: Mapping[str, int]) -> None:
    for part, room in _crowded(found.forecast, there):
        # weights that are mapped can be read again: slow, but not the end
        needed = part.total - (part.weights if part.device == HOST else 0)
        if needed > room:
            many = found.options.max_sequences
            fewer = f" or fewer than {many} sequences" if many > 1 else ""
            raise OptionError(
                f"a context of {found.forecast.n_ctx} positions takes {_gib(needed)} on "
                f"{part.device}, where {_gib(room)} are free; choose a smaller one{fewer}, or let "
                "fit choose"
            )
        logger.warning(
            "%s has %s free and needs %s, weights among it: they will be read from the disk again "
            "and again, which is slow",
            part.device,
            _gib(room),
            _gib(part.total),
        )


def _crowded(forecast: Forecast, there: Mapping[str, int]) -> Iterator[tuple[Part, int]]:
    for part in forecast.parts:
        if part.total > there.get(part.device, part.total):
            yield part, there[part.device]


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 // 10 else f"{count / 2**20:.1f} MiB"


def _fitted(
    plan: Plan, drafting: Drafting, options: LoadOptions, there: Mapping[str, int]
) -> Planned:
    trained = plan.target.n_ctx_train
    most = _stated(plan, min(options.context or trained, trained or options.context))
    room = {name: int(bytes_ * _FIT_SHARE) for name, bytes_ in there.items()}

    def at(many: int, n_ctx: int) -> Planned:
        chosen = replace(options, max_sequences=many, context=n_ctx)
        return Planned(chosen, n_ctx, _forecast(plan, drafting, chosen, n_ctx))

    def fits(found: Planned) -> bool:
        return not any(_crowded(found.forecast, room))

    many = options.max_sequences
    while True:
        least = min(most, _LEAST_OF_MANY if many > 1 else _PADDING)
        smallest = at(many, least)
        if fits(smallest):
            longest = min(most, MAX_INT // many - _PADDING)
            return _longest(smallest, longest, partial(at, many), fits)
        if many == 1:
            break
        many //= 2
    part, _ = next(_crowded(smallest.forecast, room))
    raise OptionError(
        f"{plan.target.path.name}: nothing fits: one sequence of {least} positions takes "
        f"{_gib(part.total)} on {part.device}, where {_gib(there[part.device])} are free, a tenth "
        "of them kept back; choose smaller files or another device, or free memory"
    )


def _longest(
    best: Planned, most: int, at: Callable[[int], Planned], fits: Callable[[Planned], bool]
) -> Planned:
    """The longest context that fits, of at most `most`; best: one that does."""
    low, high = best.n_ctx // _PADDING, most // _PADDING
    if most > best.n_ctx and fits(found := at(most)):
        return found
    while low < high:
        middle = (low + high + 1) // 2
        found = at(middle * _PADDING)
        if fits(found):
            best, low = found, middle
        else:
            high = middle - 1
    return best


def _padded(n_ctx: int) -> int:
    return -(-n_ctx // _PADDING) * _PADDING
