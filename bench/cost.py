"""What the passes of a pair cost, beside the time that reading their weights takes at least."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llamaspec import demo, models
from llamaspec.bench import machine
from llamaspec.bench.bandwidth import read_bandwidth
from llamaspec.draft.block import BlockDrafter
from llamaspec.errors import OptionError
from llamaspec.loading import Pair, load_pair
from llamaspec.options import LoadOptions
from llamaspec.runtime.context import TargetContext
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.schedule import files
from llamaspec.schedule.cost import CostCurve, Surface
from llamaspec.schedule.measure import DraftSide, Grid, measure

DEPTHS = (256, 2048, 8192)
_ROOM = 256


@dataclass(frozen=True)
class CostPlan:
    """What to measure. rows: of target passes, () for 1 to twice the block and one more. depths:
    positions before a pass, () for those of DEPTHS that the target is trained for.
    """

    target: str | None = None
    draft: str | None = None
    rows: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    repeats: int = 7
    options: LoadOptions = field(default_factory=LoadOptions)


@dataclass(frozen=True)
class Cost:
    """A cost curve and its floor. bandwidth: bytes a second; target_bytes, draft_bytes: weights
    that a pass of one row reads.
    """

    about: dict[str, str]
    curve: CostCurve
    bandwidth: float
    target_bytes: int
    draft_bytes: int

    def as_json(self) -> dict[str, Any]:
        """Plain JSON; the curve in it is what `CostCurve.load` reads from a file of its own."""
        return {
            "about": self.about,
            "curve": self.curve.as_json(),
            "bandwidth": self.bandwidth,
            "target_bytes": self.target_bytes,
            "draft_bytes": self.draft_bytes,
        }

    def save(self, path: Path) -> None:
        """Write it as JSON. Raises OptionError where that cannot be."""
        files.write(path, self.as_json())


def measure_cost(plan: CostPlan) -> Cost:
    """Load a pair and measure it. Raises what loading raises, and OptionError for depths or rows
    that are no such numbers.
    """
    for name, values, least in (("rows", plan.rows, 1), ("depths", plan.depths, 0)):
        if any(value < least for value in values):
            raise OptionError(f"{name} are {values}; they must be at least {least}")
    if plan.target is None and plan.draft is not None:
        raise OptionError(f"the draft {plan.draft} was given without a target; give it with -m")
    target, draft = (
        (demo.target_path(), demo.draft_path())
        if plan.target is None
        else models.find_pair(plan.target, plan.draft)
    )
    bandwidth = read_bandwidth(plan.options.n_threads)
    depths = tuple(sorted(set(plan.depths or _trained(target))))
    wanted = max(depths) + max(plan.rows or (0,)) + _ROOM
    with_room = replace(plan.options, context=wanted)
    pair = load_pair(target, draft, with_room)
    try:
        curve = _measured(pair, plan, depths)
        about = machine.about({"target": target} | ({"draft": draft} if draft else {}))
    finally:
        pair.close()
    sizes = weight_bytes(target, draft)
    return Cost(about, curve, bandwidth, *sizes)


def _trained(target: Path) -> tuple[int, ...]:
    with GGUFFile.open(target) as file:
        trained = file.metadata.get(f"{file.architecture}.context_length")
    most = trained if isinstance(trained, int) else 0
    return tuple(d for d in DEPTHS if d + _ROOM <= most) or (max(1, most // 4),)


def _measured(pair: Pair, plan: CostPlan, depths: tuple[int, ...]) -> CostCurve:
    drafter = pair.drafter if isinstance(pair.drafter, BlockDrafter) else None
    proposals = drafter.proposals if drafter else 7
    rows = tuple(sorted(set(plan.rows or range(1, 2 * proposals + 2))))
    n_ctx = max(depths) + max(rows) + _ROOM
    shape = replace(
        pair.context.shape,
        n_ctx=n_ctx,
        n_batch=max(pair.context.shape.n_batch, *rows),
        n_outputs=max(rows),
    )
    options = pair.options
    settings = {
        "target": pair.model.path.name,
        "draft": pair.draft_model.path.name if pair.draft_model else "none",
        "threads": str(options.n_threads),
        "flash attention": options.flash_attention,
        "KV cache": options.cache_type,
        "GPU layers": str(options.n_gpu_layers),
    }
    grid = Grid(rows, depths, plan.repeats)
    # the loaded context puts out no more rows than a block has
    with TargetContext.create(pair.model, shape) as target:
        side = None
        if drafter is not None:
            target.set_taps(pair.context.taps)
            side = DraftSide(drafter.context, drafter.layout)
        return measure(target, side, grid, tuple(settings.items()))


def weight_bytes(target: Path, draft: Path | None) -> tuple[int, int]:
    """Bytes of the weights that one row's pass reads, of the target and of the draft's block.

    All tensors but the embedding, of which a row reads one line, unless it serves as the head; of
    experts the share that a row uses. A draft without a head of its own reads the target's.
    """
    body, head = _body_and_head(target)
    if draft is None:
        return body + head, 0
    own, own_head = _body_and_head(draft)
    return body + head, own + (own_head or head)


def _body_and_head(path: Path) -> tuple[int, int]:
    with GGUFFile.open(path) as first:
        parts = first.parts
        used = first.metadata.get(f"{first.architecture}.expert_used_count")
        there = first.metadata.get(f"{first.architecture}.expert_count")
    share = used / there if isinstance(used, int) and isinstance(there, int) and there else 1.0
    body = 0
    tables: dict[str, int] = {}
    for part in parts:
        with GGUFFile.open(part, first_part=False) as file:
            for name, info in file.tensors.items():
                if name in ("token_embd.weight", "output.weight"):
                    tables[name] = info.nbytes
                elif name != "markov_w1.weight":
                    body += int(info.nbytes * (share if "_exps" in name else 1))
    return body, tables.get("output.weight", tables.get("token_embd.weight", 0))


def table(cost: Cost) -> list[str]:
    """The report for a terminal; milliseconds."""
    curve = cost.curve
    floor = 1000 * cost.target_bytes / cost.bandwidth
    found = [
        f"memory is read at {cost.bandwidth / 1e9:.1f} GB/s; the target's weights, "
        f"{cost.target_bytes / 1e6:.1f} MB, take {floor:.2f} ms at least"
    ]
    if curve.draft is not None:
        least = 1000 * cost.draft_bytes / cost.bandwidth
        found.append(f"the draft's, {cost.draft_bytes / 1e6:.1f} MB, {least:.2f} ms")
    found += _surface("verify, ms by rows", curve.verify, floor)
    for name, surface in (
        ("a block, ms by proposals", curve.draft),
        ("injection, ms by rows", curve.injection),
    ):
        found += _surface(name, surface, None) if surface else []
    return found


def _surface(name: str, surface: Surface, floor: float | None) -> list[str]:
    sizes = " ".join(f"{size:>8}" for size in surface.sizes)
    found = ["", f"{name:<26}{sizes}"]
    for depth, row in zip(surface.depths, surface.seconds, strict=True):
        cells = " ".join(f"{1000 * seconds:8.3f}" for seconds in row)
        found.append(f"{f'  at depth {depth}':<26}{cells}")
    if floor:
        cells = " ".join(f"{1000 * s / floor:8.1f}" for s in surface.seconds[0])
        found.append(f"{'  x floor':<26}{cells}")
    return found
