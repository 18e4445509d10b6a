"""Model references: a path on this machine, or hf://owner/repo/file.gguf on the Hub."""

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path

from llamaspec.errors import ModelLoadError, OptionError

SCHEME = "hf://"
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


def _download(repo: str, name: str, revision: str | None, reference: str) -> Path:
    from huggingface_hub import hf_hub_download

    with _told(reference, repo, revision, name), _quiet_unless_terminal():
        return Path(hf_hub_download(repo, name, revision=revision))


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
            "the Hub cannot be reached (or HF_HUB_OFFLINE is set) and the file is not cached; "
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
