"""Thousands of damaged checkpoints: each becomes a GGUF that validates, or is refused in a line.

Warnings count as faults, and so do more than a few seconds or a gigabyte.
"""

import os
import random
import resource
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from llamaspec.convert import Job, Wishes, convert
from llamaspec.errors import LlamaSpecError
from llamaspec.runtime.gguf_file import GGUFFile
from tests import mutate
from tests.checkpoints import CASES, Case, write
from tests.converted import give_tables

SEED = 20261129
CHECKPOINTS, GGUFS = 100, 120
MEMORY = 1 << 30
LONGEST = 1500
OUTPUT = "out.gguf"
REPACKED = ("deepspec-gated", "deepseek4", "dflash2", "speculators")


@pytest.fixture
def little_memory() -> Iterator[None]:
    """At most a gigabyte more than now, where the system can say how much that is."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def attempt(job: Job) -> bool:
    """Whether a job was done; the output is checked, and removed."""
    try:
        with mutate.bounded():
            convert(job)
    except LlamaSpecError as refused:
        line = str(refused)
        assert line.isprintable(), line
        assert 0 < len(line) < LONGEST, line
        assert ".part" not in line, line
        return False
    with mutate.bounded(), GGUFFile.open(job.output) as file:
        for name, info in file.tensors.items():
            if info.type in ("F32", "F16", "BF16"):
                assert np.isfinite(file.array(name)).all(), name
    job.output.unlink()
    return True


def run(folder: Path, changes: Iterable[mutate.Change], jobs: Iterator[Job]) -> Counter[bool]:
    """Make every change in turn, run a job on it and undo it; counts what was done and refused."""
    files, outcomes = mutate.read(folder), Counter[bool]()
    for what, change in changes:
        for name, data in change.items():
            (folder / name).write_bytes(data)
        try:
            outcomes[attempt(next(jobs))] += 1
        except BaseException as fault:
            fault.add_note(what)
            raise
        assert {entry.name for entry in os.scandir(folder)} == {n.split("/")[0] for n in files}
        for name in change:
            (folder / name).write_bytes(files[name])
    assert mutate.read(folder) == files
    return outcomes


def jobs(draft: Path, target: Path, output: Path, rng: random.Random) -> Iterator[Job]:
    """Conversions of a draft, of any type."""
    while True:
        outtype = rng.choice(["auto", "auto", "auto", "f32", "f16", "bf16", "q8_0"])
        wishes = Wishes(rng.random() < 0.1, rng.random() < 0.3)
        yield Job(draft, target, output, outtype, wishes)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_damaged_checkpoint(case: Case, tmp_path: Path) -> None:
    rng, folder = random.Random(f"{SEED} {case.name}"), tmp_path / "folders"
    pair = case.write(folder)
    if CASES.index(case) % 2:
        give_tables(pair, tmp_path)
    changes = mutate.mutants(mutate.read(folder), rng, CHECKPOINTS)
    outcomes = run(folder, changes, jobs(pair.draft, pair.target, folder / OUTPUT, rng))
    assert min(outcomes[True], outcomes[False]) > CHECKPOINTS // 10, outcomes


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("packaging", REPACKED)
def test_a_damaged_gguf(packaging: str, tmp_path: Path) -> None:
    rng, folder = random.Random(f"{SEED} {packaging}"), tmp_path / "ggufs"
    folder.mkdir()
    pair, draft = write(packaging, tmp_path), tmp_path / "draft.gguf"
    convert(Job(pair.draft, pair.target, draft))
    mutant = Path(shutil.copy(draft, folder / draft.name))
    changes = mutate.gguf_mutants(draft, tmp_path / "scratch", rng, GGUFS)
    outcomes = run(folder, changes, jobs(mutant, pair.target, folder / OUTPUT, rng))
    assert min(outcomes[True], outcomes[False]) > GGUFS // 20, outcomes


@pytest.mark.usefixtures("little_memory")
def test_a_damaged_target(tmp_path: Path) -> None:
    rng, folder = random.Random(SEED), tmp_path / "ggufs"
    folder.mkdir()
    ready = give_tables(write("zlab", tmp_path), tmp_path)
    mutant = Path(shutil.copy(ready.target, folder / ready.target.name))
    changes = mutate.gguf_mutants(ready.target, tmp_path / "scratch", rng, GGUFS)
    outcomes = run(folder, changes, jobs(ready.pair.draft, mutant, folder / OUTPUT, rng))
    assert min(outcomes[True], outcomes[False]) > GGUFS // 20, outcomes
