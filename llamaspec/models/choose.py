"""Which GGUF of several is meant: by file, by quantisation, or because there is but one."""

import re
from collections.abc import Iterable, Sequence

from llamaspec.errors import ModelLoadError

TARGET_FIRST = ("Q4_K_M",)
"""Taken of several targets where none is named, as llama.cpp and others do."""
DRAFT_FIRST = ("Q8_0", "BF16", "F16", "Q4_K_M")
"""Of several drafts: what keeps acceptance, smallest first."""
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32))"
    r"(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_PART = re.compile(r"-(\d{5})-of-\d{5}\.gguf$", re.IGNORECASE)
_DRAFT = re.compile(r"dspark|dflash|(?<![a-z])draft(?![a-z])", re.IGNORECASE)
_NO_MODEL = re.compile(r"mmproj|imatrix|(?<![a-z])(mtp|eagle\d?|lora|adapter)(?![a-z])", re.I)
_SHOWN = 12


def ggufs(names: Iterable[str]) -> list[str]:
    """The GGUFs among file names, of split ones the first part only."""
    found = []
    for name in sorted(names):
        part = _PART.search(name)
        if name.lower().endswith(".gguf") and (part is None or part[1] == "00001"):
            found.append(name)
    return found


def targets(names: Iterable[str]) -> list[str]:
    """Those that by their names are whole models."""
    return [n for n in ggufs(names) if not _DRAFT.search(n) and not _NO_MODEL.search(n)]


def drafts(names: Iterable[str], first: Sequence[str] = DRAFT_FIRST) -> list[str]:
    """Those that by their names are block drafts, in the order in which to try them."""
    found = [n for n in ggufs(names) if _DRAFT.search(n) and not _NO_MODEL.search(n)]
    rank = {quant: place for place, quant in enumerate(first)}
    return sorted(found, key=lambda n: (rank.get(quantisation(n), len(rank)), n))


def quantisation(name: str) -> str:
    """What a file's name says of its type, in capitals; "" where it says nothing."""
    found = _QUANT.findall(_PART.sub(".gguf", name))
    return found[-1].upper() if found else ""


def matching(names: Sequence[str], wanted: str) -> list[str]:
    """The files that a name, a file's or a quantisation's, can mean."""
    exact = [n for n in names if wanted in (n, n.rpartition("/")[2])]
    if exact:
        return exact
    same = [n for n in names if quantisation(n) == wanted.upper()]
    if same:
        return same
    part = re.compile(rf"(?<![A-Za-z0-9]){re.escape(wanted)}(?![A-Za-z0-9_])", re.IGNORECASE)
    return [n for n in names if part.search(n)]


def choose(where: str, names: Sequence[str], wanted: str, first: Sequence[str]) -> str:
    """The one file that is meant.

    Args:
        where: what errors call the repository or folder.
        names: its GGUFs.
        wanted: a file or a quantisation, "" for what `first` says, or the only one.
        first: quantisations to take in turn where none is named.

    Raises:
        ModelLoadError: none, or more than one; lists what there is.
    """
    if not names:
        raise ModelLoadError(f"{where}: has no GGUF")
    found = matching(names, wanted) if wanted else list(names)
    if len(found) == 1:
        return found[0]
    if not found:
        raise ModelLoadError(f"{where}: has no GGUF of {wanted}; it has {listed(names)}")
    for quant in () if wanted else first:
        typed = [name for name in names if quantisation(name) == quant]
        if len(typed) == 1:
            return typed[0]
    what = f"{wanted} can be {len(found)} files" if wanted else f"has {len(found)} GGUFs"
    raise ModelLoadError(f"{where}: {what}; name one after a colon: {listed(found)}")


def listed(names: Sequence[str]) -> str:
    """Files as the shortest words that tell them apart: their types, or else their names."""
    types = [quantisation(name) for name in names]
    words = types if all(types) and len(set(types)) == len(types) else list(names)
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more
