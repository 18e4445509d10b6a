"""The command line. Nothing heavy is imported before a command runs."""

import typer

from llamaspec._version import LLAMA_CPP_COMMIT, __version__
from llamaspec.cli import bench
from llamaspec.cli.calibrate import calibrate
from llamaspec.cli.chat import chat
from llamaspec.cli.convert import convert
from llamaspec.cli.convert_target import convert_target
from llamaspec.cli.doctor import doctor
from llamaspec.cli.guard import accept_any_text
from llamaspec.cli.inspect import inspect
from llamaspec.cli.models import models
from llamaspec.cli.pull import pull
from llamaspec.cli.quantize import quantize
from llamaspec.cli.run import run
from llamaspec.cli.serve import serve
from llamaspec.cli.verify import verify

app = typer.Typer(
    help="DSpark speculative decoding for GGUF models, on llama.cpp.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command()(chat)
app.command()(models)
app.command()(pull)
app.command()(serve)
app.command()(inspect)
app.command()(convert)
app.command("convert-target")(convert_target)
app.command()(quantize)
app.command()(verify)
app.command()(calibrate)
app.command()(doctor)
app.add_typer(bench.app, name="bench")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llamaspec {__version__} (llama.cpp {LLAMA_CPP_COMMIT[:12]})")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


def main() -> None:
    """Entry point of the `llamaspec` command."""
    accept_any_text()
    app()
