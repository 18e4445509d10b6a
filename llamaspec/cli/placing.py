"""Options of several commands on which pair is loaded, and where the target computes."""

from typing import Annotated

import typer

Model = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        help="Target GGUF or owner/repo:Q4_K_M of the Hub; absent: the bundled pair.",
    ),
]
Draft = Annotated[
    str | None,
    typer.Option("-d", "--draft", help="Its draft: file, checkpoint, repository; auto or lookup."),
]
Rpc = Annotated[
    str | None,
    typer.Option("--rpc", help="RPC servers for the target's layers: HOST:PORT, with commas."),
]
