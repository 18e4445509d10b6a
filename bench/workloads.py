"""Prompts by category: files of JSON lines, folders of them, and SPEED-Bench from the Hub."""

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llamaspec.bench.pairs import PROMPTS
from llamaspec.errors import OptionError

SPEED_BENCH = "nvidia/SPEED-Bench"
SPLITS = (
    "qualitative",
    *(f"throughput_{length}" for length in ("1k", "2k", "8k", "16k", "32k")),
)
# stands in for texts whose own licence forbids to pass them on; NVIDIA's script fetches those
_WITHHELD = "FULL BENCHMARK DATA SHOULD BE FETCHED"
_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user's turns. Only the first is generated for: later ones would depend on each arm's own
    answers, and arms could not be paired.
    """

    category: str
    id: str
    turns: tuple[str, ...]

    @property
    def text(self) -> str:
        return self.turns[0]


def read(source: str | None, per_category: int | None = None, skip: int = 0) -> list[Prompt]:
    """Prompts of a source, `per_category` of each category after the first `skip`, categories in
    turn.

    Args:
        source: a file of JSON lines, each with "category" and either "prompt" or "turns"; a folder
            of such files; "hf" or "hf:SPLIT" for SPEED-Bench; None for four built-in ones.

    Raises:
        OptionError: there is nothing of the kind, or a line is something else.
        ModelLoadError: the Hub does not give the data set.
    """
    if source is None:
        found = [Prompt(name, str(n), (text,)) for n, (name, text) in enumerate(PROMPTS)]
    elif source == "hf" or source.startswith("hf:"):
        found = speed_bench(source.partition(":")[2] or SPLITS[0])
    else:
        found = [prompt for path in _files(Path(source)) for prompt in read_lines(path)]
    chosen = choose(found, per_category, skip)
    if not chosen:
        raise OptionError(f"{source}: no prompts are left; give more, or a smaller --skip")
    return chosen


def noise(count: int, words: int = 30, seed: int = 1) -> list[Prompt]:
    """Prompts of random letters, a category of their own: a draft is of no use after them."""
    dice = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    return [
        Prompt(
            "random",
            str(number),
            (" ".join("".join(dice.choices(letters, k=dice.randint(3, 9))) for _ in range(words)),),
        )
        for number in range(count)
    ]


def choose(prompts: Iterable[Prompt], per_category: int | None, skip: int) -> list[Prompt]:
    """Some of each category, the categories in turn."""
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    stop = None if per_category is None else skip + per_category
    cut = [group[skip:stop] for group in groups.values()]
    longest = max(map(len, cut), default=0)
    return [group[i] for i in range(longest) for group in cut if i < len(group)]


def read_lines(path: Path) -> list[Prompt]:
    """The prompts of a file of JSON lines. Raises OptionError, with the line's number."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise OptionError(f"{path}: larger than 1 GiB, which no list of prompts is")
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise OptionError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise OptionError(f"{path}: is not UTF-8 text") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompt = prompt_of(json.loads(line), str(number))
        except (ValueError, RecursionError):
            prompt = None
        if prompt is None:
            raise OptionError(
                f'{path}:{number}: is not {{"category": TEXT, "prompt": TEXT}}, nor with "turns"'
            )
        found.append(prompt)
    return found


def prompt_of(item: Any, name: str) -> Prompt | None:  # noqa: ANN401
    """The prompt of a JSON object; None where it is none. name: where it has no id."""
    if not isinstance(item, dict) or not isinstance(item.get("category"), str):
        return None
    turns = item.get("turns", [item["prompt"]] if "prompt" in item else None)
    if not isinstance(turns, list) or not turns:
        return None
    if not all(isinstance(turn, str) for turn in turns) or not turns[0].strip():
        return None
    own = item.get("id", item.get("question_id", name))
    return Prompt(item["category"], str(own), tuple(turns))


def speed_bench(split: str) -> list[Prompt]:
    """One split of SPEED-Bench, without the entries that it only points at.

    Raises OptionError for an unknown split, or where pyarrow is missing for its files;
    ModelLoadError where the Hub does not give it.
    """
    if split not in SPLITS:
        raise OptionError(f"SPEED-Bench has no split {split!r}; it has {', '.join(SPLITS)}")
    from llamaspec.hub import fetch_dataset

    folder = fetch_dataset(SPEED_BENCH, [f"{split}/*.parquet", f"{split}/*.jsonl"]) / split
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            items = list(_parquet(path) if path.suffix == ".parquet" else _json_lines(path))
        except (
            OSError,
            ValueError,
            RecursionError,
        ) as error:  # pyarrow's errors are of these kinds
            raise OptionError(f"{path}: cannot be read ({type(error).__name__})") from None
        found += [p for n, item in enumerate(items) if (p := prompt_of(item, f"{path.stem} {n}"))]
    if not found:
        raise OptionError(f"{SPEED_BENCH}: its split {split} holds no files of prompts any more")
    return [prompt for prompt in found if _WITHHELD not in prompt.text]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.jsonl"))
    if not found:
        raise OptionError(f"{path}: has no .jsonl files")
    return found


def _json_lines(path: Path) -> Iterator[Any]:
    for line in path.read_text("utf-8").splitlines():
        yield json.loads(line) if line.strip() else None


def _parquet(path: Path) -> Iterator[Any]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise OptionError(
            "SPEED-Bench comes as parquet files, which need pyarrow: pip install 'llamaspec[bench]'"
        ) from None
    wanted = ("category", "turns", "question_id")
    table = parquet.read_table(path)
    yield from table.select([c for c in table.column_names if c in wanted]).to_pylist()
