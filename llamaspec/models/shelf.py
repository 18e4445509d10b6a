"""What models are here, which pairs are known, and what of it fits this machine."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llamaspec import demo
from llamaspec.errors import LlamaSpecError
from llamaspec.hub import cache_folder
from llamaspec.models import converted
from llamaspec.models.choose import ggufs, quantisation
from llamaspec.models.known import KnownPair, known_pairs
from llamaspec.models.memory import Verdict, estimated, judge, needed, target_bytes
from llamaspec.runtime.backend import Device
from llamaspec.runtime.describe import describe

logger = logging.getLogger("llamaspec.models")


@dataclass(frozen=True)
class Here:
    """A GGUF on this machine.

    name: what -m or -d take. kind: target, draft or other. needed: bytes when loaded. made_for: the
    target of a converted draft. stale: made by another version of the converter, used no more.
    """

    name: str
    path: Path
    kind: str
    quantisation: str
    size: int
    needed: int
    verdict: str
    device: str
    made_for: str = ""
    stale: bool = False


@dataclass(frozen=True)
class Known:
    """A known pair. sizes are estimates, 0 where not known. has_target, has_draft: downloaded."""

    target: str
    gguf: str
    draft: str
    kind: str
    target_size: int
    draft_size: int
    needed: int
    verdict: str
    device: str
    has_target: bool
    has_draft: bool
    source: str
    licence: str


def here(devices: Sequence[Device]) -> list[Here]:
    """The bundled pair, the Hub's cache and the converted drafts."""
    found = [
        *_described("(bundled)", demo.target_path(), devices),
        *_described("(bundled)", demo.draft_path(), devices),
    ]
    for repo, names in cached_files().items():
        for name in ggufs(names):
            path = names[name]
            wanted = quantisation(name) or name
            found += _described(f"{repo}:{wanted}", path, devices)
    for path, about in converted.kept():
        if about is None:
            found += _described(str(path), path, devices)
            continue
        kind = "" if about.outtype == converted.AS_PUBLISHED else f":{about.outtype}"
        stale = about.converter != converted.converter()
        found += _described(
            f"{about.source}{kind}", path, devices, made_for=about.target, stale=stale
        )
    return found


def known(devices: Sequence[Device]) -> list[Known]:
    """The registry's pairs, as this machine sees them."""
    there = cached_files()
    return [_known(pair, devices, there) for pair in known_pairs()]


def cached_files() -> dict[str, dict[str, Path]]:
    """The files in the Hub's cache: path by name, by repository."""
    from huggingface_hub import errors, scan_cache_dir

    try:
        repos = scan_cache_dir(cache_folder()).repos
    except (errors.CacheNotFound, OSError, ValueError):
        return {}
    found: dict[str, dict[str, Path]] = {}
    for repo in sorted(repos, key=lambda each: each.repo_id):
        if repo.repo_type != "model":
            continue
        files = found.setdefault(repo.repo_id, {})
        for revision in sorted(repo.revisions, key=lambda each: each.last_modified):
            for file in revision.files:
                files[file.file_path.relative_to(revision.snapshot_path).as_posix()] = (
                    file.file_path
                )
    return found


def _described(
    name: str,
    path: Path,
    devices: Sequence[Device],
    *,
    made_for: str = "",
    stale: bool = False,
) -> Iterator[Here]:
    try:
        found = describe(path)
        size = found.size_bytes
        loaded = needed(path, size)
    except LlamaSpecError as error:
        logger.info("%s is passed over: %s", name, error)
        return
    verdict = judge(loaded, devices)
    yield Here(
        name=name,
        path=path,
        kind=found.kind,
        quantisation=found.quantisation,
        size=size,
        needed=loaded,
        verdict=verdict.word,
        device=verdict.device,
        made_for=made_for,
        stale=stale,
    )


def _spoken(pair: KnownPair, verdict: Verdict | None) -> str:
    if verdict is None:
        return "size not known"
    return verdict.word if pair.draft_bytes else f"target {verdict.word}"


def _known(pair: KnownPair, devices: Sequence[Device], there: dict[str, dict[str, Path]]) -> Known:
    total = estimated(pair.parameters, pair.draft_bytes) if pair.parameters else 0
    verdict = judge(total, devices) if total else None
    return Known(
        target=pair.target,
        gguf=pair.gguf,
        draft=pair.draft,
        kind=pair.kind,
        target_size=target_bytes(pair.parameters),
        draft_size=pair.draft_bytes,
        needed=total,
        verdict=_spoken(pair, verdict),
        device=verdict.device if verdict else "",
        has_target=any(ggufs(files) for repo, files in there.items() if pair.means(repo)),
        has_draft=pair.draft in there,
        source=pair.source,
        licence=pair.licence,
    )
