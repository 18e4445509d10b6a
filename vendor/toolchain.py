"""The programs that a build needs: what is missing, how to run them, and CUDA parts from wheels."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from vendor.llama_source import BuildError, cache_dir, pip_download

CMAKE_MINIMUM = (3, 21)
TAIL = 25
ON_DEBIAN = bool(shutil.which("apt-get"))
ON_MAC = sys.platform == "darwin"


def cores() -> int:
    """The processors that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_identity() -> str:
    """What -march=native depends on."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return f"{platform.machine()} {' '.join(sorted(found[1].split())) if found else ''}"


def find_cmake() -> str | None:
    """A working cmake that is new enough, by preference one that outlives pip's isolated build."""
    candidates = sorted(_on_path("cmake"), key=_is_passing)
    return next((c for c in candidates if (_version(c) or (0,)) >= CMAKE_MINIMUM), None)


def build_requirements() -> list[str]:
    """What a pip build has to bring because this machine lacks it."""
    wanted = [] if find_cmake() else ["cmake>=3.21"]
    has_pip = importlib.util.find_spec("pip") or shutil.which("pip")
    return wanted if has_pip else [*wanted, "pip"]


def generator(objects: Path) -> list[str]:
    """CMake's generator arguments. A folder keeps the one it began with."""
    ninja = next((n for n in _on_path("ninja") if not _is_passing(n) and _version(n)), None)
    began_with_make = (objects / "Makefile").is_file()
    if ninja and not began_with_make:
        return ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    if sys.platform == "win32":
        return []
    return ["-G", "Unix Makefiles", f"-DCMAKE_MAKE_PROGRAM={shutil.which('make') or 'make'}"]


def _on_path(program: str) -> list[str]:
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = (shutil.which(program, path=folder) for folder in folders if folder)
    return list(dict.fromkeys(path for path in found if path))


def _is_passing(program: str) -> bool:
    # the isolated environment of a pip build is deleted, while the CMake cache stays
    return "pip-build-env" in program or Path(tempfile.gettempdir()) in Path(program).parents


def _version(program: str) -> tuple[int, ...] | None:
    text = _output([program, "--version"])
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""


def preflight(cuda: bool, vulkan: bool) -> tuple[str, list[str]]:
    """Check for everything that a build needs before it starts. Returns cmake's path and warnings.

    Raises:
        BuildError: names all that is missing at once, each with a way to get it.
    """
    missing = list(_missing_basics())
    if cuda and not shutil.which("nvcc"):
        missing.append("nvcc, for --cuda: install NVIDIA's CUDA toolkit and put its bin/ on PATH")
    if vulkan and not shutil.which("glslc"):
        missing.append(f"glslc, for --vulkan: {_install('glslc', 'shaderc')}")
    if vulkan and not _has_header("vulkan/vulkan.h"):
        missing.append(
            f"Vulkan headers, for --vulkan: {_install('libvulkan-dev', 'vulkan-headers')}"
        )
    cmake = find_cmake()
    if missing or cmake is None:
        raise BuildError("\n  - ".join(["cannot build, these are missing:", *missing]))
    return cmake, list(_driver_warnings()) if cuda else []


def _missing_basics() -> Iterator[str]:
    compilers = (("C", "CC", "cc gcc clang"), ("C++", "CXX", "c++ g++ clang++"))
    for language, variable, names in compilers:
        own = os.environ.get(variable, "").split()
        if sys.platform != "win32" and not any(map(shutil.which, own[:1] or names.split())):
            yield f"a {language} compiler: {_install('build-essential', None)}"
    if find_cmake() is None:
        yield f"cmake 3.21 or newer: {_install('cmake', 'cmake')}, or pip install cmake"
    if sys.platform != "win32" and not (shutil.which("make") or shutil.which("ninja")):
        yield f"make or ninja: {_install('make', 'ninja')}"
    if not (shutil.which("git") or shutil.which("patch")):
        yield f"git or patch: {_install('patch', 'gpatch')}"
    headers = [sysconfig.get_path(name) for name in ("include", "platinclude")]
    if not any((Path(folder) / "Python.h").is_file() for folder in headers):
        yield f"Python's headers: {_install('python3-dev', 'python')}"
    try:
        found = tuple(map(int, metadata.version("cffi").split(".")[:2]))
    except (metadata.PackageNotFoundError, ValueError):
        found = (0, 0)
    if found < (2, 1):
        yield "cffi 2.1 or newer: pip install 'cffi>=2.1' (or let pip build: pip install -e .)"


def _install(debian: str, brew: str | None) -> str:
    if ON_MAC:
        return f"brew install {brew}" if brew else "xcode-select --install"
    return f"apt-get install {debian}" if ON_DEBIAN else f"install {debian} from your system"


def _has_header(name: str) -> bool:
    own = [f"{os.environ[k]}/include" for k in ("VULKAN_SDK", "VK_SDK_PATH") if os.environ.get(k)]
    folders = [*own, "/usr/include", "/usr/local/include", "/opt/homebrew/include"]
    return any((Path(folder) / name).is_file() for folder in folders)


def _driver_warnings() -> Iterator[str]:
    driver = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", _output(["nvidia-smi"]))
    toolkit = re.search(r"release (\d+)\.(\d+)", _output(["nvcc", "--version"]))
    if driver and toolkit and tuple(map(int, driver.groups())) < tuple(map(int, toolkit.groups())):
        yield (
            f"the NVIDIA driver serves CUDA {'.'.join(driver.groups())}, the toolkit is "
            f"{'.'.join(toolkit.groups())}: update the driver, or use an older toolkit"
        )


def gpu_archs() -> str:
    """The compute capabilities of the GPUs here, as CMake wants them; empty where there is none."""
    text = _output(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"])
    return ";".join(sorted({cap.replace(".", "") for cap in re.findall(r"^\d+\.\d$", text, re.M)}))


def cuda_parts() -> tuple[list[str], dict[str, str]]:
    """Definitions and variables that make a bare CUDA compiler enough: cuBLAS from its wheel."""
    top = _toolkit()
    places = [top, *top.glob("targets/*"), Path("/usr"), *Path("/usr/lib").glob("*-linux-gnu")]
    named = {part: _any(places, part) for part in ("cublas_v2.h", "libcublas.so", "libcuda.so")}
    found: list[str] = []
    env: dict[str, str] = {}
    if not named["libcuda.so"]:
        print("no CUDA driver library here: building without VMM", flush=True)
        found.append("-DGGML_CUDA_NO_VMM=ON")
    if not (named["cublas_v2.h"] and named["libcublas.so"]):
        folder = _cublas_from_wheel()
        library = {f.name.split(".so")[0]: f for f in folder.glob("lib/libcublas*.so.*")}
        found.append(f"-DCUDA_cublas_LIBRARY={library['libcublas']}")
        found.append(f"-DCUDA_cublasLt_LIBRARY={library['libcublasLt']}")
        env["CPATH"] = os.pathsep.join(
            filter(None, [str(folder / "include"), os.environ.get("CPATH")])
        )
    return found, env


def _toolkit() -> Path:
    # nvcc on PATH may be a script elsewhere; its own report names the toolkit
    with tempfile.TemporaryDirectory() as scratch:
        probe = Path(scratch) / "probe.cu"
        probe.touch()
        report = _output(["nvcc", "--dryrun", "-c", str(probe), "-o", f"{scratch}/probe.o"])
    top = re.search(r"^#\$ TOP=(.+)$", report, re.MULTILINE)
    nvcc = shutil.which("nvcc") or "nvcc"
    return Path(top[1].strip()).resolve() if top else Path(nvcc).resolve().parents[1]


def _any(places: Sequence[Path], name: str) -> bool:
    folders = ("include", "lib64", "lib", "lib64/stubs", "lib/stubs", ".")
    return any((place / folder / name).exists() for place in places for folder in folders)


def _cublas_from_wheel() -> Path:
    release = re.search(r"release (\d+)\.", _output(["nvcc", "--version"]))
    major = int(release[1]) if release else 13
    package = f"nvidia-cublas>=13,<{major + 1}" if major >= 13 else f"nvidia-cublas-cu{major}"
    folder = cache_dir() / f"cublas-{major}"
    if not folder.is_dir():
        print(f"the CUDA toolkit has no cuBLAS: fetching {package} with pip ...", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            pip_download(["--only-binary", ":all:", package], Path(scratch))
            unpacked = Path(scratch) / "wheel"
            with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
                wheel.extractall(unpacked)
            unpacked.rename(folder)
    header = next(folder.rglob("cublas_v2.h"), None)
    if header is None:
        raise BuildError(f"{folder} holds no cublas_v2.h; remove that folder and try again")
    return header.parents[1]


class Runner:
    """Runs the steps of a build: everything to one log, a condensed progress to the reader."""

    def __init__(self, log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        # under an outer make its job server is out of reach; progress reads ninja's own status
        self.env = {
            k: v for k, v in env.items() if k not in ("MAKEFLAGS", "MFLAGS", "NINJA_STATUS")
        }
        log.write_text("", encoding="utf-8")

    def __call__(self, step: str, command: Sequence[str]) -> None:
        """Run one step.

        Raises:
            BuildError: with the telling lines of the output, where the step fails.
        """
        progress = _Progress(step)
        lines: list[str] = []
        with self.log.open("a", buffering=1, encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n")
            with subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=self.env,
            ) as process:
                for line in process.stdout or ():
                    log.write(line)
                    lines.append(line.rstrip())
                    progress.show(line)
        progress.end()
        if process.returncode != 0:
            telling = "\n".join(telling_lines(lines))
            raise BuildError(f"{step} failed:\n{telling}\nThe full log is {self.log}")


def telling_lines(lines: Sequence[str]) -> list[str]:
    """The few lines that say why a step failed: from its first error on, else its last ones."""
    first = re.compile(r"\berror:|^CMake Error|^FAILED:|\*\*\*")
    told = [line[:240] for line in lines if line.strip()]
    start = next((i for i, line in enumerate(told) if first.search(line)), len(told) - TAIL)
    return told[max(start, 0) :][:TAIL]


class _Progress:
    def __init__(self, step: str) -> None:
        self._step = step
        self._terminal = sys.stdout.isatty()
        self._tenth = 0
        print(f"{step} ...", end="" if self._terminal else "\n", flush=True)

    def show(self, line: str) -> None:
        percent = _percent(line)
        if percent is None:
            return
        if self._terminal:
            print(f"\r{self._step} {percent:3d}%  ", end="", flush=True)
        elif percent // 10 > self._tenth:
            self._tenth = percent // 10
            print(f"{self._step} {percent}%", flush=True)

    def end(self) -> None:
        if self._terminal:
            print(f"\r{self._step} done   ", flush=True)


def _percent(line: str) -> int | None:
    if ninja := re.match(r"\[(\d+)/(\d+)\]", line):
        return 100 * int(ninja[1]) // max(int(ninja[2]), 1)
    make = re.match(r"\[\s*(\d+)%\]", line)
    return int(make[1]) if make else None
