"""The command line of `python -m llamaspec.bench.load`."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from llamaspec.bench.load import (
    FULL,
    ORACLE,
    PLAIN,
    SCHEDULED,
    Measured,
    Outcome,
    Roofline,
    check_lines,
    lines,
    sweep,
)
from llamaspec.bench.load import check as compare
from llamaspec.bench.plots import library
from llamaspec.bench.recorded import BUNDLED, Recorded, Text, about
from llamaspec.bench.typed import of_json, read_object
from llamaspec.bench.workloads import read
from llamaspec.calibrating import calibrate, roll_out
from llamaspec.session import load

app: typer.Typer = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
Rounds = Annotated[Path, typer.Option("--rounds", help="Recorded rounds; absent: bundled ones.")]
Passes = Annotated[int, typer.Option("--passes", min=1, help="Shared passes of each run.")]
Seed = Annotated[int, typer.Option("--seed", help="Of the order of texts.")]
_HELD_OUT = 5


@app.command()
def simulate(
    rounds: Rounds = BUNDLED,
    plot: Annotated[Path | None, typer.Option("--plot", help="An SVG or PNG file.")] = None,
    output: Annotated[Path | None, typer.Option("--json", help="Write the outcomes.")] = None,
    passes: Passes = 200,
    seed: Seed = 1,
    floor: Annotated[float, typer.Option("--floor-ms", help="A pass's weights.")] = 4.0,
    row: Annotated[float, typer.Option("--row-us", help="A row's arithmetic.")] = 27.0,
) -> None:
    """Throughput and the speed of each user, by policy and number of sequences."""
    recorded = Recorded.load(rounds)
    costs = Roofline(floor_s=floor / 1e3, row_s=row / 1e6, block=recorded.proposals)
    found = sweep(recorded, costs, rounds=passes, seed=seed)
    for line in lines(found):
        typer.echo(line)
    if output is not None:
        output.write_text(json.dumps([asdict(o) for o in found], indent=1) + "\n", "utf-8")
    if plot is not None:
        draw(plot, found)


@app.command()
def check(
    measured: Annotated[Path, typer.Argument(help="JSON: verify, draft and runs.")],
    rounds: Rounds = BUNDLED,
    passes: Passes = 200,
    seed: Seed = 1,
) -> None:
    """Compare measured runs with the simulation at measured costs of passes."""
    points = of_json(Measured, {"runs": []} | read_object(measured), str(measured))
    for line in check_lines(compare(points, Recorded.load(rounds), rounds=passes, seed=seed)):
        typer.echo(line)


@app.command()
def record(
    prompts: Annotated[str, typer.Option("--prompts", help="As of llamaspec bench run.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")] = BUNDLED,
    model: Annotated[str | None, typer.Option("-m", "--model", help="Target.")] = None,
    draft: Annotated[str | None, typer.Option("-d", "--draft", help="Its draft.")] = None,
    max_tokens: Annotated[int, typer.Option("-n", "--max-tokens", help="Of each text.")] = 128,
    threads: Annotated[int, typer.Option("-t", "--threads", help="0: the physical cores.")] = 0,
) -> None:
    """Record one text in five; the calibration is fitted on the others."""
    chosen = read(prompts)
    categories = list(dict.fromkeys(p.category for p in chosen))
    chosen.sort(key=lambda p: categories.index(p.category))
    with load(model, draft, threads=threads) as session:
        chat = session.has_chat_template
        asked = [[{"role": "user", "content": p.text}] if chat else p.text for p in chosen]
        rounds = roll_out(session, asked, max_tokens=max_tokens)
    fitted = calibrate([each for i, each in enumerate(rounds) if i % _HELD_OUT])
    texts = tuple(Text.of(each) for each in rounds[::_HELD_OUT] if each)
    found = Recorded(texts, fitted.scaling)
    found.save(output)
    typer.echo(", ".join(f"{count} {name}" for name, count in about(found).items()))


def draw(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Throughput against the speed of each user, a line a policy, a point a number of sequences.

    Raises OptionError where matplotlib is missing.
    """
    figure = library().Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(o.policy for o in outcomes):
        chosen = [o for o in outcomes if o.policy == name]
        main = name in (PLAIN, FULL, SCHEDULED)
        style = {"marker": "o"} if main else {"linewidth": 0.7, "linestyle": ":"}
        style |= {"color": "black"} if name == ORACLE else {}
        x, y = [o.per_user for o in chosen], [o.throughput for o in chosen]
        axes.plot(x, y, label=name if not name.isdecimal() else f"{name} of the block", **style)
        if name == SCHEDULED:
            for o in chosen:
                axes.annotate(str(o.sequences), (o.per_user, o.throughput), fontsize="small")
    axes.set(xlabel="tokens/s of each user", ylabel="tokens/s of all", ylim=(0, None))
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize="small")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
