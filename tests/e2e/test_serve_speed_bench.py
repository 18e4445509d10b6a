"""llama.cpp's own client of its benchmark, unmodified, against our server."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from llamaspec.bench.pairs import PROMPTS
from tests.e2e.terminal import environment
from tests.served import serving

pytestmark = pytest.mark.native

CLIENT = Path("tools/server/bench/speed-bench/speed_bench.py")
CARD = """---
configs:
- config_name: qualitative
  data_files:
  - split: test
    path: test.jsonl
---
"""


def test_it_runs_and_prints_accept_rates(llama_cpp_tree: Path, tmp_path: Path) -> None:
    client = llama_cpp_tree / CLIENT
    if not client.is_file():
        pytest.skip("these sources of llama.cpp come without its benchmark's client")
    for name in ("datasets", "requests", "tqdm"):
        if find_spec(name) is None:
            pytest.skip(f"the client needs {name}")
    # `datasets` takes a folder of the data set's name in place of the Hub's
    data = tmp_path / "nvidia" / "SPEED-Bench"
    data.mkdir(parents=True)
    (data / "README.md").write_text(CARD)
    rows = [
        {
            "question_id": str(index),
            "category": category,
            "turns": [prompt, "And why?"][: 1 + index % 2],
        }
        for index, (category, prompt) in enumerate(PROMPTS)
    ]
    (data / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving("-c", "1024") as server:
        done = subprocess.run(
            [
                *(sys.executable, client, "--url", server.url, "--osl", "48"),
                *("--concurrency", "2", "--output", tmp_path / "out.json"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            env={
                **environment(),
                "HF_HOME": os.fspath(tmp_path / "hf"),
                "HF_DATASETS_OFFLINE": "1",
            },
        )
    assert done.returncode == 0, (done.stdout, done.stderr)
    rates = re.findall(r"^(math|coding|overall) .* (\d\.\d{4}) *$", done.stdout, re.MULTILINE)
    assert {name for name, _ in rates} == {"math", "coding", "overall"}, done.stdout
    assert all(0 < float(rate) <= 1 for _, rate in rates)
    found = json.loads((tmp_path / "out.json").read_text())
    assert (found["completed_samples"], found["failed_samples"]) == (len(rows), 0)
    for one in found["results"]:
        assert 0 < one["draft_n_accepted"] <= one["completion_tokens"]
        assert one["predicted_per_second"] > 0
