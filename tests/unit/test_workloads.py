"""Prompts from files, folders and the Hub."""

import json
from pathlib import Path

import pytest

from llamaspec.bench.workloads import Prompt, choose, read
from llamaspec.errors import OptionError
from tests.fake_hub import Hub, serving

SCRIPT = """
import json
import sys
import time
time.sleep = lambda seconds: None
from llamaspec.bench.workloads import read
from llamaspec.errors import LlamaSpecError
try:
    print(json.dumps([[p.category, p.id, *p.turns] for p in read(sys.argv[1])]))
except LlamaSpecError as error:
    sys.exit(f"{type(error).__name__}|{error}")
"""
WITHHELD = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
ROWS = [
    {"question_id": "a1", "category": "coding", "turns": ["Write a loop.", "Now faster."]},
    {"question_id": "a2", "category": "coding", "turns": [WITHHELD]},
    {"question_id": "a3", "category": "qa", "turns": ["Why?"]},
    {"question_id": "a4", "category": "qa", "turns": []},
]


def write(path: Path, *items: object) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def test_both_forms_of_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        {"category": "math", "prompt": "1 + 1?"},
        {"category": "mt", "id": 7, "turns": ["First.", "Second."]},
    )
    with path.open("a") as file:
        file.write("\n")
    assert read(str(path)) == [
        Prompt("math", "1", ("1 + 1?",)),
        Prompt("mt", "7", ("First.", "Second.")),
    ]
    assert read(str(path))[1].text == "First."


def test_a_folder_gives_all_its_files(tmp_path: Path) -> None:
    write(tmp_path / "b.jsonl", {"category": "b", "prompt": "B"})
    write(tmp_path / "a.jsonl", {"category": "a", "prompt": "A"})
    (tmp_path / "README.md").write_text("no prompts")
    assert [p.text for p in read(str(tmp_path))] == ["A", "B"]


def test_categories_come_in_turn() -> None:
    prompts = [Prompt(c, str(i), (f"{c}{i}",)) for c in "ab" for i in range(4)]
    prompts.append(Prompt("c", "0", ("c0",)))
    assert [p.text for p in choose(prompts, 2, 1)] == ["a1", "b1", "a2", "b2"]
    assert [p.text for p in choose(prompts, None, 3)] == ["a3", "b3"]
    assert [p.text for p in choose(prompts, 1, 0)] == ["a0", "b0", "c0"]


def test_without_a_source_there_are_some_of_our_own() -> None:
    assert len(read(None)) == 4
    assert len({p.category for p in read(None)}) == 2


def test_more_skipped_than_there_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"category": "a", "prompt": "A"})
    with pytest.raises(OptionError, match="no prompts are left"):
        read(str(path), skip=1)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"category": "a"}',
        '{"prompt": "a"}',
        '{"category": 1, "prompt": "a"}',
        '{"category": "a", "prompt": 1}',
        '{"category": "a", "prompt": " "}',
        '{"category": "a", "turns": []}',
        '{"category": "a", "turns": "text"}',
        '{"category": "a", "turns": [""]}',
        "[" * 50_000,
    ],
)
def test_a_line_that_is_no_prompt_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"category": "a", "prompt": "A"}\n' + line + "\n")
    with pytest.raises(OptionError, match=r"a\.jsonl:2: is not"):
        read(str(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        read(str(tmp_path / "absent.jsonl"))
    with pytest.raises(OptionError, match=r"has no \.jsonl files"):
        read(str(tmp_path))
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match="is not UTF-8"):
        read(str(tmp_path))


def test_the_shared_prompts(shared: Path) -> None:
    found = read(str(shared / "prompts"), per_category=2)
    assert len(found) == 12
    assert len({p.category for p in found}) == 6
    tiny = read(str(shared / "models" / "prompts.jsonl"), per_category=3, skip=8)
    assert len(tiny) == 21


def test_a_split_that_is_none() -> None:
    with pytest.raises(OptionError, match=r"no split 'all'; it has qualitative"):
        read("hf:all")


def test_speed_bench_from_the_hub(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    from pyarrow import parquet

    file = tmp_path / "rows.parquet"
    parquet.write_table(pa.Table.from_pylist(ROWS), file)
    lines = "".join(json.dumps(row) + "\n" for row in ROWS[2:]).encode()
    files = {
        "README.md": b"no prompts",
        "qualitative/test-00000-of-00001.parquet": file.read_bytes(),
        "throughput_1k/test.jsonl": lines,
        "throughput_2k/test.parquet": b"PAR1 but broken",
    }
    hub = Hub({"nvidia/SPEED-Bench": files}, tmp_path / "home")
    with serving(hub):
        done = hub.run("-c", SCRIPT, "hf")
        assert json.loads(done.stdout) == [
            ["coding", "a1", "Write a loop.", "Now faster."],
            ["qa", "a3", "Why?"],
        ]
        assert [path for path, _ in hub.downloads()] == [
            "/datasets/nvidia/SPEED-Bench/resolve/"
            + "a" * 40
            + "/qualitative/test-00000-of-00001.parquet"
        ]
        assert json.loads(hub.run("-c", SCRIPT, "hf:throughput_1k").stdout) == [
            ["qa", "a3", "Why?"]
        ]
        broken = hub.run("-c", SCRIPT, "hf:throughput_2k")
        assert "OptionError|" in broken.stderr
        assert "cannot be read" in broken.stderr


def test_speed_bench_without_a_hub(tmp_path: Path) -> None:
    hub = Hub({}, tmp_path / "home")
    hub.address = "http://127.0.0.1:9"
    done = hub.run("-c", SCRIPT, "hf", HF_HUB_OFFLINE="1")
    assert "ModelLoadError|" in done.stderr
    assert "cannot be reached" in done.stderr
