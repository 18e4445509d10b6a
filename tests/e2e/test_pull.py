"""`llamaspec pull`, `llamaspec models`, and a whole run by names, against a hub on this machine."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.e2e.terminal import shown_to_a_terminal
from tests.fake_hub import Hub, serving

Q8, DRAFT = "ann/Tiny-GGUF:Q8_0", "ann/tiny-dspark"


@pytest.fixture
def hub(shared: Path, tmp_path: Path) -> Iterator[Hub]:
    models = shared / "models"
    q8 = (models / "gguf" / "tiny-target-q8_0.gguf").read_bytes()
    checkpoint = {p.name: p.read_bytes() for p in (models / "tiny-dspark").iterdir()}
    files = {"ann/Tiny-GGUF": {"tiny-Q8_0.gguf": q8}, DRAFT: checkpoint}
    with serving(Hub(files, tmp_path / "hf")) as hub:
        yield hub


def test_pull_then_list_then_run_without_network(hub: Hub) -> None:
    done = hub.run("-m", "llamaspec", "pull", Q8, "-d", DRAFT)
    assert done.returncode == 0, done.stderr
    target, draft = (line.partition(": ")[2] for line in done.stdout.splitlines())
    assert target.endswith("tiny-Q8_0.gguf (9.6 MB)")
    assert "tiny-dspark.gguf" in draft
    assert "converting ann/tiny-dspark for tiny-Q8_0.gguf" in done.stderr
    hub.address = "http://127.0.0.1:9"
    listed = json.loads(hub.run("-m", "llamaspec", "models", "--json").stdout)
    here = {one["name"]: one for one in listed["here"] if one["name"] != "(bundled)"}
    assert here[Q8]["kind"] == "target"
    assert here[DRAFT]["made_for"] == "tiny-Q8_0.gguf"
    assert not here[DRAFT]["stale"]
    shown = hub.run("-m", "llamaspec", "models").stdout
    assert Q8 in shown
    assert "Qwen/Qwen3-8B-GGUF" in shown
    run = hub.run(
        *("-m", "llamaspec", "run", "-m", Q8, "-d", DRAFT, "-n", "24", "-t", "1", "--json"),
        *("--draft-max", "7", "What is 12 plus 30?"),
        HF_HUB_OFFLINE="1",
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["stats"]["accepted"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ann/Tiny-GGUF:Q2_K"], "has no GGUF of Q2_K; it has Q8_0"),
        (["ann/none"], "no repository ann/none"),
        ([Q8, "-d", "auto"], "no draft is known for tiny-Q8_0.gguf"),
        ([Q8, "-d", "ann/none"], "no repository ann/none"),
        ([Q8, "-d", Q8], "is a model by itself"),
        ([Q8, "-d", f"{DRAFT}:Q9_9"], "unknown"),
    ],
)
def test_a_refusal_is_one_line(hub: Hub, words: list[str], said: str) -> None:
    done = hub.run("-m", "llamaspec", "pull", *words)
    assert done.returncode == 2, done
    (line,) = [line for line in done.stderr.splitlines() if "converting" not in line]
    assert line.startswith("llamaspec: ")
    assert said in line


def test_a_terminal_sees_the_download(hub: Hub) -> None:
    env = {"HF_ENDPOINT": hub.address, "HF_HOME": str(hub.home), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "llamaspec", "pull", Q8]
    shown = shown_to_a_terminal(words, os.environ | env)
    assert b"tiny-Q8_0.gguf" in shown
    assert b"100%" in shown
