"""Options of several commands on where a target computes."""

from typing import Annotated

import typer

Rpc = Annotated[
    str | None,
    typer.Option("--rpc", help="RPC servers for the target's layers: HOST:PORT, with commas."),
]
