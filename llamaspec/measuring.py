"""What is measured of a loaded pair, once for a build, a device and settings: whether passes over
several rows round as single rows do, and what passes cost.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from llamaspec.draft.block import BlockDrafter
from llamaspec.draft.both import BothDrafters
from llamaspec.draft.drafter import Drafter
from llamaspec.errors import OptionError
from llamaspec.ffi import build_info
from llamaspec.options import LoadOptions
from llamaspec.runtime import backend
from llamaspec.runtime.context import TargetContext
from llamaspec.runtime.description import FileDescription
from llamaspec.runtime.store import file_identity, remembered
from llamaspec.schedule.calibration import Calibration
from llamaspec.schedule.cost import CostCurve
from llamaspec.schedule.crowd import Crowd
from llamaspec.schedule.crowd_prices import CrowdCurve, CrowdPrices
from llamaspec.schedule.measure import DraftSide, measure, quick
from llamaspec.schedule.measure_many import measure_many
from llamaspec.schedule.pace import Pace
from llamaspec.schedule.prices import Prices
from llamaspec.schedule.stored import find
from llamaspec.verify import known, probe
from llamaspec.verify.probe import Exactness

_USUAL = 7
"""Proposals of a block, where there is no draft to say it."""


@dataclass(frozen=True)
class Measured:
    """The loaded pair that figures are of."""

    target_file: FileDescription
    draft_file: FileDescription | None
    context: TargetContext
    drafter: Drafter | None
    options: LoadOptions

    def exactness(self) -> Exactness:
        """Probe passes of every width in use against single rows."""
        options, context = self.options, self.context
        widest = (self.drafter.proposals if self.drafter else _USUAL) + 1
        widths = {*range(2, widest + 1)}
        settings = [*self._settings(), ("widths", ", ".join(map(str, sorted(widths))))]
        if options.max_sequences > 1:
            settings.append(("sequences", str(options.max_sequences)))
        return known.known_or(
            _identity(self.target_file), settings, lambda: probe.measure(context, widths, settings)
        )

    def pace(self) -> Pace | None:
        """Who chooses how much to draft, from the curve of the options' file or a measured one;
        None where there is no draft, or one whose head runs in Python.

        Raises OptionError for a file that is no cost curve, or no calibration, beside the draft.
        """
        drafter, given = self.drafter, self.options.cost_curve
        if drafter is None or self.options.head == "python":
            return None
        curve = self._curve(drafter) if given is None else CostCurve.load(Path(given))
        if self.draft_file is None:
            curve = replace(curve, draft=None, injection=None)
        elif given is not None and curve.draft is None:
            raise OptionError(
                f"{given} has no seconds of a draft and {self.draft_file.path.name} is one; "
                "measure the pair with llamaspec bench cost -m ... -d ..."
            )
        width = _block(drafter).proposals
        prices = Prices(curve, rows=drafter.proposals + 1, width=width, pinned=given is not None)
        scaling = None if self.draft_file is None else find(self.draft_file.path)
        return Pace(prices, Calibration(width, scaling))

    def crowd(self, pace: Pace) -> Crowd | None:
        """The same for several sequences at once, None for a session of one. Beside the pace's
        curve, prices are of its file as well, or measured.
        """
        drafter, options = self.drafter, self.options
        if drafter is None or options.max_sequences == 1:
            return None
        given = options.cost_curve
        many = self._many(drafter) if given is None else CrowdCurve.within(Path(given))
        if many is not None and self.draft_file is None:
            many = replace(many, draft=(), injection=None)
        return Crowd(
            CrowdPrices(pace.prices.curve, many, drafter.proposals, pinned=given is not None),
            pace.calibration,
            pace.lookup,
            rows=self.context.shape.n_outputs,
            levels=self.context.recurrent,
        )

    def _curve(self, drafter: Drafter) -> CostCurve:
        settings, grid = tuple(self._settings()), quick(drafter.proposals)
        return remembered(
            "costs",
            (self._key(drafter), grid.rows),
            lambda: measure(self.context, _side(drafter), grid, settings),
            write=CostCurve.as_json,
            read=CostCurve.of_json,
        )

    def _many(self, drafter: Drafter) -> CrowdCurve:
        texts = self.options.max_sequences
        return remembered(
            "costs of many",
            (self._key(drafter), texts),
            lambda: measure_many(self.context, _side(drafter), texts, drafter.proposals),
            write=CrowdCurve.as_json,
            read=CrowdCurve.of_json,
        )

    def _key(self, drafter: Drafter) -> tuple[object, ...]:
        """What the costs of passes depend on."""
        files = [_identity(f) for f in (self.target_file, self.draft_file) if f is not None]
        options = self.options
        placed = options.n_gpu_layers_draft, options.device_draft
        return (files, tuple(self._settings()), drafter.proposals, *placed)

    def _settings(self) -> list[tuple[str, str]]:
        options, context = self.options, self.context
        settings = {
            "build": build_info()[1],
            "devices": ", ".join(f"{d.name} {d.description}" for d in backend.devices()),
            "GPU layers": options.n_gpu_layers,
            "device": options.device or "all",
            **({"RPC servers": options.rpc} if options.rpc else {}),
            "split mode": options.split_mode,
            "threads": options.n_threads,
            "flash attention": options.flash_attention,
            "KV cache": options.cache_type,
            "rows computed alike": "yes" if context.rows_alike else "no",
            "taps": ", ".join(map(str, context.taps)) or "none",
        }
        if context.recurrent:
            settings["snapshots"] = context.snapshots
        return [(name, str(value)) for name, value in settings.items()]


def _side(drafter: Drafter) -> DraftSide | None:
    block = _block(drafter)
    return DraftSide(block.context, block.layout) if isinstance(block, BlockDrafter) else None


def _block(drafter: Drafter) -> Drafter:
    """The drafter whose proposals cost passes, if there is one."""
    return drafter.block if isinstance(drafter, BothDrafters) else drafter


def _identity(file: FileDescription) -> str:
    return file_identity(file.path, file.size_bytes)
