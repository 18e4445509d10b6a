"""Speculative against plain decoding of one pair, in alternating runs on the same prompts; how much
is drafted is left to the pace, as by default.

    python -m llamaspec.bench.pairs [-m TARGET -d DRAFT] [--prompts FILE.jsonl] [--json]

Prints by category: tokens/s of both, the median of the paired ratios with its quartiles, tau, the
share of time outside native compute, and whether the outputs were identical. Prompts are lines of
{"category": ..., "prompt": ...}; without a file, those of `PROMPTS`.
"""

import hashlib
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Annotated

import typer

from llamaspec import Completion, Session, load
from llamaspec._version import LLAMA_CPP_COMMIT, __version__
from llamaspec.options import LoadOptions

_PROMPTS_HELP = 'JSON lines of {"category", "prompt"}; absent: four of coding and mathematics.'
PROMPTS = (
    ("math", "A yard is 12 meters long and 4 meters wide. What is its area?"),
    ("math", "Elena has 56 oranges. Ivan gives Elena 20 more oranges. How many does she have now?"),
    ("coding", "Write a Python function named compute_train that computes the factorial of count."),
    (
        "coding",
        "Implement first_21 in Python: a function that returns the first 21 elements of nums.",
    ),
)


@dataclass(frozen=True)
class Sample:
    """One prompt decoded both ways; seconds of a run, without and with the draft."""

    category: str
    tokens: int
    rounds: int
    plain_s: float
    draft_s: float
    other_s: float
    plain_other_s: float
    identical: bool
    digest: str

    @property
    def ratio(self) -> float:
        return self.plain_s / self.draft_s


def measure(
    session: Session, prompts: list[tuple[str, str]], *, repeats: int, max_tokens: int
) -> Iterator[Sample]:
    """Decode every prompt both ways, `repeats` times, plain and drafted in turn."""
    for turn in range(repeats):
        for category, prompt in prompts:
            messages = [{"role": "user", "content": prompt}]
            limits = [0, None] if turn % 2 else [None, 0]
            runs = {
                limit: session.generate(
                    messages, max_tokens=max_tokens, draft_max=limit, cache_prompt=False
                )
                for limit in limits
            }
            yield sample(category, runs[None], runs[0])


def sample(category: str, drafted: Completion, plain: Completion) -> Sample:
    """Put both runs of a prompt together."""
    return Sample(
        category=category,
        tokens=drafted.stats.completion_tokens,
        rounds=drafted.stats.rounds,
        plain_s=plain.stats.total_s,
        draft_s=drafted.stats.total_s,
        other_s=drafted.stats.other_s,
        plain_other_s=plain.stats.other_s,
        identical=drafted.token_ids == plain.token_ids,
        digest=hashlib.sha256(repr(drafted.token_ids).encode()).hexdigest()[:12],
    )


def table(samples: list[Sample]) -> list[str]:
    """The report, a line a category and one for all."""
    head = "category        plain t/s  draft t/s  ratio (quartiles)    tau  other  identical"
    names = sorted({s.category for s in samples})
    lines = [head]
    for name in [*names, "all"]:
        chosen = [s for s in samples if name in ("all", s.category)]
        tokens, rounds = sum(s.tokens for s in chosen), sum(s.rounds for s in chosen)
        plain, drafted = sum(s.plain_s for s in chosen), sum(s.draft_s for s in chosen)
        low, middle, high = quantiles([s.ratio for s in chosen], n=4)
        other = sum(s.other_s for s in chosen) / drafted
        same = sum(s.identical for s in chosen)
        lines.append(
            f"{name:<15} {tokens / plain:9.0f}  {tokens / drafted:9.0f}  "
            f"{middle:5.2f} ({low:.2f}..{high:.2f})  "
            f"{(tokens - len(chosen)) / max(1, rounds):5.2f}  {other:5.1%}  {same}/{len(chosen)}"
        )
    return lines


def read_prompts(file: Path | None, per_category: int, skip: int) -> list[tuple[str, str]]:
    """Prompts of a file, `per_category` of each after the first `skip`; or the built-in ones."""
    if file is None:
        return list(PROMPTS)
    found: dict[str, list[str]] = {}
    for line in file.read_text().splitlines():
        item = json.loads(line)
        found.setdefault(item["category"], []).append(item["prompt"])
    turns = zip(*(texts[skip : skip + per_category] for texts in found.values()), strict=False)
    return [(name, text) for turn in turns for name, text in zip(found, turn, strict=True)]


def main(
    model: Annotated[
        str | None, typer.Option("-m", help="Target GGUF; absent: the bundled pair.")
    ] = None,
    draft: Annotated[str | None, typer.Option("-d", help="Its draft GGUF.")] = None,
    prompts: Annotated[Path | None, typer.Option("--prompts", help=_PROMPTS_HELP)] = None,
    per_category: Annotated[int, typer.Option("--per-category", help="Prompts of each.")] = 4,
    skip: Annotated[int, typer.Option("--skip", help="Leave out the first of each.")] = 8,
    repeats: Annotated[int, typer.Option("--repeats", help="Runs of every prompt.")] = 3,
    max_tokens: Annotated[int, typer.Option("-n", help="Most tokens.")] = 96,
    threads: Annotated[int, typer.Option("-t", help="0: physical cores.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print samples as JSON.")] = False,
) -> None:
    """Measure a pair against plain decoding, in alternating runs."""
    chosen = read_prompts(prompts, per_category, skip)
    options = LoadOptions(threads=threads)
    with load(model, draft, options=options) as session:
        for category, prompt in chosen[:2]:
            list(measure(session, [(category, prompt)], repeats=1, max_tokens=16))
        samples = list(measure(session, chosen, repeats=repeats, max_tokens=max_tokens))
    if as_json:
        about = {
            "argv": sys.argv,
            "llamaspec": __version__,
            "llama_cpp": LLAMA_CPP_COMMIT,
            "machine": platform.platform(),
        }
        print(json.dumps({**about, "samples": [asdict(s) for s in samples]}))
        return
    print("\n".join(table(samples)))


if __name__ == "__main__":
    typer.run(main)
