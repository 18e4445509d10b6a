"""Plain decoding against llama-bench: tokens/s of generating from an empty context.

    python -m llamaspec.bench.rate -m TARGET [-n 128] [--repeats 5] [-t THREADS]

Runs take turns, each after a warm-up of its own; prints the rates and the median of the paired
ratios with its quartiles. llama-bench (`build.py --tools`) decodes random ids and reads nothing of
what comes out; ours chooses tokens, makes text of them and records rounds.
"""

import json
import os
import subprocess
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Annotated

import numpy as np
import typer

from llamaspec.engine.ending import Ending
from llamaspec.engine.sequence import Request
from llamaspec.ffi import LIBRARY_DIR
from llamaspec.loading import Pair, load_pair
from llamaspec.options import LoadOptions
from llamaspec.text.detokenize import Pieces


def ours(pair: Pair, tokens: int) -> float:
    """Tokens/s of so many, no end token among them."""
    engine, pieces = pair.engine, Pieces(pair.model.vocab.piece)
    start = np.array([min(pair.model.vocab.size - 1, 100)], np.int32)
    ending = Ending(pieces=pieces, ends=frozenset(), limit=tokens + 1)
    request = Request(start, tokens + 1, 0, ending, cache_prompt=False, together=True)
    sequence = engine.admit(request)
    began = perf_counter()
    while sequence.finish_reason is None:
        engine.step()
    seconds = perf_counter() - began
    engine.release(request)
    return tokens / seconds


def theirs(tool: Path, model: Path, threads: int, tokens: int) -> float:
    """What llama-bench calls tg."""
    flags = ["-p", "0", "-n", str(tokens), "-r", "1", "-t", str(threads), "-fa", "1", "-o", "json"]
    command = [str(tool), "-m", str(model), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)[0]["avg_ts"])


def main(
    model: Annotated[Path, typer.Option("-m", "--model", help="Target GGUF.")],
    tokens: Annotated[int, typer.Option("-n", help="Tokens a run.")] = 128,
    repeats: Annotated[int, typer.Option("--repeats", help="Pairs of runs.")] = 5,
    threads: Annotated[int, typer.Option("-t", "--threads", help="0: physical cores.")] = 0,
) -> None:
    """Compare."""
    folder = os.environ.get("LLAMASPEC_TOOLS")
    tool = (Path(folder) if folder else LIBRARY_DIR.parent / "bin") / "llama-bench"
    options = LoadOptions(threads=threads)
    pair = load_pair(model, None, options)
    ours(pair, tokens)
    rates, ratios = [], []
    for number in range(repeats):
        if number % 2:
            other, own = theirs(tool, model, options.n_threads, tokens), ours(pair, tokens)
        else:
            own, other = ours(pair, tokens), theirs(tool, model, options.n_threads, tokens)
        rates.append((own, other))
        ratios.append(own / other)
    low, _, high = quantiles(ratios, n=4)
    typer.echo(
        f"ours {median(a for a, _ in rates):.0f} tokens/s, llama-bench "
        f"{median(b for _, b in rates):.0f}: {median(ratios):.3f} x ({low:.3f} to {high:.3f})"
    )


if __name__ == "__main__":
    typer.run(main)
