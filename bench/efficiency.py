"""How much of the time goes to the passes themselves: rounds of a whole block against the same
passes computed bare.

    python -m llamaspec.bench.efficiency [-m TARGET -d DRAFT] [--prompts FILE] [--repeats 5]

Measuring bare passes and decoding take turns in one process. Efficiency is tokens/s while decoding
x (T_draft + T_injection + T_verify) / tau: bare seconds of a round / seconds that it took. Bare
passes are those of `llamaspec bench cost`, at the depth in the middle of each text.
"""

from pathlib import Path
from statistics import median, quantiles
from typing import Annotated

import typer

from llamaspec import Completion, Session, demo
from llamaspec.bench.workloads import read
from llamaspec.draft.block import BlockDrafter
from llamaspec.loading import Pair, load_pair
from llamaspec.options import LoadOptions
from llamaspec.schedule.cost import CostCurve
from llamaspec.schedule.measure import DraftSide, Grid, measure

_DEPTHS = (64, 192)


def bare(pair: Pair, block: int) -> CostCurve:
    """The passes of a round over `block` proposals."""
    drafter = pair.drafter
    assert isinstance(drafter, BlockDrafter), "main lets no other draft through"
    side = DraftSide(drafter.context, drafter.layout)
    return measure(pair.context, side, Grid((1, block + 1), _DEPTHS, 5))


def expected(curve: CostCurve, done: Completion, block: int) -> float:
    """Bare seconds of a completion's rounds after the prompt; injections of as many rows as a round
    commits on average.
    """
    rounds = done.rounds
    committed = round(sum(r.committed for r in rounds) / len(rounds))
    seconds = 0.0
    for record in rounds:
        rows = len(record.draft) + 1
        seconds += curve.verify_s(rows, record.start)
        if record.offered or record.draft:
            seconds += curve.draft_s(block, record.start)
            seconds += curve.injection_s(max(1, committed), record.start)
    return seconds


def main(
    model: Annotated[Path | None, typer.Option("-m", "--model", help="Target GGUF.")] = None,
    draft: Annotated[Path | None, typer.Option("-d", "--draft", help="Its draft.")] = None,
    prompts: Annotated[str | None, typer.Option("--prompts", help="As for bench run.")] = None,
    per_category: Annotated[int, typer.Option("--per-category", help="Prompts of each.")] = 4,
    repeats: Annotated[int, typer.Option("--repeats", help="Turns.")] = 5,
    tokens: Annotated[int, typer.Option("-n", help="Most tokens.")] = 96,
    threads: Annotated[int, typer.Option("-t", "--threads", help="0: physical cores.")] = 0,
) -> None:
    """Compare."""
    target = model or demo.target_path()
    pair = load_pair(target, draft or demo.draft_path(), LoadOptions(threads=threads))
    session, block = Session(pair), pair.drafter.proposals if pair.drafter else 0
    asked = [
        prompt.text if not session.has_chat_template else [{"role": "user", "content": prompt.text}]
        for prompt in read(prompts, per_category)
    ]
    shares = []
    for _ in range(repeats):
        curve = bare(pair, block)
        wanted = took = 0.0
        for prompt in asked:
            done = session.generate(prompt, max_tokens=tokens, draft_max=block, cache_prompt=False)
            wanted += expected(curve, done, block)
            took += done.stats.total_s - done.stats.time_to_first_token_s
        shares.append(wanted / took)
    low, _, high = quantiles(shares, n=4)
    typer.echo(
        f"bare passes are {100 * median(shares):.1f}% of the time ({100 * low:.1f} to "
        f"{100 * high:.1f}) in rounds of {block} proposals, {len(asked)} prompts x {repeats}"
    )


if __name__ == "__main__":
    typer.run(main)
