"""Quantises a GGUF, target or draft, with llama.cpp's own quantiser."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from llamaspec.errors import LlamaSpecError, ModelLoadError
from llamaspec.options import LoadOptions
from llamaspec.runtime.description import FileDescription, read_description
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.gguf_types import TensorInfo
from llamaspec.runtime.quantize_process import Job, QuantizerFailedError, run_job
from llamaspec.runtime.quantize_types import file_type, is_quantised, kept_types
from llamaspec.runtime.staged import staged

Progress = Callable[[int, int, str], None]
"""Called with the tensors done, all tensors, and the name of the one that begins."""

_ALIGNMENT = 32
_HEADER_SLACK = 1 << 20


@dataclass(frozen=True, slots=True)
class Permit:
    """What `quantize` refuses to do unless it is told to."""

    overwrite: bool = False
    requantize: bool = False


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """What was written.

    Attributes:
        source: the file that was read, the first part of a split one.
        output: the file that was written, one file always.
        type_name: of the file as a whole.
        source_bytes: size of the source, all parts.
        output_bytes: size of the output.
        tensor_types: tensors of the output by type, the commonest first.
    """

    source: Path
    output: Path
    type_name: str
    source_bytes: int
    output_bytes: int
    tensor_types: Mapping[str, int]


def quantize(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    type_name: str,
    *,
    threads: int = 0,
    permit: Permit = Permit(),
    on_progress: Progress | None = None,
) -> QuantizeReport:
    """Write `source` in another type, with llama.cpp's rules for every tensor of a mixture.

    Of a draft, `fc` and the small projections of its heads stay at 16 bits in a quantised file;
    what llama.cpp never quantises, norms, biases and matrices of one row, keeps its type. The
    output appears under its name only when it is complete and has been read back.

    Args:
        source: a target or a draft; of a split model the first part, all become one file.
        output: the file to write.
        type_name: as llama-quantize names it, in any case.
        threads: 0 for the physical cores.
        permit: what else may be done.
        on_progress: called as each tensor begins, and at the end.

    Raises:
        OptionError: an unknown type, or an output that cannot be written.
        ModelLoadError: the source cannot be quantised.
        LlamaSpecError: there is too little space on the disk.
    """
    source, output = Path(source), Path(output)
    wanted = file_type(type_name)
    n_threads = LoadOptions(threads=threads).n_threads
    description, tensors, parts = _read(source)
    if not permit.requantize:
        _refuse_quantised(source, tensors)
    _check_tensors(source, tensors)
    kept = kept_types(tensors, wanted) if description.kind == "draft" else {}
    with staged(output, overwrite=permit.overwrite, sources=parts) as part:
        job = Job(os.fspath(source), os.fspath(part), wanted, n_threads, permit.requantize, kept)
        _run(job, source, output, on_progress)
        types = _read_back(part, tensors, description)
        size = part.stat().st_size
    if on_progress is not None:
        on_progress(len(tensors), len(tensors), "")
    return QuantizeReport(source, output, wanted, description.size_bytes, size, types)


def _read(source: Path) -> tuple[FileDescription, dict[str, TensorInfo], tuple[Path, ...]]:
    with GGUFFile.open(source) as file:
        description = read_description(file)
        if description.kind == "other":
            raise ModelLoadError(
                f"{source}: is a {file.architecture} file, neither a target nor a draft; "
                "llama.cpp's own llama-quantize may take it"
            )
        alignment = file.metadata.get("general.alignment", _ALIGNMENT)
        tensors = dict(file.tensors)
        for part in file.parts[1:]:
            with GGUFFile.open(part, first_part=False) as more:
                tensors |= more.tensors
        if alignment != _ALIGNMENT:
            raise ModelLoadError(
                f"{source}: general.alignment is {alignment}, llama.cpp's quantiser writes files "
                f"of {_ALIGNMENT} only; convert the model again"
            )
        return description, tensors, file.parts


def _refuse_quantised(source: Path, tensors: Mapping[str, TensorInfo]) -> None:
    found = Counter(info.type for info in tensors.values() if is_quantised(info.type))
    for name, count in found.most_common(1):
        raise ModelLoadError(
            f"{source}: is quantised already ({count} of its {len(tensors)} tensors are {name}), "
            "and loses more from being quantised again; take an F16, BF16 or F32 file, "
            "or give --requantize"
        )


def _check_tensors(source: Path, tensors: Mapping[str, TensorInfo]) -> None:
    # llama.cpp ends the process on these, or divides by zero
    for name, info in tensors.items():
        if len(info.shape) > 3 and info.shape[0] > 1:
            raise ModelLoadError(
                f"{source}: tensor {name!r} has the shape {info.shape}, llama.cpp quantises "
                "tensors of at most 3 dimensions"
            )
        if info.n_elements == 0:
            raise ModelLoadError(f"{source}: tensor {name!r} has no elements ({info.shape})")


def _run(job: Job, source: Path, output: Path, on_progress: Progress | None) -> None:
    def check_space(size: int) -> None:
        needed = size + _header_bytes(source)
        free = shutil.disk_usage(Path(job.output).parent).free
        if free < needed:
            raise LlamaSpecError(
                f"{output}: takes {needed / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB are free there"
            )

    try:
        run_job(job, on_size=check_space, on_tensor=on_progress or (lambda *_: None))
    except QuantizerFailedError as error:
        if "iostream" in str(error):
            raise LlamaSpecError(f"{output}: a write failed; is the disk full?") from None
        raise ModelLoadError(f"{source}: llama.cpp cannot quantise it: {error}") from None


def _header_bytes(source: Path) -> int:
    with GGUFFile.open(source) as file:
        return min((info.offset for info in file.tensors.values()), default=0) + _HEADER_SLACK


def _read_back(
    part: Path, tensors: Mapping[str, TensorInfo], before: FileDescription
) -> dict[str, int]:
    """Tensors by type. llama.cpp reports success when a write failed, on a full disk for one."""
    try:
        with GGUFFile.open(part) as file:
            after = read_description(file)
            same = _shapes(file.tensors) == _shapes(tensors)
            types = Counter(info.type for info in file.tensors.values())
    except ModelLoadError as error:
        problem = str(error).removeprefix(f"{part}: ")
        raise LlamaSpecError(
            f"llama.cpp left a damaged file ({problem}); is the disk full?"
        ) from None
    if not same or (after.kind, after.architecture) != (before.kind, before.architecture):
        raise LlamaSpecError(
            f"llama.cpp wrote {after.n_params} weights of a {after.architecture} {after.kind}, "
            f"the source has {before.n_params} of a {before.architecture} {before.kind}"
        )
    return dict(types.most_common())


def _shapes(tensors: Mapping[str, TensorInfo]) -> dict[str, tuple[int, ...]]:
    # llama.cpp drops leading dimensions of one row
    return {name: tuple(n for n in info.shape if n != 1) for name, info in tensors.items()}
