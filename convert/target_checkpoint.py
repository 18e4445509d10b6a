"""A target's checkpoint to a GGUF, with llama.cpp's own converter.

The converter is Python beside llama.cpp's sources and needs torch, so it runs in another process,
with an interpreter that has it. Code that a checkpoint brings along (`auto_map`) is never run.
"""

import json
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from llamaspec import _version
from llamaspec.errors import LlamaSpecError, ModelLoadError, OptionError
from llamaspec.runtime.child import ended_after
from llamaspec.runtime.describe import describe
from llamaspec.runtime.description import FileDescription
from llamaspec.runtime.staged import staged

OUTTYPES = ("auto", "f32", "f16", "bf16", "q8_0")
_CONVERTER = "convert_hf_to_gguf.py"
_REQUIREMENTS = "requirements/requirements-convert_hf_to_gguf.txt"
_WORKER = Path(__file__).resolve().with_name("target_worker.py")
_PACKAGE = Path(_version.__file__).resolve().parent
# what the converter imports, and the requirement that brings it
_MODULES = {
    "torch": "torch",
    "transformers": "transformers",
    "sentencepiece": "sentencepiece",
    "numpy": "numpy",
    "yaml": "gguf",
    "tqdm": "gguf",
}
_PROBE = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; from importlib.util import find_spec; "
    "print('missing:', *[name for name in sys.argv[1:] if find_spec(name) is None])"
)
_TELLING = re.compile(r"(?:ERROR:[^:]*:|[\w.]*(?:Error|Exception|Exit)\b)")
_KEPT_LINES = 200


def convert_target(
    source: Path,
    output: Path,
    *,
    outtype: str = "auto",
    python: Path | None = None,
    overwrite: bool = False,
    on_line: Callable[[str], None] | None = None,
) -> FileDescription:
    """Convert a checkpoint of safetensors with llama.cpp's converter, and say what came out.

    The output appears under its name only when it is complete and has been read back.

    Args:
        source: folder with `config.json`, the weights and the tokenizer.
        output: the GGUF to write.
        outtype: f32, f16, bf16, q8_0, or auto for the 16-bit type that is nearest to the weights.
        python: interpreter with torch and transformers; this one where it is None.
        overwrite: `output` may exist.
        on_line: called with every line that the converter prints.

    Raises:
        OptionError: an argument cannot be used.
        ModelLoadError: the checkpoint cannot be converted; the text has the converter's reason.
        LlamaSpecError: there is no converter, or the interpreter lacks what it needs.
    """
    if outtype not in OUTTYPES:
        raise OptionError(
            f"outtype is {outtype!r}; llama.cpp's converter writes {', '.join(OUTTYPES)}, "
            "`llamaspec quantize` makes other types of them"
        )
    _check_checkpoint(source)
    tree = find_tree()
    interpreter = os.fspath(python or sys.executable)
    _check_interpreter(interpreter, tree)
    with staged(output, overwrite=overwrite) as part:
        words = [os.fspath(source.resolve()), "--outfile", os.fspath(part), "--outtype", outtype]
        command = [interpreter, os.fspath(_WORKER), os.fspath(tree), os.fspath(part), *words]
        _convert(command, source, on_line)
        made = describe(part)
        if made.kind != "target":
            raise ModelLoadError(
                f"{source}: llama.cpp's converter made a {made.architecture} file of it, "
                "which is no target"
            )
    return replace(made, path=output)


def find_tree() -> Path:
    """llama.cpp's sources with the converter in them.

    In order: the folder in LLAMASPEC_LLAMA_CPP; in a checkout, the patched copy that the last build
    compiled, and the submodule. An installed package has none.

    Raises:
        LlamaSpecError: there is no such folder.
    """
    if given := os.environ.get("LLAMASPEC_LLAMA_CPP"):
        if not (Path(given) / _CONVERTER).is_file():
            raise LlamaSpecError(f"LLAMASPEC_LLAMA_CPP is {given}, which has no {_CONVERTER}")
        return Path(given).resolve()
    for tree in _trees_of_checkout():
        if (tree / _CONVERTER).is_file():
            return tree.resolve()
    commit = _version.LLAMA_CPP_COMMIT[:12]
    raise LlamaSpecError(
        f"llama.cpp's {_CONVERTER} is not here; set LLAMASPEC_LLAMA_CPP to the folder of "
        f"llama.cpp's sources, best at commit {commit}"
    )


def _trees_of_checkout() -> Iterator[Path]:
    root = _PACKAGE.parent
    if not (root / "build.py").is_file():
        return
    with suppress(OSError, ValueError, KeyError):
        record = json.loads((_PACKAGE / "lib" / "build.json").read_text("utf-8"))
        patches = str(record["commit"]).rpartition("+")[2]
        builds = Path(os.environ.get("LLAMASPEC_BUILD_DIR") or root / "build")
        yield from sorted(builds.glob(f"*-{patches}/llama.cpp"))
    yield root / "vendor" / "llama.cpp"


def _check_checkpoint(source: Path) -> None:
    config = source / "config.json"
    if not source.is_dir():
        problem = "is not a folder" if source.exists() else "there is no such folder"
        raise ModelLoadError(f"{source}: {problem}; give a checkpoint's, with its config.json")
    try:
        found = json.loads(config.read_text("utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{source}: has no config.json, it is not a checkpoint") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{config}: cannot be read ({error})") from None
    names = found.get("architectures") if isinstance(found, dict) else None
    for name in names if isinstance(names, list) else ():
        if re.search("dspark|dflash", str(name), re.IGNORECASE):
            raise ModelLoadError(f"{source}: is a draft ({name}); use `llamaspec convert` for it")


def _check_interpreter(interpreter: str, tree: Path) -> None:
    """Refuse an interpreter that lacks what the converter imports, and say how to get it."""
    try:
        done = subprocess.run(
            [interpreter, "-c", _PROBE, *_MODULES], capture_output=True, text=True, check=False
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"python is {interpreter!r}, which cannot be run ({reason})") from None
    head, *missing = done.stdout.split() or [""]
    if done.returncode or head != "missing:":
        raise OptionError(f"python is {interpreter!r}, which is not a Python interpreter")
    if missing:
        wanted = _requirements(tree / _REQUIREMENTS)
        names = dict.fromkeys(_MODULES[module] for module in missing)
        packages = " ".join(f"'{wanted.get(name, name)}'" for name in names)
        raise LlamaSpecError(
            f"llama.cpp's converter needs {', '.join(missing)}, which {interpreter} lacks; "
            f"choose another interpreter with --python, or run: "
            f"{interpreter} -m pip install {packages}"
        )


def _requirements(file: Path) -> dict[str, str]:
    """Requirement by package name, of a requirements file and those it includes."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in file.read_text("utf-8").splitlines():
            text = line.partition("#")[0].strip()
            if text.startswith("-r "):
                found |= _requirements(file.parent / text[3:].strip())
            elif name := re.match(r"[A-Za-z0-9][\w.-]*", text):
                found[name[0].lower()] = text
    return found


def _convert(command: list[str], source: Path, on_line: Callable[[str], None] | None) -> None:
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    ended = False
    with _child(command) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if text := line.rstrip():
                last.append(text)
                ended |= text.startswith("Traceback")  # of what follows, one line is for the user
                if on_line is not None and not ended:
                    on_line(text)
        code = child.wait()
    if code:
        raise ModelLoadError(f"{source}: llama.cpp's converter failed: {_reason(last, code)}")


@contextmanager
def _child(command: list[str]) -> "Iterator[subprocess.Popen[str]]":
    env = {name: value for name, value in os.environ.items() if name != "NO_LOCAL_GGUF"}
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    # a session of its own: Ctrl-C is for this process, which then ends the child
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env=env | offline | {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"},
        start_new_session=True,
    )
    with ended_after(child):
        yield child


def _reason(lines: Iterable[str], code: int) -> str:
    found = [line for line in lines if not line.startswith((" ", "Traceback"))]
    if any("trust_remote_code" in line for line in found):
        return "it can only be read with Python code of its own, which llamaspec never runs"
    told = [line for line in found if _TELLING.match(line)] or found or [f"exit code {code}"]
    return re.sub(r"^ERROR:[^:]*:\s*", "", told[-1])
