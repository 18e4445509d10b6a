"""The registry of known pairs, and which of them a target is."""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from llamaspec.models.choose import quantisation

_NAME = "known.toml"
_ENDING = re.compile(r"[-_. ]?gguf$", re.IGNORECASE)


@dataclass(frozen=True)
class KnownPair:
    """A draft and the target that it was made for, as known.toml describes them.

    gguf: a repository with GGUFs of the target, "" where none is stated. parameters, draft_bytes:
    0 where not stated.
    """

    target: str
    names: tuple[str, ...]
    draft: str
    kind: str
    source: str
    licence: str
    gguf: str = ""
    parameters: int = 0
    draft_bytes: int = 0

    def means(self, name: str) -> bool:
        """Whether a repository, a file or general.name is this target's."""
        own = self.target.rpartition("/")[2]
        return _plain(name) in {_plain(each) for each in (own, *self.names)}


@cache
def known_pairs() -> tuple[KnownPair, ...]:
    """All of them, the preferred draft of a target before its others."""
    text = files("llamaspec.models").joinpath(_NAME).read_text("utf-8")
    return tuple(
        KnownPair(**{**entry, "names": tuple(entry.get("names", ()))})
        for entry in tomllib.loads(text)["pair"]
    )


def drafts_for(names: Iterable[str]) -> list[KnownPair]:
    """The pairs whose target has one of these names, in order."""
    wanted = [name for name in names if name]
    return [pair for pair in known_pairs() if any(pair.means(name) for name in wanted)]


def _plain(name: str) -> str:
    """Without what names of one model differ in: owner, type, ending, case and punctuation."""
    bare = _ENDING.sub("", name.rpartition("/")[2].strip())
    if quant := quantisation(bare):
        bare = re.sub(re.escape(quant), "", bare, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]", "", bare.lower())
