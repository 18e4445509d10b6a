"""The arms of a comparison by name, and what an arm's runner gives."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from llamaspec.bench.figures import Verdict
from llamaspec.errors import OptionError
from llamaspec.runtime.arrays import IntArray

Kind = Literal["ours", "server", "simple"]
Source = Literal["none", "lookup", "draft", "dflash"]

_KINDS: dict[str, tuple[Kind, Source]] = {
    "plain": ("ours", "none"),
    "lookup": ("ours", "lookup"),
    "dspark": ("ours", "draft"),
    "dflash": ("ours", "dflash"),
    "server": ("server", "draft"),
    "server-dflash": ("server", "dflash"),
    "server-plain": ("server", "none"),
    "simple": ("simple", "draft"),
    "simple-dflash": ("simple", "dflash"),
}
_NAME = re.compile(r"(?P<name>[a-z-]+)(?:@(?P<width>[1-9][0-9]{0,3}))?")


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """One arm: who decodes, with proposals from where, and how many at most a round (None for as
    many as pay; of llama.cpp's tools for all that a block has).
    """

    name: str
    kind: Kind
    source: Source
    width: int | None

    @property
    def drafts(self) -> bool:
        return self.source != "none"


def read_arms(text: str) -> list[ArmSpec]:
    """Arms by their names, separated by commas. Raises OptionError for an unknown one, or one that
    comes twice.
    """
    found = [_read(name.strip()) for name in text.split(",") if name.strip()]
    names = [arm.name for arm in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OptionError(f"the arm {twice[0]} is given twice; leave one out")
    if not found:
        raise OptionError("there is no arm to run; give some, such as --arms plain,dspark")
    return found


def _read(name: str) -> ArmSpec:
    match = _NAME.fullmatch(name)
    if match is None or match["name"] not in _KINDS:
        raise OptionError(
            f"there is no arm {name!r}; the arms are {', '.join(_KINDS)}, and those that draft "
            "take @N for N proposals a round"
        )
    kind, source = _KINDS[match["name"]]
    if match["width"] and source == "none":
        raise OptionError(f"{name}: an arm without a draft has no width; leave @ out")
    return ArmSpec(name, kind, source, int(match["width"]) if match["width"] else None)


def check_drafts(arms: Sequence[ArmSpec], *, draft: bool, dflash: bool) -> None:
    """Raise OptionError where an arm needs a draft that was not given."""
    given = {"draft": ("-d", draft), "dflash": ("--dflash", dflash)}
    for arm in arms:
        option, there = given.get(arm.source, ("", True))
        if not there:
            raise OptionError(f"the arm {arm.name} needs a draft; give it with {option}")


class Ready(NamedTuple):
    """A prompt as every arm gets it: its number, token ids [n], the text they come from."""

    number: int
    ids: IntArray
    text: str


@dataclass(frozen=True, slots=True)
class Generated:
    """What one generation gave. Rates in tokens/s, 0 where there is none; rounds, draft_s,
    verify_s and other_s as in `record.Sample`.

    ids: without a final end token, None where the tool does not say. text: likewise. overshot:
    there are more tokens than were asked for.
    """

    tokens: int
    decode_rate: float
    request_rate: float
    latency_s: float
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_s: float | None = None
    verify_s: float | None = None
    other_s: float | None = None
    ids: tuple[int, ...] | None = None
    text: bytes | None = None
    overshot: bool = False
    verdicts: tuple[Verdict, ...] = ()


class Runner(Protocol):
    """One arm, ready to generate."""

    @property
    def argv(self) -> tuple[str, ...]:
        """The command, of a tool."""

    def run(self, prompt: Ready, max_tokens: int) -> Generated:
        """Generate greedily, from scratch."""
