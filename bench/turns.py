"""A chat's second turn, going on from the caches against starting cold, in alternating runs.

    python -m llamaspec.bench.turns [-m TARGET -d DRAFT] [--prompts FILE.jsonl] [--repeats 5]

Prints by category: the second prompt's tokens and how many of them were reused, the time to its
first token of both, the median of the paired ratios with its quartiles, tau of both, and how many
texts were identical. Prompts as for `llamaspec.bench.pairs`; a prompt's second turn asks the next
one.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated

import typer

from llamaspec import Completion, Session, load
from llamaspec.bench.pairs import read_prompts
from llamaspec.options import LoadOptions


@dataclass(frozen=True)
class Turn:
    """One second turn, warm and cold. first_s: seconds to the first token."""

    category: str
    prompt: int
    cached: int
    warm_first_s: float
    cold_first_s: float
    warm_tokens: int
    warm_rounds: int
    cold_tokens: int
    cold_rounds: int
    identical: bool


def measure(
    session: Session, prompts: list[tuple[str, str]], *, repeats: int, max_tokens: int
) -> Iterator[Turn]:
    """Decode the first turn of every prompt and then the second, warm and cold in turn; whole
    blocks, so that their rounds compare.
    """
    for number, (category, question) in enumerate(prompts):
        first = [{"role": "user", "content": question}]
        answer = session.generate(first, max_tokens=max_tokens, cache_prompt=False).text
        block = session.draft_limit
        following = prompts[(number + 1) % len(prompts)][1]
        chat = [
            *first,
            {"role": "assistant", "content": answer},
            {"role": "user", "content": following},
        ]
        for turn in range(repeats):
            runs = {}
            for warm in (True, False) if turn % 2 else (False, True):
                session.generate(first, draft_max=block, max_tokens=max_tokens, cache_prompt=False)
                runs[warm] = session.generate(
                    chat, draft_max=block, max_tokens=max_tokens, cache_prompt=warm
                )
            yield _turn(category, runs[True], runs[False])


def _turn(category: str, warm: Completion, cold: Completion) -> Turn:
    return Turn(
        category=category,
        prompt=warm.stats.prompt_tokens,
        cached=warm.stats.cached_tokens,
        warm_first_s=warm.stats.time_to_first_token_s,
        cold_first_s=cold.stats.time_to_first_token_s,
        warm_tokens=warm.stats.completion_tokens,
        warm_rounds=warm.stats.rounds,
        cold_tokens=cold.stats.completion_tokens,
        cold_rounds=cold.stats.rounds,
        identical=warm.token_ids == cold.token_ids,
    )


def table(turns: list[Turn]) -> list[str]:
    """The report, a line a category and one for all."""
    lines = ["category        prompt  cached  warm ms  cold ms  ratio (quartiles)    tau w/c  same"]
    for name in [*sorted({t.category for t in turns}), "all"]:
        chosen = [t for t in turns if name in ("all", t.category)]
        prompt, cached = median(t.prompt for t in chosen), median(t.cached for t in chosen)
        warm = 1000 * median(t.warm_first_s for t in chosen)
        cold = 1000 * median(t.cold_first_s for t in chosen)
        low, middle, high = quantiles([t.cold_first_s / t.warm_first_s for t in chosen], n=4)
        taus = [
            sum(t.warm_tokens - 1 for t in chosen) / max(1, sum(t.warm_rounds for t in chosen)),
            sum(t.cold_tokens - 1 for t in chosen) / max(1, sum(t.cold_rounds for t in chosen)),
        ]
        lines.append(
            f"{name:<15} {prompt:6.0f}  {cached:6.0f}  {warm:7.1f}  {cold:7.1f}  "
            f"{middle:5.2f} ({low:.2f}..{high:.2f})  {taus[0]:.3f} {taus[1]:.3f}  "
            f"{sum(t.identical for t in chosen)}/{len(chosen)}"
        )
    return lines


def main(
    model: Annotated[
        str | None, typer.Option("-m", help="Target GGUF; absent: the bundled pair.")
    ] = None,
    draft: Annotated[str | None, typer.Option("-d", help="Its draft GGUF.")] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="JSON lines as for pairs.")
    ] = None,
    per_category: Annotated[int, typer.Option("--per-category", help="Prompts of each.")] = 4,
    skip: Annotated[int, typer.Option("--skip", help="Leave out the first of each.")] = 8,
    repeats: Annotated[int, typer.Option("--repeats", help="Runs of every prompt.")] = 5,
    max_tokens: Annotated[int, typer.Option("-n", help="Most tokens.")] = 96,
    threads: Annotated[int, typer.Option("-t", help="0: physical cores.")] = 0,
    exact: Annotated[bool, typer.Option("--exact", help="In exact mode.")] = False,
    batch: Annotated[int, typer.Option("--batch", help="Positions a prompt's pass.")] = 512,
    as_json: Annotated[bool, typer.Option("--json", help="Print turns as JSON.")] = False,
) -> None:
    """Measure what a second turn saves."""
    chosen = read_prompts(prompts, per_category, skip)
    options = LoadOptions(threads=threads, exact=exact, batch=batch)
    with load(model, draft, options=options) as session:
        list(measure(session, chosen[:2], repeats=1, max_tokens=16))
        turns = list(measure(session, chosen, repeats=repeats, max_tokens=max_tokens))
    print(json.dumps([asdict(t) for t in turns]) if as_json else "\n".join(table(turns)))


if __name__ == "__main__":
    typer.run(main)
