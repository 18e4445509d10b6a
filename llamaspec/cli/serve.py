"""`llamaspec serve`: an OpenAI-compatible server."""

import contextlib
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from llamaspec.cli.guard import guarded, show_log
from llamaspec.cli.placing import Rpc
from llamaspec.errors import OptionError
from llamaspec.options import ALL_LAYERS, LoadOptions
from llamaspec.serve.settings import (
    DEFAULT_PORT,
    DEFAULT_QUEUE,
    DEFAULT_SEQUENCES,
    ServeSettings,
)

if TYPE_CHECKING:
    from llamaspec.session import Session

_DEFAULTS = ServeSettings()


def serve(
    model: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            help="Target GGUF or hf://owner/repo/file.gguf; absent: the bundled pair.",
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option("-d", "--draft", help="Its DSpark or DFlash draft GGUF, or lookup."),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Where to listen; 0.0.0.0: on every network.")
    ] = _DEFAULTS.host,
    port: Annotated[int, typer.Option("--port", help="0: a free one.")] = DEFAULT_PORT,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar="LLAMASPEC_API_KEY",
            show_envvar=True,
            help="What callers must show, everywhere but on /health.",
        ),
    ] = None,
    max_sequences: Annotated[
        int, typer.Option("--max-sequences", help="Texts that are decoded at once.")
    ] = DEFAULT_SEQUENCES,
    queue: Annotated[
        int, typer.Option("--queue", help="Texts that may wait for a place; more are refused.")
    ] = DEFAULT_QUEUE,
    context: Annotated[
        int,
        typer.Option(
            "-c",
            "--context",
            help="Positions for prompt and completion of a text; 0: the model's, at most 4096.",
        ),
    ] = 0,
    threads: Annotated[int, typer.Option("-t", "--threads", help="0: the physical cores.")] = 0,
    n_gpu_layers: Annotated[
        int, typer.Option("-ngl", help="Target layers on the GPU, -1 for all.")
    ] = ALL_LAYERS,
    n_gpu_layers_draft: Annotated[
        int, typer.Option("-ngld", help="Draft layers on the GPU, -1 for all.")
    ] = ALL_LAYERS,
    device: Annotated[
        str | None, typer.Option("--device", help="The target's devices, as doctor lists; or cpu.")
    ] = None,
    device_draft: Annotated[
        str | None, typer.Option("--device-draft", help="The draft's; absent: all there are.")
    ] = None,
    split_mode: Annotated[
        str, typer.Option("--split-mode", help="The target over several: layer, none, row, tensor.")
    ] = "layer",
    rpc: Rpc = None,
    cache_type: Annotated[
        str, typer.Option("--cache-type", help="Of the KV caches: f32, f16, bf16, q8_0.")
    ] = "f16",
    lookup: Annotated[
        bool,
        typer.Option(
            "--lookup", help="Beside the draft, look up what followed in the text before."
        ),
    ] = False,
    cost_curve: Annotated[
        str | None,
        typer.Option("--cost-curve", help="What passes cost, of `bench cost`; absent: measured."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Of the model in replies; absent: its file's.")
    ] = None,
    temperature: Annotated[
        float, typer.Option("--temp", help="Of requests that name none.")
    ] = _DEFAULTS.temperature,
    max_body: Annotated[
        int, typer.Option("--max-body", help="Bytes of a request's body.")
    ] = _DEFAULTS.max_body,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Most seconds of a request.")
    ] = _DEFAULTS.timeout_s,
    grace: Annotated[
        float, typer.Option("--grace", help="Seconds that requests get when the server stops.")
    ] = _DEFAULTS.grace_s,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", help="Origin of a page that may call; may be repeated."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show llama.cpp's log too.")
    ] = False,
) -> None:
    """Serve a pair over HTTP, by the names of OpenAI's API.

    Exit code 0: told to stop. 2: bad input, with the reason on stderr.
    """
    show_log(verbose)
    with guarded():
        settings = ServeSettings(
            host=host,
            port=port,
            api_key=api_key,
            name=name,
            temperature=temperature,
            max_body=max_body,
            timeout_s=timeout,
            grace_s=grace,
            origins=tuple(allow_origin or ()),
        )
        options = LoadOptions(
            context=context,
            n_gpu_layers=n_gpu_layers,
            n_gpu_layers_draft=n_gpu_layers_draft,
            threads=threads,
            device=device,
            device_draft=device_draft,
            split_mode=split_mode,  # type: ignore[arg-type]
            rpc=rpc,
            cache_type=cache_type,  # type: ignore[arg-type]
            max_sequences=max_sequences,
            queue=queue,
            lookup=lookup,
            cost_curve=cost_curve,
        )
        _serve(model, draft, options, settings)


def _serve(
    model: str | None, draft: str | None, options: LoadOptions, settings: ServeSettings
) -> None:
    try:
        from llamaspec.serve import running
    except ImportError as error:
        raise OptionError(
            f"serving needs {error.name}, which is not installed: pip install 'llamaspec[serve]'"
        ) from None
    with contextlib.closing(running.bind(settings)) as listener:
        loading = _Loading(model, draft, options)
        from llamaspec.serve.app import create_app

        with loading.result() as session:
            app = create_app(session, settings, name=session.names[0])
            running.run(
                app, listener, settings, lambda: _say_ready(running.url_of(listener), session)
            )


class _Loading:
    """Loads a pair while the main thread imports what serves it."""

    def __init__(self, model: str | None, draft: str | None, options: LoadOptions) -> None:
        self._session: Session | None = None
        self._error: BaseException | None = None

        def work() -> None:
            try:
                from llamaspec.session import load

                self._session = load(model, draft, options=options)
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=work, name="loading", daemon=True)
        self._thread.start()

    def result(self) -> "Session":
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._session is not None
        return self._session


def _say_ready(url: str, session: "Session") -> None:
    from llamaspec.serve.running import memory_bytes

    target, draft = session.names
    pair = f"{target} with {draft}" if draft else f"{target} with no draft's file"
    typer.echo(
        f"llamaspec: ready at {url}: {pair}, n_ctx {session.n_ctx}, "
        f"{session.max_sequences} sequences, {memory_bytes() / 2**20:.0f} MiB"
    )
