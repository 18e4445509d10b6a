"""`llamaspec serve`: an OpenAI-compatible server."""

import contextlib
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llamaspec.cli.guard import guarded, show_log
from llamaspec.cli.placing import Draft, Model
from llamaspec.cli.run import run
from llamaspec.cli.sharing import load_options, with_options_of
from llamaspec.errors import OptionError
from llamaspec.options import LoadOptions
from llamaspec.serve.settings import (
    DEFAULT_PORT,
    DEFAULT_QUEUE,
    DEFAULT_SEQUENCES,
    ServeSettings,
)

if TYPE_CHECKING:
    from llamaspec.session import Session

_DEFAULTS = ServeSettings()
_OF_RUN = (
    *("context", "threads", "n_gpu_layers", "n_gpu_layers_draft", "device", "device_draft"),
    *("split_mode", "rpc", "exact", "lookup", "cost_curve", "schedule", "fit"),
)


@with_options_of(run, _OF_RUN)
def serve(
    model: Model = None,
    draft: Draft = None,
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
    cache_type: Annotated[
        str, typer.Option("--cache-type", help="Of the KV caches: f32, f16, bf16, q8_0.")
    ] = "f16",
    prefix_cache: Annotated[
        int | None,
        typer.Option("--prefix-cache", help="MiB for prompts that lost their place; 0: none."),
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
    stream_every: Annotated[
        float,
        typer.Option(
            "--stream-every",
            help="Seconds for which tokens are held back to be sent together; 0: none.",
        ),
    ] = _DEFAULTS.stream_every_s,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", help="Origin of a page that may call; may be repeated."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show llama.cpp's log too.")
    ] = False,
    **given: Any,  # noqa: ANN401
) -> None:
    """Serve a pair over HTTP, by the names of OpenAI's API.

    Exit code 0: told to stop. 2: bad input, with the reason on stderr.
    """
    given |= {"max_sequences": max_sequences, "queue": queue, "cache_type": cache_type}
    given["prefix_cache"] = None if prefix_cache is None else prefix_cache << 20
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
            stream_every_s=stream_every,
            origins=tuple(allow_origin or ()),
        )
        _serve(model, draft, load_options(given), settings)


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
