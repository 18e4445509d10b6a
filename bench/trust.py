"""A reliability plot: what survival probabilities say against what happened. Needs matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from llamaspec.bench.plots import library
from llamaspec.schedule.reliability import Bin

_SIZE = (5.0, 5.0)
_LARGEST = 220.0


def draw(path: Path, found: Mapping[str, Sequence[Bin]]) -> None:
    """Write a PNG: a line for each named row of bins, points as large as their share of the
    predictions; on the diagonal a probability is what it says.

    Raises OptionError where matplotlib is missing, OSError where the file cannot be written.
    """
    figure = library().Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="black", linewidth=1)
    for name, bins in found.items():
        total = sum(one.weight for one in bins)
        x, y = [one.predicted for one in bins], [one.happened for one in bins]
        (line,) = axes.plot(x, y, label=name)
        sizes = [_LARGEST * one.weight / total for one in bins]
        axes.scatter(x, y, s=sizes, color=line.get_color())
    axes.set(xlabel="survival probability", ylabel="survived", xlim=(0, 1), ylim=(0, 1.03))
    axes.legend(loc="upper left")
    figure.savefig(path, format="png", dpi=120, metadata={"Software": None})
