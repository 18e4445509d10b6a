"""Build llamaspec's native part: ``python build.py``, and the hook behind ``pip install .``.

Both run `build`: take llama.cpp's sources, patch a copy, let CMake compile, place the results.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import runpy
import shlex
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # as a build hook, this file is loaded from elsewhere

from vendor import toolchain  # noqa: E402
from vendor.llama_source import (  # noqa: E402
    BuildError,
    Source,
    choose,
    patch_digest,
    patch_files,
    patched_tree,
)

PACKAGE = ROOT / "llamaspec"
NATIVE = PACKAGE / "native"
EXTENSION = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
RECORD = PACKAGE / "lib" / "build.json"
_VERSION = runpy.run_path(str(PACKAGE / "_version.py"))
VERSION: str = _VERSION["__version__"]
PINNED: str = _VERSION["LLAMA_CPP_COMMIT"]


@dataclass(frozen=True)
class Options:
    """What to build. The defaults are a CPU build for this machine."""

    cuda: bool = False
    cuda_arch: str = ""
    vulkan: bool = False
    metal: bool = False
    rpc: bool = True
    portable: bool = False
    tools: bool = False
    jobs: int = 0
    clean: bool = False
    source: Path | None = None
    cmake_args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The options resolved: the sources, where everything goes, and the digest of all inputs."""

    source: Source
    commit: str
    tree: Path
    folder: Path
    definitions: tuple[str, ...]
    inputs: str


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        hint = "see python build.py --help; for a wheel use pip wheel . or pyproject-build"
        self.exit(2, f"build.py: {message}; {hint}\n")


def parse(arguments: Sequence[str]) -> Options:
    """Options from LLAMASPEC_BUILD_FLAGS (pip passes no arguments), the arguments, CMAKE_ARGS."""
    parser = _Parser(prog="build.py", description="Build llamaspec's native part.")
    flag = parser.add_argument
    flag("--cuda", action="store_true", help="NVIDIA backend")
    flag("--cuda-arch", default="", metavar="LIST", help="compute capabilities, such as 80,90")
    flag("--vulkan", action="store_true", help="Vulkan backend")
    flag("--metal", action="store_true", help="Metal backend (macOS)")
    flag("--rpc", action=argparse.BooleanOptionalAction, default=True, help="RPC backend, server")
    flag("--portable", action="store_true", help="choose a CPU variant at run time")
    flag("--tools", action="store_true", help="also llama-server, -cli, -quantize, -bench ...")
    flag("--jobs", type=int, default=0, metavar="N", help="parallel compilers (default: all cores)")
    flag("--clean", action="store_true", help="discard earlier results first")
    flag("--source", type=Path, metavar="DIR", help="a llama.cpp tree of your own")
    from_env = shlex.split(os.environ.get("LLAMASPEC_BUILD_FLAGS", ""))
    values = parser.parse_args([*from_env, *arguments])
    values.cuda_arch = values.cuda_arch.replace(",", ";")
    if not re.fullmatch(r"([\w-]+(;[\w-]+)*)?", values.cuda_arch):
        parser.error(f"--cuda-arch {values.cuda_arch!r} is not a list such as 80,90")
    if values.cuda_arch and not values.cuda:
        parser.error("--cuda-arch needs --cuda")
    if values.metal and sys.platform != "darwin":
        parser.error("--metal needs macOS")
    level = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "")
    values.jobs = values.jobs or (int(level) if level.isdecimal() else 0)
    if values.jobs < 0:
        parser.error(f"--jobs {values.jobs} is negative")
    if values.source is None and (tree := os.environ.get("LLAMASPEC_LLAMA_CPP")):
        values.source = Path(tree)
    return Options(**vars(values), cmake_args=tuple(shlex.split(os.environ.get("CMAKE_ARGS", ""))))


def definitions(options: Options) -> tuple[str, ...]:
    """The -D arguments from the options. The user's CMAKE_ARGS stand last and so win."""
    switches = {
        "GGML_CUDA": options.cuda,
        "GGML_VULKAN": options.vulkan,
        "GGML_RPC": options.rpc,
        "LLAMASPEC_PORTABLE": options.portable,
        "LLAMASPEC_TOOLS": options.tools,
    }
    found = [f"-D{name}={'ON' if on else 'OFF'}" for name, on in switches.items()]
    if options.metal:
        found.append("-DGGML_METAL=ON")
    arch = options.cuda_arch
    if options.cuda and not arch and not options.portable:
        arch = toolchain.gpu_archs()
    if arch:
        found.append(f"-DCMAKE_CUDA_ARCHITECTURES={arch}")
    return (*found, *options.cmake_args)


def build_root() -> Path:
    """Where copies and objects live: build/ here, or the folder in LLAMASPEC_BUILD_DIR."""
    return Path(os.environ.get("LLAMASPEC_BUILD_DIR") or ROOT / "build").resolve()


def make_plan(options: Options) -> Plan:
    """Resolve the options. Reads the sources, but fetches and writes nothing."""
    source = choose(ROOT, options.source, PINNED)
    patches = patch_files(ROOT / "patches")
    key = f"{source.identity[:8]}-{patch_digest(patches)}"
    commit = source.commit
    if commit not in (PINNED, "unknown"):
        commit = f"custom-{commit}"
    wanted = definitions(options)
    shared = [a for a in wanted if not a.startswith("-DLLAMASPEC_TOOLS")]
    variables = ("CC", "CXX", "CUDACXX", "CFLAGS", "CXXFLAGS")
    compilers = [f"{name}={os.environ.get(name, '')}" for name in variables]
    # objects made for another processor, or by another compiler, are never taken up again
    cpu = "" if options.portable else toolchain.cpu_identity()
    variant = _digest(shared, compilers, [cpu])
    folder = build_root() / key / variant
    native = [f"{f.relative_to(NATIVE)}\0{f.read_text('utf-8')}" for f in _native_files()]
    return Plan(
        source=source,
        commit=f"{commit}+{patch_digest(patches)}",
        tree=build_root() / key / "llama.cpp",
        folder=folder,
        definitions=wanted,
        inputs=_digest([VERSION, key, variant, EXTENSION], native),
    )


def patched_source() -> Path:
    """The patched copy that the options compile, made where it is missing; for tests."""
    plan = make_plan(parse(()))
    patched_tree(plan.source, patch_files(ROOT / "patches"), plan.tree)
    return plan.tree


def _native_files() -> list[Path]:
    return sorted(f for f in NATIVE.rglob("*") if f.suffix in (".cpp", ".h", ".txt"))


def _digest(*groups: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(groups).encode()).hexdigest()[:12]


def build(options: Options) -> Plan:
    """Build what the options ask for and place it in llamaspec/, unless it is there already.

    Raises:
        BuildError: something is missing or a step failed; the text is for the user.
    """
    plan = make_plan(options)
    if options.clean:
        shutil.rmtree(plan.tree.parent, ignore_errors=True)
        remove_results()
    if is_current(plan, options.tools):
        print(f"llamaspec native part is up to date (llama.cpp {plan.commit[:12]})", flush=True)
        return plan
    started = time.monotonic()
    cmake, warnings = toolchain.preflight(options.cuda, options.vulkan)
    if plan.source.commit != PINNED:
        warnings.append(f"llama.cpp is {plan.source.commit}, pinned is {PINNED}")
    for warning in warnings:
        print(f"warning: {warning}", flush=True)
    with _locked(build_root()):
        if is_current(plan, options.tools):  # another process was at it
            return plan
        patched_tree(plan.source, patch_files(ROOT / "patches"), plan.tree)
        _compile(options, plan, cmake)
        _place(plan, options.tools)
    print(f"llamaspec native part built in {time.monotonic() - started:.0f} s", flush=True)
    return plan


def _compile(options: Options, plan: Plan, cmake: str) -> None:
    plan.folder.mkdir(parents=True, exist_ok=True)
    project = plan.folder / "CMakeLists.txt"
    text = (NATIVE / "CMakeLists.txt").read_text(encoding="utf-8")
    if not project.is_file() or project.read_text(encoding="utf-8") != text:
        project.write_text(text, encoding="utf-8")
    cuda_definitions, cuda_env = toolchain.cuda_parts() if options.cuda else ((), {})
    objects = plan.folder / "cmake"
    run = toolchain.Runner(plan.folder / "build.log", os.environ | cuda_env)
    values = {
        "Python_EXECUTABLE": sys.executable,
        "LLAMASPEC_SOURCE": plan.tree,
        "LLAMASPEC_NATIVE": NATIVE,
        "LLAMASPEC_VERSION": VERSION,
        "LLAMASPEC_COMMIT": plan.commit,
    }
    given = [*(f"-D{name}={value}" for name, value in values.items()), *cuda_definitions]
    where = ["-S", str(plan.folder), "-B", str(objects), *toolchain.generator(objects)]
    try:
        run("configure", [cmake, *where, *given, *plan.definitions])
    except BuildError:
        # what CMake remembers of a failure would outlive its cause
        (objects / "CMakeCache.txt").unlink(missing_ok=True)
        raise
    jobs = str(options.jobs or toolchain.cores())
    run("compile", [cmake, "--build", str(objects), "--config", "Release", "--parallel", jobs])
    shutil.rmtree(plan.folder / "stage", ignore_errors=True)
    for component in ("files", "tools") if options.tools else ("files",):
        install = [cmake, "--install", str(objects), "--config", "Release"]
        where = ["--component", component, "--prefix", str(plan.folder / "stage" / component)]
        run(f"install {component}", [*install, *where])


def _place(plan: Plan, tools: bool) -> None:
    """Move the staged files in, each in one step: a running process keeps what it has mapped."""
    placed: dict[str, list[str]] = {"files": [], "tools": []}
    for kind in ("files", "tools") if tools else ("files",):
        stage = plan.folder / "stage" / kind
        for file in sorted(f for f in stage.rglob("*") if not f.is_dir()):
            target = PACKAGE / file.relative_to(stage)
            target.parent.mkdir(exist_ok=True)
            fresh = target.with_name(f".{target.name}.new")
            shutil.copy2(file, fresh, follow_symlinks=False)
            fresh.replace(target)
            placed[kind].append(target.relative_to(PACKAGE).as_posix())
    if EXTENSION not in placed["files"]:
        raise BuildError(f"CMake installed no {EXTENSION}; the full log is {plan.folder}/build.log")
    for file in (*(PACKAGE / "lib").glob("*"), *(PACKAGE / "bin").glob("*")):
        if file.relative_to(PACKAGE).as_posix() not in placed["files"] + placed["tools"]:
            file.unlink()
    plain = [d for d in plan.definitions if os.sep not in d]
    record = {"inputs": plan.inputs, "commit": plan.commit, "definitions": plain}
    RECORD.write_text(json.dumps(record | placed, indent=1) + "\n", encoding="utf-8")


def read_record() -> dict[str, Any]:
    """What the last build placed in llamaspec/; empty where there was none."""
    try:
        found = json.loads(RECORD.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_current(plan: Plan, tools: bool) -> bool:
    """Whether llamaspec/ holds what the plan would build."""
    record = read_record()
    names = [*record.get("files", ()), *(record.get("tools", ()) if tools else ())]
    if record.get("inputs") != plan.inputs or (tools and not record.get("tools")):
        return False
    return all((PACKAGE / name).exists() for name in names)


def remove_results() -> None:
    """Remove what a build placed in llamaspec/."""
    for folder in ("lib", "bin"):
        shutil.rmtree(PACKAGE / folder, ignore_errors=True)
    for extension in (*PACKAGE.glob("_native*.so"), *PACKAGE.glob("_native*.pyd")):
        extension.unlink()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        with contextlib.suppress(ImportError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: 0 built, 1 failed, 2 wrong arguments."""
    try:
        build(parse(sys.argv[1:] if arguments is None else arguments))
    except BuildError as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:
    pass
else:

    class NativeBuildHook(BuildHookInterface[Any]):
        """Runs `build` for wheels and editable installs, and ships what it placed."""

        def dependencies(self) -> list[str]:
            """A cmake and a pip from their wheels, only where this machine has none."""
            return toolchain.build_requirements()

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Build, then mark the wheel as native."""
            try:
                options = parse(())
                build(options)
            except BuildError as error:
                raise SystemExit(f"build.py: {error}") from None
            record = read_record()
            names = [*record["files"], *(record["tools"] if options.tools else ())]
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["artifacts"] += [f"llamaspec/{name}" for name in (*names, "lib/build.json")]


if __name__ == "__main__":
    raise SystemExit(main())
