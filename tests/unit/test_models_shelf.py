"""What is here, what is known, and what of it fits."""

from pathlib import Path

import pytest

from llamaspec import demo
from llamaspec.models import memory, shelf
from llamaspec.models.memory import Verdict, judge
from llamaspec.runtime import backend
from llamaspec.runtime.backend import Device

GIB = 1 << 30


def device(name: str, kind: str, free: int, total: int) -> Device:
    return Device(name, name, kind, free * GIB, total * GIB)


CPU, A, B = (
    device("CPU", "cpu", 20, 32),
    device("CUDA0", "gpu", 20, 24),
    device("CUDA1", "gpu", 20, 24),
)


@pytest.mark.parametrize(
    ("gib", "there", "verdict"),
    [
        (10, [CPU], Verdict("fits", "CPU")),
        (30, [CPU], Verdict("tight", "CPU")),
        (33, [CPU], Verdict("too large", "")),
        (10, [CPU, A], Verdict("fits", "CUDA0")),
        (39, [CPU, A, B], Verdict("fits", "CUDA0+CUDA1")),
        (45, [CPU, A, B], Verdict("tight", "CUDA0+CUDA1")),
        (30, [CPU, A], Verdict("tight", "CPU")),
        (1, [], Verdict("too large", "")),
    ],
)
def test_where_a_pair_fits(gib: int, there: list[Device], verdict: Verdict) -> None:
    assert judge(gib * GIB, there) == verdict


def test_a_context_takes_what_its_caches_take() -> None:
    path = demo.target_path()
    size = path.stat().st_size
    # 10 layers, 2 heads of 64 for keys and values each, two bytes
    position = 10 * 2 * (64 + 64) * 2
    more = memory.needed(path, size, 1024) - memory.needed(path, size, 512)
    assert more == 512 * position
    # no more than the model was trained for
    assert memory.needed(path, size, 1 << 20) == memory.needed(path, size, 4096)


@pytest.mark.native
def test_the_processors_memory_is_what_others_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "available_bytes", lambda: 1 << 20)
    left = [one.free_bytes for one in backend.devices() if one.kind == "cpu"]
    assert left == [1 << 20]


def test_the_bundled_pair_is_always_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMASPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(shelf, "cache_folder", lambda: tmp_path / "absent")
    target, draft = shelf.here([CPU])
    assert (target.kind, draft.kind) == ("target", "draft")
    assert target.verdict == "fits"
    assert {one.path for one in (target, draft)} == {demo.target_path(), demo.draft_path()}
    (one, *_) = shelf.known([CPU])
    assert one.draft == "deepseek-ai/dspark_qwen3_4b_block7"
    assert (one.has_target, one.has_draft) == (False, False)


def test_a_card_of_eight_gib_does_not_hold_the_large_pairs() -> None:
    found = {one.draft: one for one in shelf.known([device("CPU", "cpu", 8, 8)])}
    assert found["deepseek-ai/dspark_qwen3_4b_block7"].verdict == "fits"
    assert found["satgeze/Qwen3.6-27B-DSpark"].verdict == "too large"
    # a draft of unknown size says nothing about the pair
    assert found["RadixArk/Qwen3.8-27B-DSpark"].verdict == "target too large"
