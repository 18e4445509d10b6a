"""From two files to an engine: checks first, then the native objects, with what could be wrong
said in one line.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from llamaspec.draft.block import BlockDrafter, BlockLayout
from llamaspec.draft.both import BothDrafters
from llamaspec.draft.drafter import Drafter
from llamaspec.draft.heads import DraftHead, load_d2t, load_head
from llamaspec.draft.lookup import LookupDrafter
from llamaspec.engine.doubt import Doubt
from llamaspec.engine.loop import Engine
from llamaspec.engine.pacing import Pacing
from llamaspec.errors import IncompatibleDraftError, OptionError
from llamaspec.measuring import Measured
from llamaspec.options import LoadOptions
from llamaspec.planning import Drafting, Planned, draft_side, plan_sizes, target_shape
from llamaspec.runtime import backend, remote
from llamaspec.runtime.arrays import IntArray
from llamaspec.runtime.backend import Device
from llamaspec.runtime.chain import Chain, ChainShape
from llamaspec.runtime.context import TargetContext
from llamaspec.runtime.describe import (
    check_pair,
    check_target,
    describe,
)
from llamaspec.runtime.description import DraftDescription, FileDescription
from llamaspec.runtime.draft_context import DraftContext
from llamaspec.runtime.forecast import Forecast, Plan
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.model import Model
from llamaspec.runtime.placement import (
    Placement,
    check_placement,
    place,
    place_draft,
    stays_on_cpu,
)
from llamaspec.verify.probe import Exactness

logger = logging.getLogger("llamaspec")

LOOKUP: Final = "lookup"
"""In place of a draft's file: no model, the text itself is searched."""
DraftSource = Path | Literal["lookup"] | None

_FEW = 7


@dataclass
class Pair:
    """A loaded target, with its draft where there is one. `exactness` is None until measured."""

    target_file: FileDescription
    draft_file: FileDescription | None
    model: Model
    draft_model: Model | None
    context: TargetContext
    drafter: Drafter | None
    engine: Engine
    n_ctx: int
    options: LoadOptions
    forecast: Forecast
    exactness: Exactness | None = None

    def measure_exactness(self) -> Exactness:
        """Probe passes of every width in use against single rows; remembered, also on disk."""
        if self.exactness is None:
            self.exactness = self._measured().exactness()
        return self.exactness

    def _measured(self) -> Measured:
        return Measured(self.target_file, self.draft_file, self.context, self.drafter, self.options)

    def make_pacing(self) -> Pacing:
        """Who chooses widths, as the options say. Measures what passes cost, unless a file says
        it; remembered, also on disk.
        """
        schedule, measured = self.options.schedule, self._measured()
        if schedule != "auto":
            return Pacing(threshold=None if isinstance(schedule, str) else schedule)
        pace = measured.pace()
        return Pacing(pace, None if pace is None else measured.crowd(pace))

    def close(self) -> None:
        """Release the draft before the target whose embedding and head it uses."""
        self.engine.store.clear()
        if self.draft_model is not None:
            self.draft_model.close()
        self.model.close()


@dataclass(frozen=True)
class _Ready:
    """What is known before anything is loaded; all of it has been checked."""

    target_file: FileDescription
    draft_file: FileDescription | None
    places: tuple[Placement, Placement]
    drafting: Drafting
    looked: LookupDrafter | None
    planned: Planned


def forecast_pair(target: Path, draft: DraftSource, options: LoadOptions) -> Forecast:
    """What a pair would take of the machine's memory. Nothing is loaded, nothing refused for want
    of memory; raises as `load_pair` does otherwise.
    """
    return _ready(target, draft, options, check=False).planned.forecast


def load_pair(target: Path, draft: DraftSource, options: LoadOptions) -> Pair:
    """Load a target and its draft. Raises ModelLoadError or IncompatibleDraftError before anything
    native is risked, and OptionError where `exact` is wanted of what cannot be, or where there is
    not enough memory.
    """
    if options.threads > options.n_threads:
        logger.warning(
            "threads %d is more than the processors here; using %d",
            options.threads,
            options.n_threads,
        )
    asks_gpu = max(options.n_gpu_layers, options.n_gpu_layers_draft) > 0
    if asks_gpu and not any(device.is_gpu for device in backend.devices()):
        logger.warning("layers were asked on the GPU but none answers: see llamaspec doctor")
    ready = _ready(target, draft, options)
    model = Model.load(target, ready.places[0])
    draft_model = None
    try:
        if ready.draft_file is not None:
            draft_model = Model.load(ready.draft_file.path, ready.places[1])
        pair = _pair(ready, model, draft_model)
        options = pair.options
        pair.engine.prompts.exact = options.exact
        pair.engine.prompts.part = options.batch
        if options.exact and (pair.drafter is not None or options.max_sequences > 1):
            _make_exact(pair)
        pair.engine.pacing = pair.make_pacing()
    except BaseException:
        if draft_model is not None:
            draft_model.close()
        model.close()
        raise
    return pair


def _ready(target: Path, draft: DraftSource, options: LoadOptions, *, check: bool = True) -> _Ready:
    target_file = describe(target)
    check_target(target_file)
    draft_file = layout = None
    if isinstance(draft, Path):
        draft_file = describe(draft)
        check_pair(target_file, draft_file)
        layout = _layout(draft_file, options)
    there = [*remote.connect(options.servers), *backend.devices()]
    places = _placements(options, draft_file, there)
    with Plan.open(target_file, places[0], draft_file, places[1]) as plan:
        looked = _lookup(plan.target) if draft == LOOKUP or (layout and options.lookup) else None
        drafting = Drafting(
            max(each.proposals if each else 0 for each in (layout, looked)),
            draft_file.draft if draft_file else None,
            layout,
            on_cpu=stays_on_cpu(places[1], there),
        )
        planned = plan_sizes(plan, drafting, options, there if check or options.fit else None)
    logger.info("memory: %s", planned.forecast)
    return _Ready(target_file, draft_file, places, drafting, looked, planned)


def _pair(ready: _Ready, model: Model, draft_model: Model | None) -> Pair:
    planned, looked = ready.planned, ready.looked
    context = _target_context(model, planned.n_ctx, ready.drafting.proposals, planned.options)
    drafter: Drafter | None = looked
    if draft_model is not None:
        drafter = _drafter(draft_model, context, ready.drafting, planned.options)
        drafter = BothDrafters(drafter, looked) if looked else drafter
    return Pair(
        ready.target_file,
        ready.draft_file,
        model,
        draft_model,
        context,
        drafter,
        Engine(
            context,
            drafter,
            queue=planned.options.queue,
            stored=planned.options.n_prefix_cache,
        ),
        planned.n_ctx,
        planned.options,
        planned.forecast,
    )


def _lookup(model: Model) -> LookupDrafter:
    # a recurrent target keeps a state for every proposal
    return LookupDrafter(_FEW) if model.recurrent else LookupDrafter()


def _make_exact(pair: Pair) -> None:
    together, name = pair.options.max_sequences, pair.model.path.name
    if not pair.context.apart:
        raise OptionError(
            f"{name}: exact and max_sequences {together} go together on the CPU alone and without "
            "recurrent state, where every sequence has a KV cache of its own; choose one of them"
        )
    pair.context.compute_rows_alike()
    pair.engine.prompts.end_twice = pair.model.n_layer in pair.context.taps
    found = pair.measure_exactness()
    if 1 in found.unequal:
        raise OptionError(
            f"{name}: a single row is computed differently when a draft is loaded, "
            "so exact decoding needs it loaded without one"
        )
    if not found.bitwise and together > 1:
        raise OptionError(
            f"{name}: exact and max_sequences {together} go together where rows are computed alike "
            f"in passes of all sequences, and here {found}; choose one of them"
        )
    if not found.bitwise:
        logger.info("exact: %s; near ties are decided by single rows", found)
        pair.engine.doubt = Doubt(found.bound)


def _placements(
    options: LoadOptions, draft_file: FileDescription | None, there: list[Device]
) -> tuple[Placement, Placement]:
    target = place(options.device, options.n_gpu_layers, options.split_mode, there)
    if options.servers and not target.servers:
        raise OptionError(
            f"device {options.device!r} names none of the RPC servers' "
            f"({', '.join(device.name for device in there if device.is_remote)}); leave it out"
        )
    draft = place_draft(options.device_draft, options.n_gpu_layers_draft, target, there)
    if draft_file is not None:
        described = _described(draft_file)
        check_placement(target, draft, described.own_embedding and described.own_head, there)
    return target, draft


def _check_roll_back(context: TargetContext, proposals: int) -> None:
    if context.recurrent and context.snapshots < proposals:
        raise IncompatibleDraftError(
            f"{context.model.path.name}: keeps recurrent state, from which rejected tokens cannot "
            "be dropped; run it without a draft"
        )


def _layout(draft: FileDescription, options: LoadOptions) -> BlockLayout:
    described = _described(draft)
    selector = described.selector if options.head != "python" else None
    return BlockLayout(
        proposals=described.proposals,
        first=described.first_row,
        mask=_mask(described),
        vocabulary=described.draft_vocabulary,
        confidence=described.has_confidence_head,
        candidates=selector.top_k if selector else 0,
        d2t=None if described.d2t_range is None else _d2t(draft.path),
    )


def _mask(draft: DraftDescription) -> int:
    assert draft.mask_token_id is not None, "check_pair refuses a draft without a mask token"
    return draft.mask_token_id


def _described(draft: FileDescription) -> DraftDescription:
    assert draft.draft is not None
    return draft.draft


def _target_context(
    model: Model, n_ctx: int, proposals: int, options: LoadOptions
) -> TargetContext:
    shape = target_shape(n_ctx, proposals, options, recurrent=model.recurrent)
    context = TargetContext.create(model, shape)
    _check_roll_back(context, proposals)
    return context


def _drafter(
    model: Model, target: TargetContext, drafting: Drafting, options: LoadOptions
) -> BlockDrafter:
    assert drafting.described is not None
    assert drafting.layout is not None
    side = draft_side(target.shape, drafting.described, drafting.layout, options)
    target.set_taps(side.taps)
    context = DraftContext.create(model, side.shape, target)
    chain = _chain(model.path, drafting, options)
    context.configure(
        feature_width=target.feature_width,
        causal=side.causal,
        confidence=side.confidence and chain is None,
        lattice=side.lattice,
        base=side.base or chain is not None,
        chain=chain,
    )
    head = _python_head(model.path) if side.base else None
    return BlockDrafter(context, drafting.layout, head)


def _chain(path: Path, drafting: Drafting, options: LoadOptions) -> Chain | None:
    layout = drafting.layout
    assert layout is not None
    if options.head != "native" and not (options.head == "auto" and drafting.on_cpu):
        return None
    chain = Chain.create(path, ChainShape(layout.first, options.n_threads, layout.d2t))
    if isinstance(chain, Chain):
        return chain
    if options.head == "native":
        raise OptionError(f"{path.name}: head is 'native', and {chain}; take 'auto' or 'graph'")
    logger.debug("the head runs in the graph: %s", chain)
    return None


def _d2t(path: Path) -> IntArray | None:
    with GGUFFile.open(path) as file:
        return load_d2t(file)


def _python_head(path: Path) -> DraftHead:
    with GGUFFile.open(path) as file:
        return load_head(file)
