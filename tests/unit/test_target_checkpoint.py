"""llama.cpp's converter in another process: what it needs, what it may not do, how it ends.

Here with stand-ins for llama.cpp's tree, torch and transformers; tests/e2e has the real ones.
"""

import json
import os
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from llamaspec import _version
from llamaspec.convert import target_checkpoint as subject
from llamaspec.convert.target_checkpoint import convert_target, find_tree
from llamaspec.errors import LlamaSpecError, ModelLoadError, OptionError
from tests.e2e.terminal import COMMAND, environment
from tests.miniature import write_draft, write_target

CONVERTER = """
import argparse, json, logging, os, shutil, sys, time
from pathlib import Path
import torch, transformers, gguf
parser = argparse.ArgumentParser()
parser.add_argument("model", type=Path)
parser.add_argument("--outfile", type=Path)
parser.add_argument("--outtype")
args = parser.parse_args()
config = json.loads((args.model / "config.json").read_text())
print("INFO:hf-to-gguf:Loading model:", args.model.name, args.outtype, flush=True)
print("INFO:seen:", os.getcwd(), gguf.WHOSE, os.environ["HF_HUB_OFFLINE"], flush=True)
what = config["what"]
if what == "trusts":
    transformers.AutoTokenizer.from_pretrained(args.model, trust_remote_code=True)
if what == "refuses":
    print("ERROR:hf-to-gguf:Model Nosuch is not supported", flush=True)
    sys.exit(1)
if what == "raises":
    raise KeyError("model.norm.weight")
if what == "dies":
    os.abort()
args.outfile.write_bytes((args.model / "made").read_bytes())
if what == "waits":
    time.sleep(600)
"""
# as transformers does it: one module decides, another imports its names
TRANSFORMERS = {
    "__init__.py": """
import importlib

def __getattr__(name):
    return getattr(importlib.import_module("transformers.auto"), name)
""",
    "dynamic_module_utils.py": """
import runpy

def resolve_trust_remote_code(trust_remote_code, model_name, has_local_code, has_remote_code):
    if has_remote_code and not has_local_code and not trust_remote_code:
        raise ValueError("please pass `trust_remote_code=True`")
    return trust_remote_code

def get_class_in_module(name, path):
    return runpy.run_path(str(path))[name]

def get_class_from_dynamic_module(reference, folder):
    module, name = reference.split(".")
    return get_class_in_module(name, folder / f"{module}.py")
""",
    "auto.py": """
import json
from .dynamic_module_utils import get_class_from_dynamic_module, resolve_trust_remote_code

class AutoTokenizer:
    @classmethod
    def from_pretrained(cls, folder, trust_remote_code=None):
        found = json.loads((folder / "config.json").read_text())
        local = found.get("local", False)
        if resolve_trust_remote_code(trust_remote_code, folder, local, True) or found.get("eager"):
            get_class_from_dynamic_module("own.Tokenizer", folder)
""",
}
OWN_CODE = (
    "from pathlib import Path\n(Path(__file__).parent / 'ran').touch()\nclass Tokenizer: pass\n"
)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A llama.cpp whose converter does as the checkpoint asks, and an environment for it."""
    libraries = tmp_path / "libraries"
    for name in ("torch", "sentencepiece", "yaml", "tqdm", "gguf"):
        (libraries / name).mkdir(parents=True)
        (libraries / name / "__init__.py").write_text("WHOSE = 'another'")
    (libraries / "transformers").mkdir()
    for name, text in TRANSFORMERS.items():
        (libraries / "transformers" / name).write_text(text)
    root = tmp_path / "llama.cpp"
    (root / "gguf").mkdir(parents=True)
    (root / "gguf" / "__init__.py").write_text("WHOSE = 'its-own'")
    (root / "convert_hf_to_gguf.py").write_text(CONVERTER)
    (root / "requirements").mkdir()
    (root / "requirements" / "requirements-convert_hf_to_gguf.txt").write_text(
        "-r ./base.txt\n--extra-index-url https://example.org/cpu\n# words\ntorch==2.11.0\n"
    )
    (root / "requirements" / "base.txt").write_text(
        "numpy~=2.2.6\ntransformers==4.57.6  # why\ngguf>=0.1.0\n\nprotobuf>=4.21.0,<5.0.0\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(libraries))
    monkeypatch.setenv("LLAMASPEC_LLAMA_CPP", str(root))
    return root


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    def write(what: str, made: Callable[[Path], Path] = write_target, **config: object) -> Path:
        folder = tmp_path / "Mini-Model"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"what": what, **config}))
        (folder / "own.py").write_text(OWN_CODE)
        made(folder / "made")
        return folder

    return write


def left_behind(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith((".part", ".gguf"))]


def test_the_converter_gets_the_checkpoint_and_its_result_is_described(
    tree: Path, checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint("works")
    lines: list[str] = []
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NO_LOCAL_GGUF", "1")
    made = convert_target(Path(), tmp_path / "out.gguf", outtype="bf16", on_line=lines.append)
    assert (made.path, made.kind, made.name) == (tmp_path / "out.gguf", "target", "Mini Target")
    assert made.path.read_bytes() == (folder / "made").read_bytes()
    assert lines == [
        "INFO:hf-to-gguf:Loading model: Mini-Model bf16",
        f"INFO:seen: {folder} its-own 1",
    ]
    assert left_behind(tmp_path) == ["out.gguf"]


@pytest.mark.parametrize("name", ["torch", "json", "gguf", "transformers"])
def test_a_checkpoint_shadows_no_library(
    name: str,
    tree: Path,
    checkpoint: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = checkpoint("works")
    (folder / f"{name}.py").write_text(OWN_CODE)
    monkeypatch.chdir(folder)
    convert_target(Path(), tmp_path / "out.gguf")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("config", [{}, {"eager": True, "local": True}], ids=["asks", "insists"])
def test_a_checkpoints_code_never_runs(
    config: dict[str, object], tree: Path, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = checkpoint("trusts", **config)
    with pytest.raises(ModelLoadError, match="Python code of its own, which llamaspec never runs"):
        convert_target(folder, tmp_path / "out.gguf")
    assert not (folder / "ran").exists()
    assert not left_behind(tmp_path)
    # by itself the converter does run it
    alone = [sys.executable, str(tree / "convert_hf_to_gguf.py"), str(folder)]
    command = [*alone, "--outfile", str(tmp_path / "x")]
    subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    assert (folder / "ran").exists()


def test_code_that_transformers_can_replace_is_no_obstacle(
    tree: Path, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = checkpoint("trusts", local=True)
    assert convert_target(folder, tmp_path / "out.gguf").kind == "target"
    assert not (folder / "ran").exists()


def test_an_unknown_transformers_is_not_trusted(
    tree: Path, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "libraries" / "transformers" / "dynamic_module_utils.py").write_text("")
    with pytest.raises(ModelLoadError, match="does not know this version of transformers"):
        convert_target(checkpoint("works"), tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("refuses", "failed: Model Nosuch is not supported"),
        ("raises", "failed: KeyError: 'model.norm.weight'"),
        ("dies", "failed: .*"),
    ],
)
def test_a_failure_is_one_line(
    what: str, reason: str, tree: Path, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = checkpoint(what)
    output = tmp_path / "out.gguf"
    output.write_text("mine")
    lines: list[str] = []
    with pytest.raises(ModelLoadError, match=reason + "$") as refused:
        convert_target(folder, output, overwrite=True, on_line=lines.append)
    assert str(refused.value).startswith(f"{folder}: ")
    assert not [line for line in lines if "Traceback" in line or line.startswith(" ")]
    assert output.read_text() == "mine"
    assert left_behind(tmp_path) == ["out.gguf"]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda path: path.write_bytes(b"GGUF"), "truncated"),
        (lambda path: path.touch(), "is empty"),
        (write_draft, "made a dflash file of it, which is no target"),
    ],
)
def test_a_result_that_is_no_target_never_gets_the_name(
    made: Callable[[Path], object],
    reason: str,
    tree: Path,
    checkpoint: Callable[..., Path],
    tmp_path: Path,
) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        convert_target(checkpoint("works", made), tmp_path / "out.gguf")
    assert not left_behind(tmp_path)


def test_an_existing_output_needs_permission(
    tree: Path, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "out.gguf").write_text("mine")
    folder = checkpoint("works")
    with pytest.raises(OptionError, match="exists already"):
        convert_target(folder, tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_text() == "mine"
    assert convert_target(folder, tmp_path / "out.gguf", overwrite=True).kind == "target"


def test_what_an_interpreter_lacks_is_one_pip_command(
    tree: Path,
    checkpoint: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    venv.create(tmp_path / "bare", symlinks=os.name != "nt")
    (bare,) = (tmp_path / "bare").glob("*/python" + ".exe" * (os.name == "nt"))
    with pytest.raises(LlamaSpecError) as refused:
        convert_target(checkpoint("works"), tmp_path / "out.gguf", python=bare)
    assert str(refused.value) == (
        "llama.cpp's converter needs torch, transformers, sentencepiece, numpy, yaml, tqdm, which "
        f"{bare} lacks; choose another interpreter with --python, or run: {bare} -m pip install "
        "'torch==2.11.0' 'transformers==4.57.6' 'sentencepiece' 'numpy~=2.2.6' 'gguf>=0.1.0'"
    )
    assert not left_behind(tmp_path)


@pytest.mark.parametrize("python", ["nosuch", ".", "/bin/true"])
def test_what_is_no_interpreter_is_refused(
    python: str, tree: Path, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=f"python is '{python}', which"):
        convert_target(checkpoint("works"), tmp_path / "out.gguf", python=Path(python))


def test_other_types_are_left_to_quantize(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"outtype is 'q4_k_m'; .* `llamaspec quantize`"):
        convert_target(tmp_path, tmp_path / "out.gguf", outtype="q4_k_m")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (None, "has no config.json"),
        ("{", "cannot be read"),
        ('{"architectures": ["Qwen3DSparkModel"]}', "is a draft .* `llamaspec convert`"),
        ('{"architectures": ["DFlashDraftModel"]}', "is a draft"),
    ],
)
def test_a_folder_that_is_no_targets_is_refused(
    config: str | None, reason: str, tmp_path: Path
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelLoadError, match=reason):
        convert_target(tmp_path, tmp_path / "out.gguf")


@pytest.mark.parametrize("name", ["nosuch", "file"])
def test_only_a_folder_is_a_checkpoint(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelLoadError, match=f"{name}: (is not a|there is no such) folder"):
        convert_target(tmp_path / name, tmp_path / "out.gguf")


def test_the_tree_of_the_environment_must_have_the_converter(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_tree() == tree
    (tree / "convert_hf_to_gguf.py").unlink()
    with pytest.raises(LlamaSpecError, match=r"LLAMASPEC_LLAMA_CPP is .*, which has no convert_hf"):
        find_tree()


def test_a_checkout_has_the_tree_of_its_last_build_or_the_submodule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("LLAMASPEC_LLAMA_CPP", "LLAMASPEC_BUILD_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(subject, "_PACKAGE", tmp_path / "llamaspec")
    built, stale = tmp_path / "build/1234-beef/llama.cpp", tmp_path / "build/1234-cafe/llama.cpp"
    submodule = tmp_path / "vendor/llama.cpp"
    for folder in (built, stale, submodule, tmp_path / "llamaspec/lib"):
        folder.mkdir(parents=True)
    (tmp_path / "llamaspec/lib/build.json").write_text('{"commit": "0123+beef"}')
    for folder in (built, stale, submodule):
        (folder / "convert_hf_to_gguf.py").touch()
    with pytest.raises(LlamaSpecError, match="set LLAMASPEC_LLAMA_CPP") as refused:
        find_tree()  # an installed package: whatever lies beside it is not ours
    assert _version.LLAMA_CPP_COMMIT[:12] in str(refused.value)
    (tmp_path / "build.py").touch()
    assert find_tree() == built
    (built / "convert_hf_to_gguf.py").unlink()
    assert find_tree() == submodule
    (submodule / "convert_hf_to_gguf.py").unlink()
    with pytest.raises(LlamaSpecError, match="is not here"):
        find_tree()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL], ids=lambda end: str(end.name))
def test_an_end_in_the_middle_leaves_nothing(
    end: signal.Signals, tree: Path, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = checkpoint("waits")
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\nPYTHONPATH='{os.environ['PYTHONPATH']}' exec '{sys.executable}' \"$@\"\n"
    )
    python.chmod(0o755)
    words = ["convert-target", folder, "-o", tmp_path / "out.gguf", "--python", python]
    with subprocess.Popen(
        [*COMMAND, *map(str, words)],
        stderr=subprocess.PIPE,
        env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as running:
        ending = time.monotonic() + 60
        while not any(part.stat().st_size for part in tmp_path.glob(".*.part")):
            assert running.poll() is None
            assert time.monotonic() < ending
            time.sleep(0.01)
        running.send_signal(end)
        _, errors = running.communicate(timeout=60)
    while left_behind(tmp_path) and time.monotonic() < ending:
        time.sleep(0.02)
    assert not left_behind(tmp_path)
    assert running.returncode == (130 if end == signal.SIGINT else -end)
    assert errors.strip() == b""
