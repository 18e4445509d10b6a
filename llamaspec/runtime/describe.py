"""Says what GGUF files are, and refuses files and pairs that cannot run, in one line each."""

from os import PathLike

from llamaspec.errors import IncompatibleDraftError, LlamaSpecError, ModelLoadError
from llamaspec.runtime.description import DraftDescription, FileDescription, read_description
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.pairing import (
    NO_LAYER_INPUT_ARCHITECTURES,
    RECURRENT_ARCHITECTURES,
    draft_problems,
    pair_notes,
    pair_problems,
    target_problems,
)

__all__ = [
    "NO_LAYER_INPUT_ARCHITECTURES",
    "RECURRENT_ARCHITECTURES",
    "DraftDescription",
    "FileDescription",
    "check_pair",
    "check_target",
    "describe",
    "fits",
    "pair_notes",
    "pair_problems",
]


def describe(path: str | PathLike[str]) -> FileDescription:
    """Read a GGUF's header and say what it is.

    Raises:
        ModelLoadError: unreadable, malformed, or with values that llama.cpp would abort on.
    """
    with GGUFFile.open(path) as file:
        return read_description(file)


def check_target(target: FileDescription) -> None:
    """Raise ModelLoadError unless the file is a model that continues text by itself."""
    for problem in target_problems(target):
        raise ModelLoadError(problem)


def check_pair(target: FileDescription, draft: FileDescription) -> None:
    """Raise unless the draft can speculate for the target.

    Args:
        target: the model.
        draft: the block draft.

    Raises:
        ModelLoadError: one of the two is not of its kind.
        IncompatibleDraftError: they do not fit; names the two values, and counts further reasons.
    """
    for problem in (*target_problems(target), *draft_problems(draft)):
        raise ModelLoadError(problem)
    problems = pair_problems(target, draft)
    if problems:
        more = f" (and {len(problems) - 1} more: llamaspec inspect lists them)"
        raise IncompatibleDraftError(problems[0] + more * (len(problems) > 1))


def fits(target_path: str | PathLike[str], draft_path: str | PathLike[str]) -> list[str]:
    """Every reason why two files cannot run together, unreadable included; [] when they fit."""
    try:
        return pair_problems(describe(target_path), describe(draft_path))
    except LlamaSpecError as error:
        return [str(error)]
