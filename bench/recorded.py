"""Real rounds of a pair, kept to be replayed at any width without it: from nearly every token of
some texts what the draft was sure of and how much of it was accepted.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from llamaspec.bench.typed import of_json, read_object
from llamaspec.errors import OptionError
from llamaspec.schedule.scaling import Scaling
from llamaspec.trace import Round

FORMAT = "llamaspec rounds 1"
BUNDLED = Path(__file__).parent / "recorded.json"
"""56 texts of the bundled pair, and a calibration fitted on 224 other prompts."""
_PARTS = 10_000


class Moment(NamedTuple):
    """A round from one place of a text: confidences of its proposals, how many were accepted, how
    many tokens it committed.
    """

    confidence: tuple[float, ...]
    accepted: int
    committed: int


@dataclass(frozen=True, slots=True)
class Text:
    """A text as rounds from its tokens. starts: the places, rising, from the first token on; a text
    is over beyond the last one. moments: of each.
    """

    starts: tuple[int, ...]
    moments: tuple[Moment, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.starts, self.starts[1:], strict=False))
        if not self.starts or len(self.starts) != len(self.moments) or not rising:
            raise OptionError("a recorded text needs rising starts and one round for each")
        for c, accepted, committed in self.moments:
            whole = 0 <= accepted <= len(c) and max(1, accepted) <= committed <= accepted + 1
            if not whole or not all(0 <= x <= 1 for x in c):
                raise OptionError(f"a recorded round accepts {accepted} of {len(c)} proposals")

    def at(self, place: int) -> tuple[int, Moment] | None:
        """The round from a place, or from the next one that is known; None beyond the last."""
        index = bisect_left(self.starts, place)
        return (self.starts[index], self.moments[index]) if index < len(self.starts) else None

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> Self:
        """Of the rounds of one prompt; a round that is there several times is taken once."""
        by_start = {r.start: r for r in rounds}
        first = min(by_start, default=0)
        chosen = [by_start[start] for start in sorted(by_start)]
        return cls(
            tuple(r.start - first for r in chosen),
            tuple(Moment(r.confidence or (), r.accepted, r.committed) for r in chosen),
        )


@dataclass(frozen=True, slots=True)
class Recorded:
    """Texts of one pair, with a calibration that was fitted on other texts."""

    texts: tuple[Text, ...]
    scaling: Scaling

    @property
    def proposals(self) -> int:
        """The most of a round."""
        return max(len(m.confidence) for text in self.texts for m in text.moments)

    def save(self, path: Path) -> None:
        """Write it, confidences to four digits. Raises OSError."""
        texts = [
            [
                [start, m.accepted, m.committed, *(round(_PARTS * c) for c in m.confidence)]
                for start, m in zip(text.starts, text.moments, strict=True)
            ]
            for text in self.texts
        ]
        found = {"format": FORMAT, "scaling": self.scaling.as_json(), "texts": texts}
        path.write_text(json.dumps(found, separators=(",", ":")) + "\n", "utf-8")

    @classmethod
    def load(cls, path: Path = BUNDLED) -> Self:
        """Read what `save` wrote. Raises OptionError for anything else."""
        found = read_object(path)
        if found.get("format") != FORMAT:
            raise OptionError(f'{path}: not recorded rounds: "format" is not "{FORMAT}"')
        try:
            texts = tuple(_text(item) for item in of_json(_Lists, found, str(path)).texts)
            scaling = Scaling.of_json(found.get("scaling"))
        except OptionError as error:
            raise OptionError(f"{path}: {error}".replace(f"{path}: {path}", str(path))) from None
        if not texts:
            raise OptionError(f"{path}: holds no texts")
        return cls(texts, scaling)


@dataclass(frozen=True)
class _Lists:
    texts: tuple[tuple[tuple[int, ...], ...], ...]


def _text(rounds: tuple[tuple[int, ...], ...]) -> Text:
    if any(len(r) < 3 for r in rounds):
        raise OptionError("a recorded round needs a start and two counts")
    moments = (Moment(tuple(c / _PARTS for c in r[3:]), r[1], r[2]) for r in rounds)
    return Text(tuple(r[0] for r in rounds), tuple(moments))


def about(recorded: Recorded) -> dict[str, int]:
    """How much there is of it."""
    moments = [m for text in recorded.texts for m in text.moments]
    return {"texts": len(recorded.texts), "rounds": len(moments), "proposals": recorded.proposals}
