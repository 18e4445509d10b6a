"""From names to files: a target and its draft, wherever they are."""

import logging
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path

from llamaspec import hub
from llamaspec.errors import LlamaSpecError, ModelLoadError, OptionError
from llamaspec.models import converted, known
from llamaspec.models.choose import (
    DRAFT_FIRST,
    TARGET_FIRST,
    choose,
    drafts,
    ggufs,
    matching,
    targets,
)
from llamaspec.models.converted import AS_PUBLISHED, Progress, Wanted
from llamaspec.models.names import Named, read_name

logger = logging.getLogger("llamaspec.models")

AUTO = "auto"
"""In place of a draft: find one."""
Reference = str | PathLike[str]
_CONFIG, _WEIGHTS = "config.json", ".safetensors"
_ARCHITECTURE = b"dflash"
_HEAD = 1 << 16
_TRIES = 3


@dataclass(frozen=True)
class Target:
    """A target's file, and the repository that it is of, None for a file of this machine."""

    path: Path
    named: Named | None = None


def find_pair(
    model: Reference, draft: Reference | None, on_progress: Progress | None = None
) -> tuple[Path, Path | None]:
    """The files of a target and of its draft. Raises as the two below."""
    target = find_target(model)
    return target.path, None if draft is None else find_draft(draft, target, on_progress)


def find_target(model: Reference) -> Target:
    """A target's GGUF, downloaded where it is a repository's.

    Args:
        model: a GGUF; a folder of GGUFs; owner/repo[@revision][:quantisation or file], of which
            Q4_K_M is taken where nothing else is said; or hf://owner/repo/file.gguf.

    Raises:
        OptionError: a name of no known form.
        ModelLoadError: nothing there, more than one, no access, or no network.
    """
    name = read_name(model)
    if isinstance(name, Path):
        return Target(_in_folder(name) if name.is_dir() else name)
    if isinstance(name, str):
        return Target(hub.resolve(name))
    listing = _listing(name)
    there, models = ggufs(listing.files), targets(listing.files)
    # a draft may lie beside its target and be of the same type; by its own name it can be had
    if models and (not name.wanted or matching(models, name.wanted)):
        there = models
    if not there:
        raise ModelLoadError(_no_gguf(name, listing))
    file = choose(_where(listing), there, name.wanted, TARGET_FIRST)
    return Target(hub.fetch(listing, file, name.revision), name)


def find_draft(draft: Reference, target: Target, on_progress: Progress | None = None) -> Path:
    """A draft's GGUF; a checkpoint is downloaded, and converted once.

    Args:
        draft: as a target; or a checkpoint, by its folder or repository, whose draft is written as
            the type after the colon (as published without); or "auto".
        target: what it is for.
        on_progress: gets bytes written and bytes in all, of a conversion.

    Raises:
        OptionError: a name of no known form; or "auto", and none is known.
        ModelLoadError, IncompatibleDraftError: as `find_target`; or it cannot be converted.
    """
    if draft == AUTO:
        return _auto(target, on_progress)
    name = read_name(draft)
    if isinstance(name, str):
        return hub.resolve(name)
    if isinstance(name, Path):
        return _local_draft(name, target, on_progress)
    listing = _listing(name)
    there = ggufs(listing.files)
    if _is_checkpoint(listing) and not (name.wanted and matching(there, name.wanted)):
        return _of_checkpoint(name, listing, target, on_progress)
    if not there:
        raise ModelLoadError(_no_gguf(name, listing, ", and no checkpoint of a draft"))
    file = choose(_where(listing), there, name.wanted, DRAFT_FIRST)
    return hub.fetch(listing, file, name.revision)


def _local_draft(path: Path, target: Target, on_progress: Progress | None) -> Path:
    if not path.is_dir():
        return path
    if (path / _CONFIG).is_file():
        source = str(path.resolve())
        wanted = Wanted(source, converted.folder_state(path), target.path)
        return converted.have(wanted, lambda: (path, None), on_progress)
    there = [file.name for file in path.iterdir()]
    return path / choose(str(path), drafts(there) or ggufs(there), "", DRAFT_FIRST)


def _of_checkpoint(
    name: Named, listing: hub.Listing, target: Target, on_progress: Progress | None
) -> Path:
    from llamaspec.convert.fetch import fetch_draft

    outtype = name.wanted.lower() or AS_PUBLISHED
    wanted = Wanted(name.repo, listing.commit, target.path, outtype)
    # by its branch: what is asked by a commit alone is not found again without network
    fetch = partial(fetch_draft, name.repo, name.revision)
    return converted.have(wanted, fetch, on_progress)


def _auto(target: Target, on_progress: Progress | None) -> Path:
    """A draft that fits: beside the target, in its repository, or of the known pairs."""
    if found := _beside(target.path) or _of_repository(target):
        return found
    names = _names(target)
    for pair in known.drafts_for(names):
        logger.info(
            "the draft is %s, known for %s (licence: %s)", pair.draft, pair.target, pair.licence
        )
        return find_draft(pair.draft, target, on_progress)
    where = f"in {target.path.parent}" + (f", in {target.named.repo}" if target.named else "")
    raise OptionError(
        f"no draft is known for {target.path.name}: none that fits lies {where}, and no known pair "
        f"is of {' or '.join(sorted(set(names)))}; name one with -d, or take -d lookup"
    )


def _beside(target: Path) -> Path | None:
    """A draft in the target's folder that by its metadata fits."""
    from llamaspec.runtime.describe import fits

    there = [path.name for path in target.parent.glob("*.gguf") if path.name != target.name]
    order = [*drafts(there), *sorted(set(ggufs(there)) - set(drafts(there)))]
    for name in order:
        path = target.with_name(name)
        if _says_dflash(path) and not fits(target, path):
            logger.info("the draft is %s, which lies beside the target", name)
            return path
    return None


def _of_repository(target: Target) -> Path | None:
    from llamaspec.runtime.describe import fits

    if target.named is None:
        return None
    listing = _listing(target.named)
    for name in drafts(listing.files)[:_TRIES]:
        path = hub.fetch(listing, name, target.named.revision)
        problems = fits(target.path, path)
        if not problems:
            logger.info("the draft is %s, of the target's repository", name)
            return path
        logger.info("%s does not fit: %s", name, problems[0])
    return None


def _says_dflash(path: Path) -> bool:
    # the architecture stands at a file's beginning; most neighbours need no more reading
    try:
        with path.open("rb") as file:
            return _ARCHITECTURE in file.read(_HEAD)
    except OSError:
        return False


def _names(target: Target) -> list[str]:
    from llamaspec.runtime.describe import describe

    names = [target.path.stem]
    if target.named is not None:
        names.append(target.named.repo)
    try:
        names.append(describe(target.path).name)
    except LlamaSpecError as error:
        raise ModelLoadError(str(error)) from None
    return names


def _in_folder(folder: Path) -> Path:
    there = [path.name for path in folder.iterdir()]
    if not ggufs(there) and _CONFIG in there:
        raise ModelLoadError(
            f"{folder}: is a checkpoint, not a GGUF; llamaspec convert-target makes one of it"
        )
    return folder / choose(str(folder), targets(there) or ggufs(there), "", TARGET_FIRST)


def _listing(name: Named) -> hub.Listing:
    try:
        return hub.list_files(name.repo, name.revision)
    except ModelLoadError as error:
        raise ModelLoadError(f"{error}; there is no such file or folder here either") from None


def _is_checkpoint(listing: hub.Listing) -> bool:
    return _CONFIG in listing.files and (
        listing.cached or any(name.endswith(_WEIGHTS) for name in listing.files)
    )


def _where(listing: hub.Listing) -> str:
    return listing.repo + (f" in {hub.cache_folder()} (the Hub is not reached)" * listing.cached)


def _no_gguf(name: Named, listing: hub.Listing, more: str = "") -> str:
    there = ", ".join(sorted(listing.files)[:8]) or "nothing"
    advice = ""
    if _is_checkpoint(listing) and not more:
        advice = "; it is a checkpoint: name a repository of its GGUFs, or llamaspec convert-target"
    return f"{_where(listing)}: has no GGUF{more}; it has {there}{advice}"
