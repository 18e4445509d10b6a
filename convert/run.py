"""`convert`: a checkpoint folder or an old GGUF to a draft that runs here and in llama.cpp."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llamaspec.convert.keys import Value, draft_keys, source_keys, typed
from llamaspec.convert.outtype import AUTO, OutType, read_outtype
from llamaspec.convert.plan import Plan
from llamaspec.convert.recognise import Wishes, make_plan, open_draft
from llamaspec.convert.repack import plan_repack
from llamaspec.convert.shown import one_line
from llamaspec.convert.target import Target, read_target
from llamaspec.convert.writer import Progress, plan_output, write
from llamaspec.errors import LlamaSpecError, ModelLoadError, OptionError
from llamaspec.runtime.describe import describe
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.quantize import Permit, quantize
from llamaspec.runtime.quantize_types import file_type, is_quantised
from llamaspec.runtime.staged import staged


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
    try:
        return _convert(job, on_progress)
    except LlamaSpecError as error:
        text = str(error)
        if one_line(text) != text:
            raise type(error)(one_line(text)) from None
        raise
    except OSError as error:
        where = error.filename or job.checkpoint
        raise ModelLoadError(f"{where}: cannot be read ({error.strerror or error})") from None


def _convert(job: Job, on_progress: Progress | None) -> Report:
    outtype = read_outtype(job.outtype)
    if outtype.native:
        file_type(outtype.name)  # before any work, whether there is such a type
    sources = [*_inputs(job.checkpoint), *_inputs(job.target)]
    with staged(job.output, overwrite=job.force, sources=sources) as part:
        target = read_target(job.target)
        if job.checkpoint.is_file():
            with GGUFFile.open(job.checkpoint) as file:
                plan = plan_repack(file, target, job.wishes)
                digests = {job.checkpoint.name: _sha256(job.checkpoint)}
                keys = _keys(job, plan, target, digests)
                _write(part, plan, (keys, outtype), on_progress)
        else:
            with open_draft(job.checkpoint, job.wishes.overrides) as source:
                plan = make_plan(source, target, job.wishes)
                keys = _keys(job, plan, target, source.digests())
                _write(part, plan, (keys, outtype), on_progress)
        types = _check_written(part, job, plan, target)
        size = part.stat().st_size
    return Report(job.output, plan, target, types, size)


def _inputs(path: Path) -> list[Path]:
    """What the output must not be; GGUFs beside a checkpoint are other conversions."""
    if not path.is_dir():
        return [path]
    return [found for found in path.iterdir() if found.suffix.lower() != ".gguf"]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(
    part: Path,
    plan: Plan,
    how: tuple[Mapping[str, Value], OutType],
    on_progress: Progress | None,
) -> None:
    keys, outtype = how
    output = plan_output(keys, plan.tensors, OutType(AUTO) if outtype.native else outtype)
    packed = sorted({kind for kind in output.types.values() if is_quantised(kind)})
    if outtype.native and packed:
        raise OptionError(
            f"outtype {outtype.name} is made by llama.cpp's quantiser, which starts from floats, "
            f"and the draft's source is quantised ({', '.join(packed)}); take auto or q8_0"
        )
    floats = part.with_suffix(".floats")
    try:
        write(floats if outtype.native else part, output, on_progress)
        if outtype.native:
            quantize(floats, part, outtype.name, permit=Permit(overwrite=True))
    except OSError as error:
        raise OptionError(f"the output cannot be written ({error.strerror or error})") from None
    finally:
        floats.unlink(missing_ok=True)


def _keys(job: Job, plan: Plan, target: Target, digests: Mapping[str, str]) -> dict[str, Value]:
    repository, revision = job.origin or (None, None)
    name = _utf8((repository or job.checkpoint.resolve().stem).rpartition("/")[2])
    general: dict[str, Any] = {"general.type": "model", "general.name": name}
    source = {
        "packaging": plan.packaging,
        "repository": repository,
        "revision": revision,
        "files": [_utf8(file) for file in digests],
        "sha256": list(digests.values()),
    }
    return {
        **{key: typed(value) for key, value in general.items()},
        **target.tokenizer,
        **draft_keys(plan.config),  # its mask replaces the tokenizer's
        **source_keys(source),
    }


def _utf8(name: str) -> str:
    """A file's name, which may be no text."""
    return name.encode(errors="replace").decode()


def _check_written(path: Path, job: Job, plan: Plan, target: Target) -> dict[str, int]:
    """Read the file back as a stranger would; returns bytes by GGUF type.

    Raises:
        ModelLoadError: the source has settings that make no GGUF that llama.cpp loads.
    """
    try:
        found = describe(path)
    except ModelLoadError as error:
        raise ModelLoadError(str(error).replace(str(path), str(job.checkpoint))) from None
    assert found.draft is not None
    wanted = (plan.config.taps, target.vocabulary, plan.config.block)
    assert (found.draft.taps, found.n_vocab, found.draft.block_size) == wanted
    return dict(found.tensor_bytes)
