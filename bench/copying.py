"""A text that copies: a Python file once more with one name changed, with and without lookup.

    python -m llamaspec.bench.copying -m TARGET [-d DRAFT] [--repeats 5]

Alternating runs; prints tokens/s while decoding, the median of the paired ratios with its
quartiles, tau, and whether the texts are the same. With a draft, lookup is beside it.
"""

from pathlib import Path
from statistics import median, quantiles
from typing import Annotated

import typer

from llamaspec import Completion, Session, load
from llamaspec.options import LoadOptions

OLD, NEW = "shelf", "rack"
_UP_TO = f"No {NEW} carries more"
SOURCE = '''"""A small stock room: boxes on shelves, found again by their labels."""

from dataclasses import dataclass, field


@dataclass
class Box:
    """A labelled box of so many pieces, each of the same weight in grams."""

    label: str
    pieces: int
    grams: float = 1.0

    @property
    def weight(self) -> float:
        return self.pieces * self.grams


@dataclass
class Room:
    """Boxes by shelf. No shelf carries more than its limit in grams."""

    limit: float
    boxes: dict[str, list[Box]] = field(default_factory=dict)

    def load(self, shelf: str) -> float:
        """The weight that is on a shelf."""
        return sum(box.weight for box in self.boxes.get(shelf, []))

    def put(self, shelf: str, box: Box) -> None:
        """Put a box on a shelf. Raises ValueError if the shelf would carry too much."""
        if self.load(shelf) + box.weight > self.limit:
            raise ValueError(f"{shelf} cannot carry {box.label}: limit {self.limit} grams")
        self.boxes.setdefault(shelf, []).append(box)

    def find(self, label: str) -> list[str]:
        """The shelves that hold a box with this label, in order."""
        return sorted(
            shelf for shelf, boxes in self.boxes.items() if any(b.label == label for b in boxes)
        )

    def take(self, shelf: str, label: str, pieces: int) -> int:
        """Take pieces out of the boxes of a shelf; return how many there were."""
        taken = 0
        for box in self.boxes.get(shelf, []):
            if box.label != label:
                continue
            part = min(box.pieces, pieces - taken)
            box.pieces -= part
            taken += part
            if taken == pieces:
                break
        return taken

    def move(self, label: str, source: str, target: str) -> bool:
        """Move a box to another shelf; whether it was there."""
        for box in self.boxes.get(source, []):
            if box.label == label:
                self.put(target, box)
                self.boxes[source].remove(box)
                return True
        return False

    def report(self) -> str:
        """A line for every shelf: its name, how many boxes, and their weight."""
        lines = []
        for shelf, boxes in sorted(self.boxes.items()):
            lines.append(f"{shelf}: {len(boxes)} boxes, {self.load(shelf):.1f} grams")
        return "\\n".join(lines)
'''


def prompt() -> str:
    """The file, and the beginning of it with the name changed."""
    renamed = SOURCE.replace(OLD, NEW)
    start = renamed[: renamed.index(_UP_TO) + len(_UP_TO)]
    title = f"# stock_renamed.py: {OLD} is now called {NEW}\n"
    return f"# stock.py\n{SOURCE}\n\n{title}{start}"


def decode_rate(done: Completion) -> float:
    """Tokens a second after the first."""
    stats = done.stats
    return (stats.completion_tokens - 1) / (stats.total_s - stats.time_to_first_token_s)


def pairs(session: Session, *, repeats: int, tokens: int) -> list[tuple[Completion, Completion]]:
    """Plain and drafted completions, in turn first and second."""
    found = []
    for turn in range(repeats):
        runs = {}
        for most in (0, None) if turn % 2 else (None, 0):
            runs[most] = session.generate(
                prompt(), max_tokens=tokens, draft_max=most, cache_prompt=False
            )
        found.append((runs[0], runs[None]))
    return found


def main(
    model: Annotated[Path, typer.Option("-m", "--model", help="Target GGUF.")],
    draft: Annotated[Path | None, typer.Option("-d", "--draft", help="Its draft, if any.")] = None,
    repeats: Annotated[int, typer.Option("--repeats", help="Pairs of runs.")] = 5,
    tokens: Annotated[int, typer.Option("-n", help="Most tokens.")] = 560,
    threads: Annotated[int, typer.Option("-t", "--threads", help="0: physical cores.")] = 0,
    exact: Annotated[bool, typer.Option("--exact", help="Load for exact decoding.")] = False,
) -> None:
    """Compare lookup with plain decoding on a text that copies."""
    settings = LoadOptions(lookup=draft is not None, threads=threads, exact=exact)
    with load(model, draft or "lookup", options=settings) as session:
        typer.echo(f"the file has {len(session.tokenize(SOURCE))} tokens")
        pairs(session, repeats=1, tokens=32)
        found = pairs(session, repeats=repeats, tokens=tokens)
    ratios = [decode_rate(fast) / decode_rate(plain) for plain, fast in found]
    low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    same = sum(plain.token_ids == fast.token_ids for plain, fast in found)
    typer.echo(
        f"plain {median(decode_rate(plain) for plain, _ in found):.1f} tokens/s, lookup "
        f"{median(decode_rate(fast) for _, fast in found):.1f}: {middle:.2f} x "
        f"({low:.2f}..{high:.2f}), tau {found[-1][1].stats.tau:.2f}, "
        f"{found[-1][1].stats.completion_tokens} tokens, {same} of {len(found)} texts the same"
    )


if __name__ == "__main__":
    typer.run(main)
