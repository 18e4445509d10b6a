"""Patch 0023: threads that wait for each other between operations."""

import shutil
import subprocess
from pathlib import Path

import pytest

import llamaspec
from llamaspec import Session, demo
from llamaspec.loading import load_pair
from llamaspec.options import LoadOptions

pytestmark = pytest.mark.native


def test_a_barrier_is_not_openmps_and_makes_way() -> None:
    libraries = [*(Path(llamaspec.__file__).parent / "lib").glob("libggml-cpu*.so")]
    if not libraries or shutil.which("objdump") is None:
        pytest.skip("no objdump, or libraries of another kind")
    for library in libraries:
        command = ["objdump", "--disassemble=ggml_barrier", "--no-show-raw-insn", str(library)]
        code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "<ggml_barrier" in code
        assert "sched_yield" in code
        assert "GOMP" not in code


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_more_threads_than_processors_compute_the_same(threads: int) -> None:
    texts = []
    for count in (1, threads):
        options = LoadOptions(threads=count, context=256)
        pair = load_pair(demo.target_path(), demo.draft_path(), options)
        with Session(pair) as session:
            done = session.generate([{"role": "user", "content": "Count to ten."}], max_tokens=24)
        texts.append(done.token_ids)
    assert texts[0] == texts[1]
