"""Replicas of the server under Ray Serve, more of them while requests queue up:
``serve run llamaspec.serve.ray:app model=target.gguf draft=draft.gguf max_replicas=8``.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve import Application
from starlette.applications import Starlette

from llamaspec.options import ALL_LAYERS, LoadOptions
from llamaspec.serve.settings import DEFAULT_QUEUE, DEFAULT_SEQUENCES, ServeSettings


class Replicas(BaseModel):
    """What `app` takes, as NAME=VALUE on the command line or under `args` of a Serve config.

    model, draft, context, n_gpu_layers, n_gpu_layers_draft, lookup: as of `llamaspec serve`, for
    each replica.
    threads: of a replica, which are also the processors that Ray keeps for it; 0 for the physical
    cores of the machine that starts the application. gpus: that Ray keeps for a replica.
    max_sequences: texts that a replica decodes at once. queue: how many more it may hold; beyond
    that requests wait with Ray.
    min_replicas, max_replicas: within these there are as many as leave a replica about
    max_sequences requests. name: of the model in replies.
    """

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    draft: str | None = None
    name: str | None = None
    context: int = 0
    threads: int = 0
    n_gpu_layers: int = ALL_LAYERS
    n_gpu_layers_draft: int = ALL_LAYERS
    lookup: bool = False
    gpus: float = 0
    max_sequences: int = DEFAULT_SEQUENCES
    queue: int = DEFAULT_QUEUE
    min_replicas: int = 1
    max_replicas: int = 4

    def load_options(self) -> LoadOptions:
        """How a replica loads the pair. Raises OptionError."""
        return LoadOptions(
            context=self.context,
            threads=self.threads,
            n_gpu_layers=self.n_gpu_layers,
            n_gpu_layers_draft=self.n_gpu_layers_draft,
            lookup=self.lookup,
            max_sequences=self.max_sequences,
            queue=self.queue,
        )


def app(args: Replicas) -> Application:
    """The application. Callers have to show what LLAMASPEC_API_KEY says where that is set.

    Raises OptionError for what no replica could use.
    """
    options = args.load_options()
    settings = ServeSettings(name=args.name, api_key=os.environ.get("LLAMASPEC_API_KEY"))
    model, draft = args.model, args.draft

    def replica() -> Starlette:
        return _replica(model, draft, options, settings)

    deployment = serve.deployment(
        name="llamaspec",
        max_ongoing_requests=args.max_sequences + args.queue,
        autoscaling_config={
            "min_replicas": args.min_replicas,
            "max_replicas": args.max_replicas,
            # Ray counts what is decoded and what waits
            "target_ongoing_requests": args.max_sequences,
        },
        ray_actor_options={"num_cpus": options.n_threads, "num_gpus": args.gpus},
    )
    found: Application = deployment(serve.ingress(replica)()).bind()
    return found


def _replica(
    model: str | None, draft: str | None, options: LoadOptions, settings: ServeSettings
) -> Starlette:
    from llamaspec.serve.app import create_app
    from llamaspec.session import load

    session = load(model, draft, options=options)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            session.close()

    return create_app(session, settings, name=session.names[0], lifespan=lifespan)
