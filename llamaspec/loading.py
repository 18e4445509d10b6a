"""From two files to an engine: checks first, then the native objects, with what could be wrong
said in one line.
"""

import logging
from dataclasses import dataclass, replace
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
from llamaspec.options import DEFAULT_CONTEXT, CacheType, LoadOptions
from llamaspec.runtime import backend, remote
from llamaspec.runtime.arrays import IntArray
from llamaspec.runtime.backend import Device
from llamaspec.runtime.context import ContextShape, TargetContext
from llamaspec.runtime.describe import (
    check_pair,
    check_target,
    describe,
)
from llamaspec.runtime.description import DraftDescription, FileDescription
from llamaspec.runtime.draft_context import DraftContext
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.model import Model
from llamaspec.runtime.placement import Placement, check_placement, place, place_draft
from llamaspec.verify.probe import Exactness

logger = logging.getLogger("llamaspec")

LOOKUP: Final = "lookup"
"""In place of a draft's file: no model, the text itself is searched."""
DraftSource = Path | Literal["lookup"] | None

# llama.cpp's bookkeeping of one position of a KV cache
_CELL_BYTES = 48
_CACHE_BYTES: dict[CacheType, float] = {"f32": 4, "f16": 2, "bf16": 2, "q8_0": 34 / 32}
# llama.cpp rounds context sizes up to this
_PADDING = 256
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


def load_pair(target: Path, draft: DraftSource, options: LoadOptions) -> Pair:
    """Load a target and its draft. Raises ModelLoadError or IncompatibleDraftError before anything
    native is risked, and OptionError where `exact` is wanted of what cannot be.
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
    target_file = describe(target)
    check_target(target_file)
    draft_file = None
    if isinstance(draft, Path):
        draft_file = describe(draft)
        check_pair(target_file, draft_file)
    there = [*remote.connect(options.servers), *backend.devices()]
    placed, placed_draft = _placements(options, draft_file, there)
    model = Model.load(target, placed)
    draft_model = None
    try:
        if isinstance(draft, Path):
            draft_model = Model.load(draft, placed_draft)
        layout = _layout(draft_file, options) if draft_file else None
        looked = _lookup(model) if draft == LOOKUP or (layout and options.lookup) else None
        proposals = max(each.proposals if each else 0 for each in (layout, looked))
        n_ctx = _context_length(model, options, proposals, there)
        context = _target_context(model, n_ctx, proposals, options)
        drafter: Drafter | None = looked
        if draft_model is not None and draft_file is not None and layout is not None:
            drafter = _drafter(draft_model, draft_file, context, layout, options)
            drafter = BothDrafters(drafter, looked) if looked else drafter
        pair = Pair(
            target_file,
            draft_file,
            model,
            draft_model,
            context,
            drafter,
            Engine(context, drafter, queue=options.queue, stored=options.n_prefix_cache),
            n_ctx,
            options,
        )
        pair.engine.prompts.exact = options.exact
        pair.engine.prompts.part = options.batch
        if options.exact and (drafter is not None or options.max_sequences > 1):
            _make_exact(pair)
        pair.engine.pacing = pair.make_pacing()
    except BaseException:
        if draft_model is not None:
            draft_model.close()
        model.close()
        raise
    return pair


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


def _context_length(model: Model, options: LoadOptions, snapshots: int, there: list[Device]) -> int:
    trained = model.n_ctx_train
    n_ctx = options.context or min(trained, DEFAULT_CONTEXT)
    if n_ctx < 1:
        raise OptionError(f"{model.path.name} states no context length; give a context")
    states = options.max_sequences * (1 + snapshots)
    total = sum(device.total_bytes for device in there)
    cells = options.max_sequences * _padded(n_ctx)
    _check_memory(model, cells, states, options.cache_type, total)
    if n_ctx > trained:
        logger.warning(
            "context %d is beyond the %d positions that %s was trained for; its text may degrade",
            n_ctx,
            trained,
            model.path.name,
        )
    return n_ctx


def _check_memory(model: Model, n_ctx: int, states: int, cache_type: CacheType, there: int) -> None:
    # the allocation itself succeeds: the system ends the process when the pages are touched
    width = model.kv_width
    needed = n_ctx * (_CELL_BYTES + model.n_layer * width * _CACHE_BYTES[cache_type])
    needed += states * model.state_bytes
    if needed > there:
        raise OptionError(
            f"a context of {n_ctx} positions takes {needed / 2**30:.1f} GiB, all devices here have "
            f"{there / 2**30:.1f} GiB; choose a smaller one"
        )


def _layout(draft: FileDescription, options: LoadOptions) -> BlockLayout:
    described = _described(draft)
    selector = described.selector if options.head == "graph" else None
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
    rows = proposals + 1
    shape = ContextShape(
        n_ctx=options.max_sequences * _padded(n_ctx),
        # llama.cpp asserts that a pass has room for more rows than a state can go back
        n_batch=max(options.batch, options.max_sequences * rows, rows + 1),
        n_seq=options.max_sequences,
        n_outputs=options.max_sequences * rows,
        threads=options.n_threads,
        flash_attention=options.flash_attention,
        cache_type=options.cache_type,
        snapshots=proposals if model.recurrent else 0,
    )
    context = TargetContext.create(model, shape)
    _check_roll_back(context, proposals)
    return context


def _drafter(
    model: Model,
    file: FileDescription,
    target: TargetContext,
    layout: BlockLayout,
    options: LoadOptions,
) -> BlockDrafter:
    described = _described(file)
    block = layout.proposals + layout.first
    rows = options.max_sequences * block
    # a block reaches past the last committed position, by its own length
    n_ctx = target.shape.n_ctx // options.max_sequences + block
    shape = replace(
        target.shape,
        n_ctx=options.max_sequences * _padded(n_ctx),
        n_batch=max(options.batch, rows),
        n_outputs=rows,
        snapshots=0,
    )
    target.set_taps(described.taps)
    context = DraftContext.create(model, shape, target)
    head = _python_head(model.path) if options.head == "python" else None
    context.configure(
        feature_width=target.feature_width,
        causal=described.causal,
        confidence=layout.confidence and head is None,
        lattice=layout.candidates > 0,
        base=head is not None,
    )
    return BlockDrafter(context, layout, head)


def _d2t(path: Path) -> IntArray | None:
    with GGUFFile.open(path) as file:
        return load_d2t(file)


def _python_head(path: Path) -> DraftHead:
    with GGUFFile.open(path) as file:
        return load_head(file)


def _padded(n_ctx: int) -> int:
    return -(-n_ctx // _PADDING) * _PADDING
