"""What of ours no longer fits a newer llama.cpp: patches, hunk by hunk, and declared prototypes.

    python -m tools.drift --source PATH_OF_A_LLAMA_CPP_TREE

The tree is copied, not changed. Exit code 0: all fits; 1: something drifted; 2: no such tree.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from vendor.llama_source import is_llama_tree, patch_files

ROOT = Path(__file__).resolve().parents[1]
CDEF = ROOT / "llamaspec" / "native" / "cdef"
HEADERS = {
    "llama.h": ("include/llama.h",),
    "ggml.h": ("ggml/include/ggml.h", "ggml/include/ggml-backend.h", "ggml/include/gguf.h"),
}


@dataclass
class Drift:
    """What no longer fits.

    Attributes:
        patches: for each patch that does not apply, what git says of its hunks.
        prototypes: for each changed function, our prototype and theirs, "" where it is gone.
        fields: for each struct, the fields of ours that it has no more.
    """

    patches: dict[str, list[str]] = field(default_factory=dict)
    prototypes: dict[str, tuple[str, str]] = field(default_factory=dict)
    fields: dict[str, list[str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.patches or self.prototypes or self.fields)


def prototypes(text: str) -> dict[str, str]:
    """Function name -> its prototype with comments, macros and spacing normalised."""
    text = _bare(text)
    while (flat := re.sub(r"\{[^{}]*\}", " ", text)) != text:
        text = flat
    found: dict[str, str] = {}
    for statement in text.split(";"):
        plain = re.sub(r"\b(?:LLAMA|GGML|GGML_BACKEND)_API\b|\bextern\b", " ", statement)
        plain = re.sub(r'\bDEPRECATED\s*\((.*),\s*"[^"]*"\s*\)', r"\1", plain, flags=re.DOTALL)
        plain = re.sub(r"\s*([*(),])\s*", r" \1 ", " ".join(plain.split()))
        plain = " ".join(plain.split())
        if name := re.search(r"\b(\w+) \(", plain):
            found.setdefault(name[1], plain)
    return found


def structs(text: str) -> dict[str, set[str]]:
    """Struct name -> the names of its fields."""
    found = {}
    for name, body in re.findall(r"\bstruct (\w+) \{([^{}]*)\}", _bare(text)):
        ends = (re.search(r"(\w+)\s*(?:\[[^\]]*\])?\s*$", part) for part in re.split(r"[;,]", body))
        found[name] = {end[1] for end in ends if end}
    return found


def _bare(text: str) -> str:
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
    text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*$", " ", text, flags=re.MULTILINE)
    return text.replace('extern "C" {', " ")


def compare(source: Path, patches: list[Path], cdef: Path = CDEF) -> Drift:
    """Everything that drifted between this checkout and a llama.cpp tree."""
    drift = Drift()
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch).resolve() / "llama.cpp"
        for name in _touched(patches):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            if (source / name).is_file():
                shutil.copyfile(source / name, copy / name)
        for patch in patches:
            problems = _apply(patch, copy)
            if problems:
                drift.patches[patch.name] = problems
        for name, headers in HEADERS.items():
            # with what patches add
            found = [copy / one if (copy / one).is_file() else source / one for one in headers]
            theirs = "\n".join(header.read_text() for header in found if header.is_file())
            _compare_header((cdef / name).read_text(), theirs, drift)
    return drift


def _touched(patches: list[Path]) -> set[str]:
    texts = (patch.read_text(encoding="utf-8") for patch in patches)
    return {name for text in texts for name in re.findall(r"^--- a/(\S+)", text, re.MULTILINE)}


def _apply(patch: Path, tree: Path) -> list[str]:
    """Apply what applies of a patch; return what does not."""
    command = ["git", "apply", "-p1", "--reject", "--whitespace=nowarn", str(patch.resolve())]
    environment = {"GIT_CEILING_DIRECTORIES": str(tree.parent), "LC_ALL": "C", "PATH": _path()}
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, env=environment)
    if done.returncode == 0:
        return []
    lines = done.stderr.splitlines()
    told = [
        line for line in lines if line.startswith(("error:", "Rejected hunk", "Applying patch"))
    ]
    return told or lines[-4:]


def _path() -> str:
    git = shutil.which("git")
    if git is None:
        raise SystemExit("git is needed: apt-get install git")
    return str(Path(git).parent)


def _compare_header(ours: str, theirs: str, drift: Drift) -> None:
    there = prototypes(theirs)
    for name, prototype in prototypes(ours).items():
        if there.get(name) != prototype:
            drift.prototypes[name] = (prototype, there.get(name, ""))
    fields = structs(theirs)
    for name, wanted in structs(ours).items():
        missing = sorted(wanted - fields.get(name, set()))
        if missing:
            drift.fields[name] = missing


def report(drift: Drift) -> str:
    """The drift in words."""
    lines = []
    for name, problems in drift.patches.items():
        lines += [f"patch {name} does not apply:", *(f"  {problem}" for problem in problems)]
    for name, (ours, theirs) in drift.prototypes.items():
        lines += [f"{name}:", f"  ours   {ours}", f"  theirs {theirs or '(gone)'}"]
    lines += [f"struct {name} has no {', '.join(gone)}" for name, gone in drift.fields.items()]
    return "\n".join(lines) or "all patches apply, all declarations agree"


def main() -> int:
    """Compare with the tree given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="a llama.cpp tree")
    source: Path = parser.parse_args().source
    if not is_llama_tree(source):
        print(f"{source} is not a llama.cpp source tree (no include/llama.h)", file=sys.stderr)
        return 2
    drift = compare(source, patch_files(ROOT / "patches"))
    print(report(drift))
    return 1 if drift else 0


if __name__ == "__main__":
    sys.exit(main())
