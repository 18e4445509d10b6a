"""`convert`: a checkpoint folder or an old GGUF to a draft that runs here and in llama.cpp."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llamaspec.convert.keys import Value, draft_keys, source_keys, typed
from llamaspec.convert.outtype import OutType, read_outtype
from llamaspec.convert.plan import Plan
from llamaspec.convert.recognise import Wishes, make_plan, open_draft
from llamaspec.convert.repack import plan_repack
from llamaspec.convert.target import Target, read_target
from llamaspec.convert.writer import Progress, check_output, new_file, plan_output, write
from llamaspec.errors import IncompatibleDraftError, ModelLoadError
from llamaspec.runtime.describe import describe
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.quantize import quantize


@dataclass(frozen=True)
class Job:
    """One conversion.

    Attributes:
        checkpoint: the draft's folder, or a GGUF of a vendor's or an older layout.
        target: the target's folder or GGUF.
        output: the GGUF to write.
        outtype: see `outtype`.
        wishes: see there.
        force: replace an existing output.
        origin: repository and revision, where they were downloaded.
    """

    checkpoint: Path
    target: Path
    output: Path
    outtype: str = "auto"
    wishes: Wishes = field(default_factory=Wishes)
    force: bool = False
    origin: tuple[str, str] | None = None


@dataclass(frozen=True)
class Report:
    """What a conversion did.

    Attributes:
        output: the file.
        plan: what was written.
        target: what it is for.
        types: bytes by GGUF type.
        size: of the file, in bytes.
    """

    output: Path
    plan: Plan
    target: Target
    types: Mapping[str, int]
    size: int


def convert(job: Job, on_progress: Progress | None = None) -> Report:
    """Convert a published draft to GGUF; the output gets its name when all of it is checked.

    Args:
        job: what to convert.
        on_progress: gets bytes written and bytes in all.

    Raises:
        OptionError: an output that exists, a type that does not.
        ModelLoadError: a checkpoint or target that is missing, damaged, or of no known kind.
        IncompatibleDraftError: draft and target do not fit.
    """
    check_output(job.output, job.force)
    outtype = read_outtype(job.outtype)
    target = read_target(job.target)
    if job.checkpoint.is_file():
        with GGUFFile.open(job.checkpoint) as file:
            plan = plan_repack(file, target, job.wishes)
            digests = {job.checkpoint.name: _sha256(job.checkpoint)}
            return _finish(job, (plan, target, digests), outtype, on_progress)
    with open_draft(job.checkpoint, job.wishes.overrides) as source:
        plan = make_plan(source, target, job.wishes)
        return _finish(job, (plan, target, source.digests()), outtype, on_progress)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _finish(
    job: Job,
    parts: tuple[Plan, Target, Mapping[str, str]],
    outtype: OutType,
    on_progress: Progress | None,
) -> Report:
    plan, target, digests = parts
    # llama.cpp's quantiser starts from floats, and takes 16 bits for what stays so
    first = OutType("auto") if outtype.native else outtype
    output = plan_output(_keys(job, plan, target, digests), plan.tensors, first)
    with new_file(job.output, job.force) as temporary:
        write(temporary, output, on_progress)
        if outtype.native:
            with new_file(temporary.with_suffix(".q"), force=True) as quantised:
                quantize(temporary, quantised, outtype.name)
            temporary.with_suffix(".q").replace(temporary)
        types = _check_written(temporary, plan, target)
        size = temporary.stat().st_size
    return Report(job.output, plan, target, types, size)


def _keys(
    job: Job, plan: Plan, target: Target, digests: Mapping[str, str]
) -> dict[str, Value]:
    repository, revision = job.origin or (None, None)
    name = (repository or job.checkpoint.resolve().stem).rpartition("/")[2]
    general: dict[str, Any] = {"general.type": "model", "general.name": name}
    source = {
        "packaging": plan.packaging,
        "repository": repository,
        "revision": revision,
        "files": list(digests),
        "sha256": list(digests.values()),
    }
    return {
        **{key: typed(value) for key, value in general.items()},
        **draft_keys(plan.config),
        **{key: value for key, value in target.tokenizer.items() if _kept(key)},
        "tokenizer.ggml.mask_token_id": typed(plan.config.mask),
        **source_keys(source),
    }


def _kept(key: str) -> bool:
    return key != "tokenizer.ggml.mask_token_id"


def _check_written(path: Path, plan: Plan, target: Target) -> dict[str, int]:
    """Read the file back as a stranger would."""
    found = describe(path)
    if found.draft is None:
        raise ModelLoadError(f"{path}: what was written is no draft")
    width = found.draft.feature_width
    if width != len(plan.config.taps) * target.width or found.n_vocab != target.vocabulary:
        raise IncompatibleDraftError(
            f"what was written takes features of width {width} and {found.n_vocab} tokens, the "
            f"target has {len(plan.config.taps) * target.width} and {target.vocabulary}"
        )
    return dict(found.tensor_bytes)
