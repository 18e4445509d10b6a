"""What is forecast of memory is what loading and decoding take, and what fits is chosen by it."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llamaspec import demo
from llamaspec.bench.shapes import TINY
from llamaspec.bench.synth import synthesise
from llamaspec.errors import OptionError
from llamaspec.loading import LOOKUP, DraftSource, forecast_pair
from llamaspec.options import LoadOptions
from llamaspec.runtime import backend
from llamaspec.runtime.context import ContextShape, TargetContext
from llamaspec.runtime.describe import describe
from llamaspec.runtime.forecast import KINDS, Forecast, Plan, memory_of
from llamaspec.runtime.free_memory import available_bytes
from llamaspec.runtime.model import ON_CPU
from llamaspec.session import load
from tests.conftest import ROOT
from tests.e2e.terminal import environment, llamaspec, refusal
from tests.native.layer_probe import compile_probe
from tests.native.memory_probe import resident

pytestmark = pytest.mark.native

SECONDS = 600
# what allocators, the interpreter and one-off tables take; not in proportion to anything
SLACK = 24 * 2**20
GIB = 2**30
BUNDLED = demo.target_path(), demo.draft_path()

SETTINGS: dict[str, tuple[dict[str, Any], int]] = {
    "one": ({"context": 512}, 100),
    "long": ({"context": 4096}, 40),
    "several": ({"context": 512, "max_sequences": 8}, 24),
    "f32-cache": ({"context": 1024, "cache_type": "f32", "flash_attention": "off"}, 40),
    "wide-batch": ({"context": 2048, "batch": 2048}, 20),
    "python-head": ({"context": 256, "head": "python", "max_sequences": 2}, 24),
}
"""Settings, and how many of a sequence's positions are generated; the rest is prompt."""


def probe(given: dict[str, Any]) -> dict[str, Any]:
    """What `memory_probe` says of a pair in a process of its own."""
    command = [sys.executable, "-m", "tests.native.memory_probe"]
    done = subprocess.run(
        command,
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=ROOT,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux tells its pages")
@pytest.mark.parametrize("name", SETTINGS)
def test_a_process_grows_by_what_was_forecast(name: str) -> None:
    settings, tokens = SETTINGS[name]
    told = probe({"settings": {"threads": 1, **settings}, "tokens": tokens})
    planned, counted = told["planned"], told["counted"]
    for kind in ("kv_target", "kv_draft"):
        assert planned[kind] == counted[kind], (kind, told)
    # files are mapped in whole pages, and as far as there are tensors
    assert planned["weights"] == pytest.approx(counted["weights"], rel=0.1), told
    # of what llama.cpp has allocated in the end, kept graphs among it, all was foreseen
    assert counted["compute"] <= 1.05 * (planned["compute"] + planned["graphs"]) + 2**20, told
    assert 0.5 * told["forecast"] <= told["grown"], told
    assert told["grown"] <= 1.15 * told["forecast"] + SLACK, told


Fake = Callable[[int], None]


@pytest.fixture
def with_free(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """A machine of one CPU with so many bytes free."""
    (device, *_) = backend.devices()

    def fake(free: int) -> None:
        monkeypatch.setattr(backend, "devices", lambda: [replace(device, free_bytes=free)])

    return fake


def planned(**settings: Any) -> Forecast:  # noqa: ANN401
    return forecast_pair(*BUNDLED, LoadOptions(threads=1, **settings))


@pytest.mark.parametrize("many", [1, 6])
def test_fit_takes_what_was_asked_where_there_is_room(with_free: Fake, many: int) -> None:
    wanted = planned(context=2048, max_sequences=many)
    with_free(2 * wanted.total)
    with load(context=2048, max_sequences=many, fit=True, threads=1) as session:
        assert (session.n_ctx, session.max_sequences) == (2048, many)
        assert session.forecast == wanted
    # and without a context all that the model was trained for
    with_free(64 * GIB)
    with load(fit=True, threads=1) as session:
        assert session.n_ctx == 4096


def test_fit_shortens_the_context(with_free: Fake) -> None:
    long, short = (planned(context=n, max_sequences=4).total for n in (4096, 2048))
    free = (long + short) // 2
    with_free(free)
    with load(context=4096, max_sequences=4, fit=True, threads=1) as session:
        assert session.max_sequences == 4
        assert 1024 <= session.n_ctx < 4096
        assert session.forecast.total <= 0.9 * free
        # one step more would not have been within it
        step = planned(context=session.n_ctx + 256, max_sequences=4).total
        assert step > 0.9 * free
        assert session.generate("Write a Python function.", max_tokens=4).stats.prompt_tokens


def test_fit_gives_up_sequences_where_contexts_would_be_too_short(with_free: Fake) -> None:
    free = planned(context=1024, max_sequences=16).total
    with_free(free)
    with load(context=4096, max_sequences=64, fit=True, threads=1) as session:
        assert session.max_sequences == 8
        assert session.n_ctx >= 1024
        assert session.forecast.total <= 0.9 * free


def test_nothing_fits(with_free: Fake) -> None:
    with_free(8 * 2**20)
    with pytest.raises(OptionError) as refused:
        load(max_sequences=4, fit=True, threads=1)
    line = str(refused.value)
    assert "nothing fits: one sequence of 256 positions takes" in line
    assert "8.0 MiB are free" in line


def test_what_there_is_no_room_for_is_refused_with_both_values(with_free: Fake) -> None:
    needed = planned(context=4096, max_sequences=4)
    with_free(needed.total // 4)
    with pytest.raises(OptionError) as refused:
        load(context=4096, max_sequences=4, threads=1)
    line = str(refused.value)
    assert "a context of 16384 positions takes" in line
    assert f"{needed.total // 4 / 2**20:.1f} MiB" in line or "GiB are free" in line
    assert "choose a smaller one or fewer than 4 sequences, or let fit choose" in line
    assert "\n" not in line


def test_weights_that_do_not_fit_are_read_again_and_a_warning_says_so(
    with_free: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    needed = planned(context=256)
    with_free(needed.total - 1)
    with load(context=256, threads=1) as session:
        assert session.generate("Write a Python function.", max_tokens=4).stats.prompt_tokens
    (record,) = [r for r in caplog.records if "weights among it" in r.message]
    assert record.levelno == logging.WARNING


@pytest.mark.parametrize("many", [1, 5])
def test_memory_grows_in_a_straight_line(tmp_path: Path, many: int) -> None:
    """What is extrapolated of very long contexts is what planning them whole would say."""
    pair = synthesise(TINY.name, "f32", tmp_path)
    found = [
        forecast_pair(
            pair.target, pair.draft, LoadOptions(context=n // many, max_sequences=many, threads=1)
        )
        for n in (2**20, 2**21, 2**22, 2**30)
    ]
    one, two, four, many = (f.total for f in found)
    assert four - two == pytest.approx(2 * (two - one), rel=0.01)
    assert many - two == pytest.approx((2**30 - 2**21) * (two - one) / 2**20, rel=0.01)


@pytest.mark.parametrize("draft", [None, LOOKUP, BUNDLED[1]], ids=["plain", "lookup", "draft"])
def test_the_most_of_everything_is_planned(draft: DraftSource) -> None:
    for settings in (
        {"context": 64, "max_sequences": 256},
        {"context": 2**23 - 1, "max_sequences": 256},
        {"context": 2**31 - 1},
        {"context": 1},
        {"context": 64, "max_sequences": 100, "batch": 2**16},
        {"context": 64, "head": "python", "max_sequences": 3},
        {"context": 64, "flash_attention": "off", "cache_type": "bf16"},
    ):
        found = forecast_pair(BUNDLED[0], draft, LoadOptions(threads=1, **settings))
        assert all(getattr(p, kind) >= 0 for p in found.parts for kind in KINDS)
        assert found.total > BUNDLED[0].stat().st_size
        assert found.n_seq == settings.get("max_sequences", 1)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux tells its pages")
@pytest.mark.parametrize("arch", ["qwen35", "kimi-k3"])
def test_planning_takes_no_memory_for_states(arch: str, tmp_path: Path) -> None:
    path = compile_probe(tmp_path).model(arch)
    shape = ContextShape(256, 256, 256, 256, 1, "auto", "f16", snapshots=60)
    with Plan.open(describe(path), ON_CPU) as plan:
        before = resident()
        with TargetContext.create(plan.target, shape) as context:
            (part,) = memory_of(context)
            grown = resident() - before
    # 256 sequences of 61 states each
    assert part.kv_target > 64 * 2**20
    assert grown < part.kv_target / 2


def test_the_forecast_is_logged_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "llamaspec"), load(context=256, threads=1) as session:
        (line,) = [r.message for r in caplog.records if r.message.startswith("memory: ")]
    assert line == f"memory: {session.forecast}"
    options = ("--memory", "-c", 256, "--sequences", 2)
    shown = llamaspec("inspect", *BUNDLED, *options)
    assert shown.returncode == 0
    expected = planned(context=256, max_sequences=2)
    assert shown.stdout.endswith("\n\n" + "\n".join(expected.lines()) + "\n")
    told = json.loads(llamaspec("inspect", *reversed(BUNDLED), *options, "--json").stdout)
    assert told["memory"]["n_ctx"] == 512
    kv = sum(part["kv_draft"] for part in told["memory"]["parts"])
    assert kv == sum(part.kv_draft for part in expected.parts) > 0


def test_run_refuses_and_fits() -> None:
    line = refusal(llamaspec("run", "-t", 1, "-n", 4, "-c", 2000000000, "hello"))
    assert "a context of 2000000128 positions takes" in line or "2000000000" in line
    done = llamaspec("run", "-t", 1, "-n", 4, "-c", 2000000000, "--fit", "hello")
    assert done.returncode == 0, done.stderr


GROUPS = {
    "unlimited": ("0::/app", {"app/memory.max": "max", "app/memory.current": "5"}, 8 * GIB),
    "limited": (
        "0::/app/job",
        {
            "app/memory.max": str(3 * GIB),
            "app/memory.current": str(2 * GIB),
            "app/memory.stat": f"anon 7\nactive_file {GIB // 2}\ninactive_file {GIB // 4}",
            "app/job/memory.max": "max",
            "app/job/memory.current": str(GIB),
        },
        GIB + GIB // 2 + GIB // 4,
    ),
    "old": (
        "4:memory:/docker/x\n0::/",
        {"memory/memory.limit_in_bytes": str(GIB), "memory/memory.usage_in_bytes": str(GIB // 4)},
        GIB - GIB // 4,
    ),
    "more than there is": ("0::/", {"memory.max": str(99 * GIB), "memory.current": "0"}, 8 * GIB),
    "exceeded": ("0::/", {"memory.max": "4096", "memory.current": "8192"}, 0),
    "garbage": ("nonsense\n:::", {"memory.max": "?"}, 8 * GIB),
}


@pytest.mark.parametrize("name", GROUPS)
def test_available_memory_is_what_system_and_control_groups_leave(
    name: str, tmp_path: Path
) -> None:
    cgroup, files, expected = GROUPS[name]
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {8 * GIB // 1024} kB\n")
    (proc / "self" / "cgroup").write_text(cgroup)
    for path, text in files.items():
        (groups / path).parent.mkdir(parents=True, exist_ok=True)
        (groups / path).write_text(text)
    assert available_bytes(proc, groups) == expected


def test_available_memory_is_unknown_where_nothing_says_it(tmp_path: Path) -> None:
    assert available_bytes(tmp_path, tmp_path) is None
