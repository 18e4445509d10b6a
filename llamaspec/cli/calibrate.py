"""`llamaspec calibrate`: what a draft's confidences are worth, fitted, judged and kept."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llamaspec.cli.guard import guarded, show_log
from llamaspec.cli.quantize import clear_line, on_terminal
from llamaspec.cli.verify import asked, progress, read_prompts
from llamaspec.errors import OptionError
from llamaspec.options import ALL_LAYERS, LoadOptions

if TYPE_CHECKING:
    from llamaspec.calibrating import Calibrated, Position

_KEPT = {
    "confidences": "the confidences as they are, which no fit improves on; give more prompts",
    "temperatures": "temperatures",
    "levels": "temperatures and levels",
}
_LABELS = ("before", "temps", "levels", "chance")


def calibrate(
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Target; absent: the bundled pair.")
    ] = None,
    draft: Annotated[str | None, typer.Option("-d", "--draft", help="Its draft.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", help='A prompt a line, or JSON lines with a "prompt".'),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Absent: DRAFT.calibration.json beside the draft."),
    ] = None,
    embed: Annotated[
        Path | None, typer.Option("--embed", help="Write a copy of the draft that holds it.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Write a reliability plot (PNG).")
    ] = None,
    levels: Annotated[
        bool,
        typer.Option("--levels/--no-levels", help="Curves after the temperatures, if better."),
    ] = True,
    mixed: Annotated[
        bool, typer.Option("--mixed/--full", help="Rounds of every width, or of whole blocks.")
    ] = True,
    max_tokens: Annotated[int, typer.Option("-n", "--max-tokens", help="Of each text.")] = 128,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    n_gpu_layers: Annotated[int, typer.Option("-ngl", help="Layers on the GPU.")] = ALL_LAYERS,
    context: Annotated[int, typer.Option("-c", "--context", help="0: the model's.")] = 0,
    threads: Annotated[int, typer.Option("-t", "--threads", help="0: the physical cores.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show llama.cpp's log too.")
    ] = False,
) -> None:
    """Fit what a draft's confidences are worth, to verify as many proposals as pay.

    Rolls out with every block verified in full, fits sequential temperature scaling, and judges it
    on prompts that it was not fitted on. The file is found beside the draft.

    Exit code 0: done. 2: bad input. 130: interrupted.
    """
    show_log(verbose)
    with guarded():
        options = LoadOptions(context=context, n_gpu_layers=n_gpu_layers, threads=threads)
        texts = read_prompts(prompts)
        pair = _pair(model, draft)
        files = _files(pair, (output, embed, plot), force=force)
        if prompts is None:
            typer.echo(
                f"llamaspec: {len(texts)} bundled prompts are few to calibrate on; give hundreds "
                "of your own kind with --prompts",
                err=True,
            )
        found = _calibrated(pair, options, texts, (max_tokens, mixed, levels))
        made = _write(found, pair[1], files, force=force)
        if as_json:
            typer.echo(json.dumps(_as_json(found, made), ensure_ascii=False))
            return
        for line in [*_lines(found), f"written: {', '.join(made)}"]:
            typer.echo(line)


Files = tuple[Path, Path | None, Path | None]
"""The calibration, the copy of the draft, the plot."""


def _files(
    pair: tuple[Path, Path], wanted: tuple[Path | None, Path | None, Path | None], *, force: bool
) -> Files:
    """What is to be written, known to be possible before anything is computed."""
    from llamaspec.runtime.staged import check_output
    from llamaspec.schedule.stored import beside

    output, embed, plot = wanted
    files = (output or beside(pair[1]), embed, plot)
    for path in files:
        if path is not None:
            check_output(path, force, pair)
    if plot is not None:
        from llamaspec.bench.plots import library

        library()
    return files


def _write(found: "Calibrated", draft: Path, files: Files, *, force: bool) -> list[str]:
    from llamaspec.runtime.staged import staged

    written, embed, plot = files
    with staged(written, overwrite=force) as part:
        found.scaling.save(part)
    if embed is not None:
        from llamaspec.convert.annotate import annotate
        from llamaspec.schedule.stored import PREFIX, as_metadata

        annotate(draft, embed, as_metadata(found.scaling), drop=PREFIX, overwrite=force)
    if plot is not None:
        from llamaspec.bench.trust import draw

        with staged(plot, overwrite=force) as part:
            draw(part, {"confidences": found.before, "calibrated": found.after})
    return [str(path) for path in files if path is not None]


def _pair(model: str | None, draft: str | None) -> tuple[Path, Path]:
    from llamaspec import demo, models
    from llamaspec.loading import LOOKUP

    if draft == LOOKUP:
        raise OptionError("lookup is no draft with a file, and learns what it is worth by itself")
    if model is None and draft is None:
        return demo.target_path(), demo.draft_path()
    if model is None or draft is None:
        raise OptionError("give a target (-m) and its draft (-d), or neither for the bundled pair")
    target = models.find_target(model)
    return target.path, models.find_draft(draft, target)


def _calibrated(
    pair: tuple[Path, Path],
    options: LoadOptions,
    texts: list[str],
    how: tuple[int, bool, bool],
) -> "Calibrated":
    from llamaspec.calibrating import calibrate as fit
    from llamaspec.calibrating import roll_out
    from llamaspec.session import load

    (target, draft), (max_tokens, mixed, levels) = pair, how
    show = on_terminal()
    with load(target, draft, options=options) as session:
        try:
            rounds = roll_out(
                session,
                [asked(session, text) for text in texts],
                max_tokens=max_tokens,
                mixed=mixed,
                on_prompt=progress if show else lambda done, total: None,
            )
        finally:
            if show:
                clear_line()
    about = (("target", target.name), ("draft", draft.name), ("prompts", str(len(texts))))
    return fit(rounds, levels=levels, about=about)


def _as_json(found: "Calibrated", made: list[str]) -> dict[str, Any]:
    return {
        "prompts": found.prompts,
        "rounds": found.rounds,
        "positions": [asdict(position) for position in found.positions],
        "mean": asdict(found.mean),
        "kept": found.kept,
        "halves": [asdict(errors) for errors in found.halves],
        "temperatures": list(found.scaling.temperatures),
        "written": made,
    }


def _lines(found: "Calibrated") -> list[str]:
    mean = found.mean
    alone = " and ".join(f"{errors.levels:.1%}" for errors in found.halves)
    shown = (mean.before, mean.temperatures, mean.levels, mean.chance)
    return [
        f"{found.prompts} prompts, {found.rounds} rounds; either half of the prompts is judged by "
        "a fit on the other",
        f"position  rounds  {_header()}  AUC before   after  temperature",
        *(
            _row(str(i + 1), position, found.scaling.temperatures[i])
            for i, position in enumerate(found.positions)
        ),
        f"{'mean':>8}  {'':6}  {_columns(shown)}",
        f"ECE levels of the halves by themselves: {alone}",
        "ECE chance: what exactly right probabilities would show in so many rounds",
        f"kept: {_KEPT[found.kept]}",
    ]


def _header() -> str:
    return "  ".join(f"{'ECE ' + label:>10}" for label in _LABELS)


def _columns(values: tuple[float, ...]) -> str:
    return "  ".join(f"{value:10.1%}" for value in values)


def _row(label: str, found: "Position", temperature: float) -> str:
    errors = found.errors
    shown = (errors.before, errors.temperatures, errors.levels, errors.chance)
    aucs = "  ".join(
        f"{'-' if auc is None else f'{auc:.3f}':>{width}}"
        for auc, width in ((found.auc_before, 10), (found.auc_after, 6))
    )
    return f"{label:>8}  {found.rounds:6}  {_columns(shown)}  {aucs}  {temperature:11.2f}"
