"""A result as text: a table an arm, a line a category and one for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from llamaspec.bench import figures
from llamaspec.bench.figures import Interval
from llamaspec.bench.record import Result, Sample

_COLUMNS = (
    f"{'category':<16} {'base t/s':>9} {'spec t/s':>9} {'speedup (95%)':>20} {'latency':>8} "
    f"{'accept':>7} {'tau':>6} {'same':>9}"
)
OVERALL = "overall"
IDLE = 0.5
"""The largest load average of a machine that has nothing else to do."""


@dataclass(frozen=True, slots=True)
class Line:
    """An arm beside the base in one category. base, spec: medians of decode t/s. latency: the
    paired ratio of whole requests, base seconds / arm seconds. accept, tau: 0 without a draft.
    same, compared: outputs equal to the base's, and how many could be compared.
    """

    category: str
    base: float
    spec: float
    speedup: Interval | None
    request: Interval | None
    latency: float
    accept: float
    tau: float
    same: int
    compared: int


def lines(result: Result, arm: str) -> list[Line]:
    """An arm's lines, categories in the order of the workload, the overall one last."""
    return [line(result, arm, category) for category in [*result.categories, None]]


def line(result: Result, arm: str, category: str | None) -> Line:
    """An arm in one category, or in all of them."""
    mine, base = result.of(arm, category), result.of(result.base, category)
    drafted = sum(s.drafted for s in mine)
    compared = [s.identical for s in mine if s.identical is not None]
    latency = paired(base, mine, "latency_s")
    return Line(
        category=OVERALL if category is None else category,
        base=_middle(base),
        spec=_middle(mine),
        speedup=paired(mine, base, "decode_rate"),
        request=paired(mine, base, "request_rate"),
        latency=latency.middle if latency else 0.0,
        accept=sum(s.accepted for s in mine) / drafted if drafted else 0.0,
        tau=_tau(mine),
        same=sum(compared),
        compared=len(compared),
    )


def paired(mine: Sequence[Sample], base: Sequence[Sample], name: str) -> Interval | None:
    """The median over prompts of paired ratios of a field, with its interval; None where there are
    none.
    """
    other = {(s.prompt, s.repeat): getattr(s, name) for s in base}
    rates: dict[int, tuple[list[float], list[float]]] = {}
    for sample in mine:
        key = sample.prompt, sample.repeat
        if key in other:
            ours, theirs = rates.setdefault(sample.prompt, ([], []))
            ours.append(getattr(sample, name))
            theirs.append(other[key])
    columns = list(rates.values())
    ratios = figures.paired_ratios([a for a, _ in columns], [b for _, b in columns])
    return figures.bootstrap(ratios) if ratios else None


def shares(samples: Sequence[Sample]) -> tuple[float, float, float] | None:
    """Shares of draft, verify and the rest of the whole time; None where an arm does not say."""
    totals = [0.0, 0.0, 0.0]
    for sample in samples:
        parts = (sample.draft_s, sample.verify_s, sample.other_s)
        for i, part in enumerate(parts):
            if part is None:
                return None
            totals[i] += part
    whole = sum(totals)
    return (totals[0] / whole, totals[1] / whole, totals[2] / whole) if whole > 0 else None


def busy(result: Result) -> str | None:
    """A warning where the machine had other work before the run began; None where it had none."""
    if not result.load or result.load[0] <= IDLE:
        return None
    return (
        f"the machine was busy before the run (load average {result.load[0]:.2f}): systems favour "
        "processes that slept, so arms of different processes do not compare; measure again"
    )


def report(result: Result) -> list[str]:
    """The whole result for a terminal."""
    found = [
        f"{len(result.prompts)} prompts x {result.settings.get('repeats', '?')} repeats, base "
        f"{result.base}, load average {', '.join(f'{x:.2f}' for x in result.load)}"
    ]
    found += filter(None, [busy(result)])
    if result.left_out:
        found.append(f"{result.left_out} prompts did not fit the context and were left out")
    if result.synthetic:
        found.append("SYNTHETIC acceptance: times are real, texts and acceptance are not")
    for arm in result.arms:
        found += ["", f"{arm.name}"]
        if arm.name != result.base:
            found += [_COLUMNS, *(_row(one) for one in lines(result, arm.name))]
        found += _details(result, arm.name)
    return found


def printable(text: str) -> str:
    """A text of a file's, which must not steer a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _row(one: Line) -> str:
    speedup = "n/a"
    if one.speedup is not None:
        middle, low, high = one.speedup
        speedup = f"{middle:.3f} ({low:.3f}..{high:.3f})"
    accept = f"{one.accept:7.1%} {one.tau:6.2f}" if one.tau else f"{'n/a':>7} {'n/a':>6}"
    same = f"{one.same}/{one.compared}" if one.compared else "n/a"
    return (
        f"{printable(one.category)[:16]:<16} {one.base:9.1f} {one.spec:9.1f} {speedup:>20} "
        f"{one.latency:7.3f}x {accept} {same:>9}"
    )


def _details(result: Result, arm: str) -> list[str]:
    samples = result.of(arm)
    found = [f"  decode {_middle(samples):.1f} t/s, request {_requests(samples):.1f} t/s (medians)"]
    rounds = [r for trace in result.traces if trace.arm == arm for r in trace.rounds]
    seen = figures.acceptance(rounds)
    if seen.verified:
        found += [
            "  accepted, once reached: " + " ".join(f"{x:.3f}" for x in seen.conditional),
            "  accepted of verified:   " + " ".join(f"{x:.3f}" for x in seen.unconditional),
            "  rounds by length:       " + " ".join(f"{i}:{n}" for i, n in enumerate(seen.lengths)),
        ]
    parts = shares(samples)
    if parts:
        draft, verify, other = parts
        found.append(f"  time: draft {draft:.1%}, verify {verify:.1%}, other {other:.1%}")
    return found


def _middle(samples: Sequence[Sample]) -> float:
    return median([s.decode_rate for s in samples if s.decode_rate > 0] or [0.0])


def _requests(samples: Sequence[Sample]) -> float:
    return median([s.request_rate for s in samples] or [0.0])


def _tau(samples: Sequence[Sample]) -> float:
    drafted = [s for s in samples if s.drafted]
    if not drafted:
        return 0.0
    tokens = sum(s.tokens - 1 for s in samples) + 1
    return figures.tau(tokens, sum(s.rounds for s in samples))
