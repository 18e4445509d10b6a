"""`llamaspec bench`: arms compared, a report of it, what passes cost, models of random weights."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from llamaspec.cli.guard import guarded, show_log
from llamaspec.cli.placing import Rpc
from llamaspec.errors import OptionError
from llamaspec.options import ALL_LAYERS, LoadOptions

app = typer.Typer(
    help="Measure: arms against each other, the cost of passes; and report it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_ARMS = (
    "Of plain, lookup, dspark (-d), dflash (--dflash), server, server-plain, server-dflash, "
    "simple, simple-dflash; @N: N proposals a round."
)
_PROMPTS = "JSON lines, a folder of such files, or hf[:SPLIT] for SPEED-Bench; absent: four."
Target = Annotated[
    str | None,
    typer.Option("-m", "--model", help="Target: file or owner/repo:Q8_0; absent: bundled."),
]
Draft = Annotated[str | None, typer.Option("-d", "--draft", help="Its DSpark or DFlash draft.")]
Threads = Annotated[int, typer.Option("-t", "--threads", help="0: the physical cores.")]
Context = Annotated[int, typer.Option("-c", "--context", help="Positions; 0: as llamaspec run.")]
Flash = Annotated[str, typer.Option("--flash-attention", help="auto, on or off.")]
Cache = Annotated[str, typer.Option("--cache-type", help="KV caches: f32, f16, bf16, q8_0.")]
Layers = Annotated[int, typer.Option("-ngl", help="Target layers on the GPU, -1 for all.")]
DraftLayers = Annotated[int, typer.Option("-ngld", help="Draft layers on the GPU.")]
Output = Annotated[Path | None, typer.Option("--json", help="Write the result to this file.")]


@app.command()
def run(
    model: Target = None,
    draft: Draft = None,
    dflash: Annotated[
        str | None, typer.Option("--dflash", help="A second draft, for the dflash arms.")
    ] = None,
    prompts: Annotated[str | None, typer.Option("--prompts", help=_PROMPTS)] = None,
    arms: Annotated[str, typer.Option("--arms", help=_ARMS)] = "plain,dspark",
    base: Annotated[str, typer.Option("--base", help="Compared with; absent: plain.")] = "",
    max_tokens: Annotated[int, typer.Option("-n", "--max-tokens", help="Most tokens.")] = 256,
    repeats: Annotated[int, typer.Option("--repeats", help="Runs of every prompt and arm.")] = 5,
    per_category: Annotated[
        int | None, typer.Option("--per-category", min=1, help="Prompts of each; absent: all.")
    ] = None,
    skip: Annotated[
        int, typer.Option("--skip", min=0, help="Leave out the first of each category.")
    ] = 0,
    random: Annotated[
        int, typer.Option("--random", min=0, help="Besides, so many prompts of random letters.")
    ] = 0,
    threads: Threads = 0,
    context: Context = 0,
    flash_attention: Flash = "auto",
    cache_type: Cache = "f16",
    n_gpu_layers: Layers = ALL_LAYERS,
    n_gpu_layers_draft: DraftLayers = ALL_LAYERS,
    rpc: Rpc = None,
    synth_rates: Annotated[
        str | None,
        typer.Option("--synth-rates", help="Accept by chance: a rate a position, if reached."),
    ] = None,
    tools: Annotated[
        Path | None, typer.Option("--tools", help="Folder of llama.cpp's tools; absent: ours.")
    ] = None,
    output: Output = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show llama.cpp's log.")] = False,
) -> None:
    """Compare arms on the same prompts, in turn; losses are shown as gains are."""
    show_log(verbose)
    with guarded():
        options = LoadOptions(
            context=context,
            threads=threads,
            flash_attention=flash_attention,  # type: ignore[arg-type]
            cache_type=cache_type,  # type: ignore[arg-type]
            n_gpu_layers=n_gpu_layers,
            n_gpu_layers_draft=n_gpu_layers_draft,
            rpc=rpc,
        )
        from llamaspec.bench.run import Plan, compare
        from llamaspec.bench.tables import report
        from llamaspec.bench.workloads import noise, read

        plan = Plan(
            target=model,
            draft=draft,
            dflash=dflash,
            arms=arms,
            base=base,
            max_tokens=max_tokens,
            repeats=repeats,
            rates=synth_rates,
            tools=tools,
            options=options,
        )
        asked = read(prompts, per_category, skip) + noise(random)
        result = compare(plan, asked, _progress)
        if output is not None:
            result.save(output)
        for line in report(result):
            typer.echo(line)


def _progress(done: int, total: int) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        typer.echo(f"\r{done} of {total}" + ("\n" if done == total else ""), nl=False, err=True)


@app.command()
def cost(
    model: Target = None,
    draft: Draft = None,
    widths: Annotated[
        str, typer.Option("--widths", help="Rows of target passes, such as 1,2,4,8 or 1-15.")
    ] = "",
    depths: Annotated[
        str, typer.Option("--depths", help="Positions before them; absent: 256,2048,8192.")
    ] = "",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Turns.")] = 7,
    threads: Threads = 0,
    flash_attention: Flash = "auto",
    cache_type: Cache = "f16",
    n_gpu_layers: Layers = ALL_LAYERS,
    n_gpu_layers_draft: DraftLayers = ALL_LAYERS,
    rpc: Rpc = None,
    output: Output = None,
    curve: Annotated[
        Path | None, typer.Option("--curve", help="Write the cost curve alone to this file.")
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show llama.cpp's log.")] = False,
) -> None:
    """Measure what a pair's passes cost, by rows and context, beside what memory allows."""
    show_log(verbose)
    with guarded():
        options = LoadOptions(
            threads=threads,
            flash_attention=flash_attention,  # type: ignore[arg-type]
            cache_type=cache_type,  # type: ignore[arg-type]
            n_gpu_layers=n_gpu_layers,
            n_gpu_layers_draft=n_gpu_layers_draft,
            rpc=rpc,
        )
        rows, positions = _numbers("--widths", widths), _numbers("--depths", depths)
        from llamaspec.bench.cost import CostPlan, measure_cost, table

        found = measure_cost(CostPlan(model, draft, rows, positions, repeats, options))
        if output is not None:
            found.save(output)
        if curve is not None:
            found.curve.save(curve)
        for line in table(found):
            typer.echo(line)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    """1,2,4-8 as numbers."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise OptionError(f"{option} is {text!r}; give numbers such as 1,2,4-8")
        found += range(int(first), min(int(last or first), 1 << 20) + 1)
    return tuple(found)


@app.command()
def synth(
    shape: Annotated[str, typer.Option("--shape", help="qwen3-0.6b, -1.7b, -4b, -8b, -14b, -32b.")],
    folder: Annotated[Path, typer.Option("-o", "--output", help="Folder for the two files.")],
    quant: Annotated[
        str, typer.Option("--quant", help="Of the large matrices: f32, bf16, q8_0, q4_0.")
    ] = "q8_0",
) -> None:
    """Write a target and a draft of a true shape and random weights; one that is there is kept."""
    with guarded():
        from llamaspec.bench.synth import synthesise

        pair = synthesise(shape, quant, folder)
        typer.echo(f"{pair.target}\n{pair.draft}")


@app.command()
def report(
    results: Annotated[list[Path], typer.Argument(help="Files of bench run or bench cost.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")],
) -> None:
    """Show results as one HTML page, for which no network is needed."""
    with guarded():
        from llamaspec.bench.report import write_report

        write_report(results, output)
        typer.echo(str(output))
