"""The plots of a report, as SVG text. Needs matplotlib (the extra `bench`)."""

import io
from collections.abc import Callable
from types import ModuleType
from typing import Any

from llamaspec.bench import figures, tables
from llamaspec.bench.figures import Acceptance, Reliability
from llamaspec.bench.record import Result
from llamaspec.errors import OptionError
from llamaspec.schedule.cost import CostCurve

_SIZE = (8.0, 4.0)
_MOST_NAME = 24


def library() -> ModuleType:
    """matplotlib.figure, drawing without a screen. Raises OptionError where it is missing."""
    try:
        import matplotlib
        from matplotlib import figure
    except ImportError:
        raise OptionError(
            "plots need matplotlib: pip install 'llamaspec[bench]', or matplotlib by itself"
        ) from None
    # texts stay texts; ids do not change from run to run; $ is a dollar sign, not mathematics
    matplotlib.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": "llamaspec", "text.parse_math": False}
    )
    found: ModuleType = figure
    return found


def _drawn(draw: Callable[[Any], None], *, wide: float = _SIZE[0]) -> str:
    figure = library().Figure(figsize=(wide, _SIZE[1]), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize="small")
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def short(name: str) -> str:
    """A name for an axis: printable, not too long."""
    plain = tables.printable(name)
    return plain if len(plain) <= _MOST_NAME else plain[: _MOST_NAME - 1] + "…"


def speedups(result: Result) -> str:
    """Decode speedup over the base by category, with intervals; below 1 is a loss."""
    arms = [arm.name for arm in result.arms if arm.name != result.base]

    def draw(axes: Any) -> None:  # noqa: ANN401
        axes.axhline(1.0, color="black", linewidth=1)
        width = 0.8 / max(1, len(arms))
        for number, arm in enumerate(arms):
            found = [(i, one) for i, one in enumerate(tables.lines(result, arm)) if one.speedup]
            at = [i + number * width for i, _ in found]
            middles = [one.speedup.middle for _, one in found if one.speedup]
            low = [one.speedup.middle - one.speedup.low for _, one in found if one.speedup]
            high = [one.speedup.high - one.speedup.middle for _, one in found if one.speedup]
            axes.bar(at, middles, width, yerr=[low, high], capsize=2, label=short(arm))
        names = [short(name) for name in [*result.categories, tables.OVERALL]]
        axes.set_xticks([i + 0.4 - width / 2 for i in range(len(names))], names, rotation=30)
        axes.set_ylabel(f"decode speedup over {short(result.base)}")

    return _drawn(draw, wide=max(_SIZE[0], 1.2 * len(result.categories)))


def conditional(found: dict[str, Acceptance]) -> str:
    """Acceptance by position, of proposals whose predecessors were accepted."""

    def draw(axes: Any) -> None:  # noqa: ANN401
        for arm, seen in found.items():
            places = [i + 1 for i, n in enumerate(seen.reached) if n]
            rates = [rate for rate, n in zip(seen.conditional, seen.reached, strict=True) if n]
            axes.plot(places, rates, marker="o", label=short(arm))
        axes.set(xlabel="position in the block", ylabel="accepted, once reached", ylim=(0, 1.03))

    return _drawn(draw)


def lengths(found: dict[str, Acceptance]) -> str:
    """Share of the rounds by the number of accepted proposals."""

    def draw(axes: Any) -> None:  # noqa: ANN401
        width = 0.8 / max(1, len(found))
        for number, (arm, seen) in enumerate(found.items()):
            total = sum(seen.lengths)
            at = [i + number * width for i in range(len(seen.lengths))]
            axes.bar(at, [n / total for n in seen.lengths], width, label=short(arm))
        axes.set(xlabel="accepted proposals of a round", ylabel="share of the rounds")

    return _drawn(draw)


def time_shares(result: Result) -> str | None:
    """Draft, verify and the rest of the time, by arm; None where no arm says."""
    parts = {arm.name: tables.shares(result.of(arm.name)) for arm in result.arms}
    found = {arm: shares for arm, shares in parts.items() if shares}
    if not found:
        return None

    def draw(axes: Any) -> None:  # noqa: ANN401
        names = [short(name) for name in found]
        left = [0.0] * len(names)
        for i, label in enumerate(("draft", "verify", "other")):
            values = [shares[i] for shares in found.values()]
            axes.barh(range(len(names)), values, left=left, label=label)
            left = [a + b for a, b in zip(left, values, strict=True)]
        axes.set_yticks(range(len(names)), names)
        axes.set(xlabel="share of the time", xlim=(0, 1))

    return _drawn(draw)


def calibration(found: dict[str, Reliability]) -> str:
    """Confidence against the share accepted; on the diagonal a confidence is what it says."""

    def draw(axes: Any) -> None:  # noqa: ANN401
        axes.plot([0, 1], [0, 1], color="black", linewidth=1)
        for arm, seen in found.items():
            x = [one.confidence for one in seen.bins]
            y = [one.accepted for one in seen.bins]
            axes.plot(x, y, marker="o", label=f"{short(arm)}, ECE {seen.ece:.3f}")
        axes.set(xlabel="confidence", ylabel="accepted, once reached", xlim=(0, 1), ylim=(0, 1.03))

    return _drawn(draw)


def cost(curve: CostCurve, floor_s: float | None) -> str:
    """Milliseconds of target passes by rows, a line a depth, and the floor."""

    def draw(axes: Any) -> None:  # noqa: ANN401
        surfaces = {"verify": curve.verify, "draft": curve.draft, "injection": curve.injection}
        for name, surface in surfaces.items():
            if surface is None:
                continue
            for depth, row in zip(surface.depths, surface.seconds, strict=True):
                values = [1000 * seconds for seconds in row]
                axes.plot(surface.sizes, values, marker=".", label=f"{name}, depth {depth}")
        if floor_s:
            axes.axhline(1000 * floor_s, color="black", linewidth=1, label="weights read once")
        axes.set(xlabel="rows of a pass, or proposals of a block", ylabel="ms")
        axes.set_ylim(bottom=0)

    return _drawn(draw)


def acceptances(result: Result) -> dict[str, Acceptance]:
    """By arm, of those whose rounds are known."""
    found = {}
    for arm in result.arms:
        rounds = [r for t in result.traces if t.arm == arm.name for r in t.rounds]
        seen = figures.acceptance(rounds)
        if seen.verified:
            found[arm.name] = seen
    return found


def reliabilities(result: Result) -> dict[str, Reliability]:
    """By arm, of those whose draft has a confidence head."""
    found = {}
    for arm in result.arms:
        rounds = [r for t in result.traces if t.arm == arm.name for r in t.rounds]
        seen = figures.reliability(rounds)
        if seen is not None:
            found[arm.name] = seen
    return found
