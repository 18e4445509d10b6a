"""`llamaspec convert` as a user has it: exit codes, one line on stderr, no file that is not whole.

What is refused, and why, is tested without processes in tests/unit/test_convert_bad_input.py.
"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from llamaspec.runtime.describe import describe
from tests import mutate
from tests.checkpoints import Pair
from tests.checkpoints.shapes import RANK, WIDTH
from tests.checkpoints.tokenizer import MASK
from tests.damage import (
    GONE,
    Change,
    elsewhere,
    entry,
    holding,
    indexed,
    instead,
    pickled,
    place,
    settings,
    swapped,
    target_settings,
    tensor,
    tensors,
)
from tests.e2e.terminal import COMMAND, environment, llamaspec, refusal, together

SHARD = "model.safetensors"


def nothing(_: Pair) -> None:
    """No change."""


class Refused(NamedTuple):
    """What is wrong with a draft (with `words` of the command line), and what the line says."""

    change: Change
    says: tuple[str, ...]
    words: tuple[str, ...] = ()


CASES = {
    "outside-by-index": Refused(indexed("../m.safetensors"), ("'../m.safetensors'",)),
    "outside-by-link": Refused(instead(SHARD, elsewhere), ("is a link to", "outside")),
    "pickled": Refused(pickled, ("pickled", "pytorch_model.bin")),
    "pipe": Refused(instead(SHARD, os.mkfifo), ("not a regular file",)),
    "config-pipe": Refused(instead("config.json", os.mkfifo), ("not a regular file",)),
    "header": Refused(entry("fc.weight", data_offsets=[0, 2**50]), ("'fc.weight'",)),
    "nan": Refused(tensor("norm.weight", holding(float("nan"))), ("norm.weight", "NaN")),
    "width": Refused(target_settings(hidden_size=128), ("64", "128")),
    "no-mask": Refused(settings(mask_token_id=GONE), ("mask_token_id", "--set mask_token_id=")),
    "head-type": Refused(settings(markov_head_type="lstm"), ("'lstm'", "gated")),
    "taps": Refused(settings(target_layer_ids=[4, 3, 1]), ("[4, 3, 1]", "ascending")),
    "a-draft-for-target": Refused(swapped, ("is a draft",)),
    "a-billion-layers": Refused(settings(num_hidden_layers=10**9), ("1000000000", "512")),
    "line-breaks": Refused(settings(architectures=["a\nb\x1b[31m"], block_size=GONE), ("a\\nb",)),
    "unread-override": Refused(nothing, ("--set rope_thta",), ("--set", "rope_thta=1e6")),
    "two-overrides": Refused(
        nothing, ("--set block_size", "twice"), ("--set", "block_size=7", "--set", "block_size=8")
    ),
    "no-override": Refused(nothing, ("--set rope_theta", "KEY=VALUE"), ("--set", "rope_theta")),
    "override-of-text": Refused(nothing, ("block_size is 'big'",), ("--set", "block_size=big")),
    "outtype": Refused(nothing, ("'f33'", "Q8_0"), ("--outtype", "f33")),
}


@pytest.fixture(scope="module")
def refusals(
    tmp_path_factory: pytest.TempPathFactory,
) -> "dict[str, tuple[Path, subprocess.CompletedProcess[str]]]":
    """Every case, each in a folder of its own, with the outcome."""
    commands, folders = {}, {}
    for name, case in CASES.items():
        folders[name] = folder = tmp_path_factory.mktemp(name)
        pair = place("deepspec", folder)
        case.change(pair)
        (folder / "out.gguf").write_bytes(b"precious")
        target = ("--target", pair.target, "-o", folder / "out.gguf", "--force")
        commands[name] = ("convert", pair.draft, *target, *case.words)
    shown = together(commands)
    return {name: (folder, shown[name]) for name, folder in folders.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_is_one_line_and_leaves_the_output(
    name: str, refusals: "dict[str, tuple[Path, subprocess.CompletedProcess[str]]]"
) -> None:
    folder, done = refusals[name]
    line = refusal(done)
    assert line.isprintable()
    for word in CASES[name].says:
        assert word in line
    assert (folder / "out.gguf").read_bytes() == b"precious"
    assert not [path for path in folder.rglob("*") if ".part" in path.name]


def test_the_good_path_says_what_was_made(tmp_path: Path) -> None:
    pair, out = place("deepspec", tmp_path), tmp_path / "out.gguf"
    tensors(lambda found: found.update({"adapter.weight": found["norm.weight"]}))(pair)
    words = ("convert", pair.draft, "--target", pair.target, "-o", out, "--drop-unexpected")
    done = llamaspec(*words)
    assert (done.returncode, done.stderr) == (0, "")
    first, *rows = done.stdout.splitlines()
    assert first == f"{out}: a draft for target"
    table = [tuple(row.strip().split(maxsplit=1)) for row in rows]
    assert ("packaging", "DeepSpec") in table
    assert any("inputs of target layers [2, 4, 5] of 6" in row for row in rows)
    assert any(f"7 slots, anchor-first, mask {MASK}" in row for row in rows)
    assert any(f"vanilla, rank {RANK}" in row for row in rows)
    assert any(f"2 x {WIDTH}" in row for row in rows)
    assert any("1: unexpected" in row for row in rows)
    found = describe(out).draft
    assert found is not None
    assert (found.taps, found.block_size, found.markov_rank) == ((2, 4, 5), 7, RANK)
    whole = out.read_bytes()
    assert f"{out}: exists already" in refusal(llamaspec(*words))
    assert out.read_bytes() == whole
    assert llamaspec(*words, "--force", "--outtype", "f32").returncode == 0
    assert describe(out).quantisation == "F32"


def test_an_override_supplies_what_is_missing(tmp_path: Path) -> None:
    pair, out = place("zlab", tmp_path), tmp_path / "out.gguf"
    settings(rope_theta=GONE, dflash_config__mask_token_id=GONE)(pair)
    words = ("convert", pair.draft, "--target", pair.target, "-o", out)
    assert "--set" in refusal(llamaspec(*words))
    taps = json.dumps([1, 3, 4])
    given = ("rope_theta=1e4", f"mask_token_id={MASK}", f"target_layer_ids={taps}")
    done = llamaspec(*words, *(word for pair_ in given for word in ("--set", pair_)))
    assert (done.returncode, done.stderr) == (0, "")
    assert "theta 10000" in done.stdout


def test_a_checkpoints_code_does_not_run(tmp_path: Path) -> None:
    pair, marker = place("zlab", tmp_path), tmp_path / "marker"
    for name in ("dflash.py", "json.py"):
        (pair.draft / name).write_text(f"open({str(marker)!r}, 'w').close()\n")
    settings(auto_map={"AutoModel": "dflash.DFlashDraftModel"})(pair)
    out = tmp_path / "out.gguf"
    done = llamaspec("convert", pair.draft, "--target", pair.target, "-o", out)
    assert done.returncode == 0
    assert not marker.exists()


ROWS = 800_000


def enlarged(pair: Pair) -> None:
    """Feed-forward networks of 300 million zeros, which take no space on the disk."""
    settings(intermediate_size=ROWS)(pair)
    fields, data = mutate.split((pair.draft / SHARD).read_bytes())
    end = len(data)
    for name, found in fields.items():
        if ".mlp." in name:
            wide = [WIDTH, ROWS] if "down" in name else [ROWS, WIDTH]
            size = 2 * ROWS * WIDTH
            found.update(shape=wide, data_offsets=[end, end + size])
            end += size
    old = [found["data_offsets"] for name, found in fields.items() if name != "__metadata__"]
    assert max(last for _, last in old) == end
    compacted = _without_gaps(fields, data)
    with (pair.draft / SHARD).open("wb") as file:
        file.write(compacted)
        file.truncate(len(compacted) + 6 * 2 * ROWS * WIDTH)


def _without_gaps(fields: dict[str, dict[str, list[int]]], data: bytes) -> bytes:
    """The small tensors one after the other; the large ones, which are not there, after them."""
    parts, at = [], 0
    named = [(name, found) for name, found in fields.items() if name != "__metadata__"]
    for _, found in sorted(named, key=lambda item: item[1]["data_offsets"]):
        first, last = found["data_offsets"]
        found["data_offsets"] = [at, at + last - first]
        at += last - first
        if last <= len(data):
            parts.append(data[first:last])
    return mutate.joined(json.dumps(fields).encode(), b"".join(parts))


def _interrupted(
    command: list[str], folder: Path, sent: signal.Signals
) -> tuple[bool, tuple[int, bytes, bytes]]:
    """Whether a conversion was sent a signal before its end, and how it ended."""
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    interrupted = False
    try:
        while running.poll() is None and not interrupted:
            if any(part.stat().st_size > 1 << 20 for part in folder.glob(".*.part")):
                running.send_signal(sent)
                interrupted = True
            time.sleep(0.01)
        shown, error = running.communicate(timeout=60)
    finally:
        running.kill()
    return interrupted, (running.returncode, shown, error.strip())


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_leaves_nothing(sent: signal.Signals, code: int, tmp_path: Path) -> None:
    pair, out = place("zlab", tmp_path), tmp_path / "out.gguf"
    enlarged(pair)
    before = sorted(path.name for path in tmp_path.iterdir())
    words = ("convert", pair.draft, "--target", pair.target, "-o", out, "--outtype", "q4_1")
    for _ in range(3):
        out.unlink(missing_ok=True)
        interrupted, found = _interrupted([*COMMAND, *map(str, words)], tmp_path, sent)
        if interrupted:
            break
    assert interrupted, "the conversion was never seen at work"
    assert found == (code, b"", b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == before
