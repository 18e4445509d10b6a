"""Model references: a path on this machine, or hf://owner/repo/file.gguf on the Hub."""

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from llamaspec.errors import ModelLoadError, OptionError

logger = logging.getLogger("llamaspec.models")

SCHEME = "hf://"
_SECONDS = 20.0
_REFERENCE = re.compile(
    r"hf://(?P<repo>[^/@]+/[^/@]+)/(?P<file>[^@]+\.gguf)(?:@(?P<revision>[^@]+))?", re.IGNORECASE
)
_REPOSITORY = re.compile(r"(?:hf://)?(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^@]+))?")
_PART = re.compile(r"(?P<prefix>.*)-00001-of-(?P<count>\d{5})\.gguf")


def resolve(reference: str | PathLike[str]) -> Path:
    """The local file of a reference, downloaded into the Hub's cache where it is a remote one.

    Args:
        reference: a path, taken as it is, or `hf://owner/repo/path/to/file.gguf[@revision]`. Of a
            split model name the first part; the others are fetched with it.

    Raises:
        OptionError: an hf:// reference of another form.
        ModelLoadError: no such repository, revision or file, no access to it, or no network.
    """
    text = fspath(reference)
    if not text.startswith(SCHEME):
        return Path(text)
    match = _REFERENCE.fullmatch(text)
    if match is None or ".." in match["file"].split("/"):
        raise OptionError(f"{text}: not of the form hf://owner/repo/path/to/file.gguf[@revision]")
    first, *_ = (
        _download(match["repo"], name, match["revision"], text) for name in _parts(match["file"])
    )
    return first


def _parts(name: str) -> list[str]:
    match = _PART.fullmatch(name)
    if match is None:
        return [name]
    prefix, count = match["prefix"], match["count"]
    return [f"{prefix}-{number:05d}-of-{count}.gguf" for number in range(1, int(count) + 1)]


def is_repository(reference: str) -> bool:
    """Whether a reference names a repository of the Hub, and nothing on this machine."""
    named = _REPOSITORY.fullmatch(reference) is not None
    return named and (reference.startswith(SCHEME) or not Path(reference).exists())


@dataclass(frozen=True)
class Listing:
    """The files of a repository at a commit: sizes by name, 0 where the Hub does not say.

    cached: the Hub could not be asked, and these are the files that are in its cache here.
    """

    repo: str
    commit: str
    files: dict[str, int]
    cached: bool = False


def list_files(repo: str, revision: str | None = None) -> Listing:
    """What a repository holds; where the Hub cannot be reached, what the cache has of it.

    Raises:
        ModelLoadError: no such repository or revision, no access to it, or neither network nor
            cache.
    """
    from huggingface_hub import HfApi, errors

    refused = (
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
        errors.HFValidationError,
    )
    with _told(repo, repo, revision), _quiet_unless_terminal():
        try:
            found = HfApi().model_info(
                repo, revision=revision, files_metadata=True, timeout=_SECONDS
            )
        except refused:
            raise
        except Exception as error:  # whatever the HTTP client of the installed version raises
            kept = _cached(repo, revision)
            if kept is None:
                raise errors.LocalEntryNotFoundError(_line(error)) from None
            logger.info("%s: the Hub cannot be reached; using what is cached", repo)
            return kept
    files = {file.rfilename: file.size or 0 for file in found.siblings or ()}
    return Listing(repo, found.sha or "", files)


def _cached(repo: str, revision: str | None) -> Listing | None:
    from huggingface_hub import errors, snapshot_download

    try:
        # no pattern: it is asked for the folder only, and any part of it will do
        folder = Path(
            snapshot_download(repo, revision=revision, local_files_only=True, allow_patterns=[])
        )
    except (errors.LocalEntryNotFoundError, OSError):
        return None
    names = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in names}
    return Listing(repo, folder.name, files, cached=True)


def fetch(listing: Listing, name: str, revision: str | None = None) -> Path:
    """One file of a listing, or all parts of a split model by the name of the first; of one that
    stands for the cache nothing is asked of the Hub, which would only be waited for once more.

    Raises ModelLoadError as `resolve` does.
    """
    repo, text = listing.repo, f"{listing.repo}:{name}"
    first, *_ = (
        _download(repo, part, revision, text, local=listing.cached) for part in _parts(name)
    )
    return first


def cache_folder() -> Path:
    """Where the Hub's client keeps what it downloads."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def fetch_files(reference: str, revision: str | None, patterns: list[str]) -> tuple[Path, str, str]:
    """Download some files of a repository into the Hub's cache; broken downloads are resumed.

    Args:
        reference: `owner/repo` or `hf://owner/repo`, either with `@revision` at its end.
        revision: branch, tag or commit; None for what the reference says, or else main.
        patterns: names of files, with wildcards; files in folders are left out.

    Returns:
        The folder that holds them, the repository, and the commit.

    Raises:
        ModelLoadError: no such repository or revision, no access to it, or no network.
    """
    match = _REPOSITORY.fullmatch(reference)
    if match is None:
        raise OptionError(f"{reference}: not of the form owner/repo")
    revision = revision or match["revision"]
    from huggingface_hub import snapshot_download

    with _told(reference, match["repo"], revision), _quiet_unless_terminal():
        folder = snapshot_download(
            match["repo"], revision=revision, allow_patterns=patterns, ignore_patterns=["*/*"]
        )
    return Path(folder), match["repo"], Path(folder).name


def fetch_dataset(repository: str, patterns: list[str]) -> Path:
    """Download the files of a data set that match, folders included; the folder that holds them.

    Raises ModelLoadError as `fetch_files` does.
    """
    from huggingface_hub import snapshot_download

    with _told(f"datasets/{repository}", repository, None), _quiet_unless_terminal():
        return Path(snapshot_download(repository, repo_type="dataset", allow_patterns=patterns))


def _download(
    repo: str, name: str, revision: str | None, reference: str, *, local: bool = False
) -> Path:
    from huggingface_hub import hf_hub_download

    with _told(reference, repo, revision, name), _quiet_unless_terminal():
        return Path(hf_hub_download(repo, name, revision=revision, local_files_only=local))


@contextmanager
def _told(
    reference: str, repo: str, revision: str | None, name: str | None = None
) -> Iterator[None]:
    """Turn the client's errors into one line."""
    from huggingface_hub import errors

    where = f"{repo} at {revision}" if revision else repo
    try:
        yield
        return
    except errors.GatedRepoError:
        problem = f"{repo} is gated: accept its terms on its page, then log in with `hf auth login`"
    except errors.RepositoryNotFoundError:
        problem = (
            f"there is no repository {repo}, or it is private: then log in with `hf auth login`"
        )
    except errors.RevisionNotFoundError:
        problem = f"{repo} has no revision {revision or 'main'}"
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        problem = (
            f"the Hub cannot be reached (or HF_HUB_OFFLINE is set) and "
            f"{name or 'the repository'} is not cached in {cache_folder()}; "
            "check the network, or give the path of a file"
        )
    except errors.EntryNotFoundError:
        problem = f"{where} has no file {name}"
    except errors.HFValidationError as error:
        raise OptionError(f"{reference}: {_line(error)}") from None
    except Exception as error:  # whatever the HTTP client of the installed version raises
        problem = f"the download failed: {type(error).__name__}: {_line(error)}"
    raise ModelLoadError(f"{reference}: {problem}")


@contextmanager
def _quiet_unless_terminal() -> Iterator[None]:
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    silence = not sys.stderr.isatty() and not are_progress_bars_disabled()
    if silence:
        disable_progress_bars()
    # it tells of every retry, and our one line says how it ended
    told, level = logging.getLogger("huggingface_hub"), logging.getLogger("huggingface_hub").level
    told.setLevel(logging.ERROR)
    try:
        yield
    finally:
        told.setLevel(level)
        if silence:
            enable_progress_bars()


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
