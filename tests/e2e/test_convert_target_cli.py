"""`llamaspec convert-target` with the real converter, where there is a torch to run it with.

LLAMASPEC_TEST_TORCH names an interpreter with torch and transformers; else this one is tried.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llamaspec.convert.target_checkpoint import find_tree
from llamaspec.errors import LlamaSpecError
from llamaspec.runtime.describe import describe
from llamaspec.runtime.gguf_file import GGUFFile
from tests.e2e.terminal import environment, llamaspec, refusal

CODE = """
from pathlib import Path
(Path(__file__).parent / "ran").touch()
(Path({marker!r})).touch()
from transformers import PretrainedConfig, PreTrainedTokenizerFast
class Config(PretrainedConfig):
    model_type = "own"
class Tokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture(scope="module")
def python() -> str:
    """An interpreter with torch and transformers."""
    found = os.environ.get("LLAMASPEC_TEST_TORCH") or sys.executable
    probe = "from importlib.util import find_spec as f; assert f('torch') and f('transformers')"
    if subprocess.run([found, "-c", probe], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("no torch: set LLAMASPEC_TEST_TORCH to an interpreter that has it")
    return found


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the converter that knows the tiny target's pre-tokenizer.

    It trusts this architecture's checkpoints, as it does those of many others.
    """
    try:
        source = find_tree()
    except LlamaSpecError as error:
        pytest.skip(str(error))
    copy = tmp_path_factory.mktemp("llama.cpp")
    for name in ("conversion", "gguf-py", "requirements"):
        shutil.copytree(source / name, copy / name)
    shutil.copy(source / "convert_hf_to_gguf.py", copy)
    base = copy / "conversion" / "base.py"
    text = base.read_text()
    assert text.count("        res = None\n") == 1
    text = text.replace("        res = None\n", '        res = "qwen2"\n')
    plain = "AutoTokenizer.from_pretrained(self.dir_model)"
    assert plain in text
    base.write_text(text.replace(plain, f"{plain[:-1]}, trust_remote_code=True)"))
    return copy


def convert(tree: Path, *words: object) -> "subprocess.CompletedProcess[str]":
    return llamaspec("convert-target", *words, env=environment(LLAMASPEC_LLAMA_CPP=str(tree)))


def test_the_tiny_target_comes_out_as_its_gguf(
    python: str, tree: Path, shared: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.gguf"
    words = (shared / "models" / "tiny-target", "-o", output, "--outtype", "f32")
    done = convert(tree, *words, "--python", python)
    assert (done.returncode, done.stderr) == (0, "")
    size = output.stat().st_size
    assert done.stdout == f"{output}: qwen3, F32, 8.9 M weights, {size / 1e6:,.1f} MB\n"
    expected = shared / "models" / "gguf" / "tiny-target-f32.gguf"
    with GGUFFile.open(output) as ours, GGUFFile.open(expected) as theirs:
        assert list(ours.tensors) == list(theirs.tensors)
        for name, info in theirs.tensors.items():
            assert ours.tensors[name][1:3] == info[1:3]
            assert (ours.array(name) == theirs.array(name)).all(), name
    assert describe(output).tokenizer == describe(expected).tokenizer


def test_verbose_passes_the_progress_on(
    python: str, tree: Path, shared: Path, tmp_path: Path
) -> None:
    words = (shared / "models" / "tiny-target", "-o", tmp_path / "out.gguf", "-v")
    done = convert(tree, *words, "--python", python)
    assert done.returncode == 0
    assert "Loading model: tiny-target" in done.stderr
    assert describe(tmp_path / "out.gguf").quantisation == "BF16"


@pytest.mark.parametrize("own_config", [False, True])
def test_code_in_a_checkpoint_never_runs(
    own_config: bool, python: str, tree: Path, shared: Path, tmp_path: Path
) -> None:
    folder, marker = tmp_path / "checkpoint", tmp_path / "marker"
    folder.mkdir()
    for file in (shared / "models" / "tiny-target").iterdir():
        shutil.copyfile(file, folder / file.name)
    for name in ("own.py", "torch.py"):
        (folder / name).write_text(CODE.format(marker=str(marker)))
    changes: dict[str, dict[str, object]] = {
        "tokenizer_config.json": {
            "tokenizer_class": "Tokenizer",
            "auto_map": {"AutoTokenizer": [None, "own.Tokenizer"]},
        }
    }
    if own_config:
        changes["config.json"] = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    for name, change in changes.items():
        found = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(found | change))
    done = convert(tree, folder, "-o", tmp_path / "out.gguf", "--python", python)
    assert "Python code of its own, which llamaspec never runs" in refusal(done)
    assert not marker.exists()
    assert not (folder / "ran").exists()
    assert not (tmp_path / "out.gguf").exists()


def test_a_pre_tokenizer_that_llama_cpp_lacks_is_one_line(
    python: str, shared: Path, tmp_path: Path
) -> None:
    try:
        tree = find_tree()
    except LlamaSpecError as error:
        pytest.skip(str(error))
    words = (shared / "models" / "tiny-target", "-o", tmp_path / "out.gguf")
    line = refusal(convert(tree, *words, "--python", python))
    assert line.endswith(
        "llama.cpp's converter failed: NotImplementedError: BPE pre-tokenizer was not recognized - "
        "update get_vocab_base_pre()"
    )
    assert not list(tmp_path.iterdir())
