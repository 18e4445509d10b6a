"""Session: a loaded pair, and everything a program does with it."""

import logging
import time
from collections.abc import Generator, Sequence
from dataclasses import fields
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Self, TypedDict, Unpack

from llamaspec import demo, models
from llamaspec.batches import run_batch
from llamaspec.completion import Cancel, Completion, Piece, Run, Spent
from llamaspec.engine.replay import plain_gap
from llamaspec.errors import ContextFullError, OptionError
from llamaspec.loading import LOOKUP, DraftSource, Pair, load_pair
from llamaspec.options import (
    CacheType,
    FlashAttention,
    GenerateOptions,
    GenerateSettings,
    Head,
    LoadOptions,
    Schedule,
    SplitMode,
)
from llamaspec.requests import Requests
from llamaspec.running import Counters, Running
from llamaspec.runtime.arrays import IntArray
from llamaspec.runtime.forecast import Forecast
from llamaspec.runtime.vocab import Vocab
from llamaspec.schedule.pace import Pace
from llamaspec.streams import AsyncStream, Driver
from llamaspec.text.prompt import Prompt, PromptReader
from llamaspec.verify.probe import Exactness

logger = logging.getLogger("llamaspec")


class Session:
    """A loaded target with its draft. A context manager; use it from one thread at a time or
    from several.

    Attributes:
        last: the newest finished Completion, None before the first.
    """

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._running = Running(pair)
        self._driver = Driver(self._running, self._finish)
        self._prompts = PromptReader(pair.model.vocab, pair.target_file.path)
        self._requests = Requests(pair)
        self.last: Completion | None = None

    @property
    def n_ctx(self) -> int:
        """Positions that prompt and completion of one sequence may use together."""
        return self._pair.n_ctx

    @property
    def forecast(self) -> Forecast:
        """What the pair was to take of every device's memory, planned before it was loaded."""
        return self._pair.forecast

    @property
    def draft_limit(self) -> int:
        """The most tokens that the draft proposes a round; 0 without a draft."""
        return self._requests.draft_limit

    @property
    def pace(self) -> Pace | None:
        """Who chooses how much to draft where a request leaves it open; None where a whole block is
        drafted then: without a draft, and where its head runs in Python.
        """
        return self._pair.engine.pacing.pace

    @property
    def schedule(self) -> Schedule:
        """How much is drafted and verified where a request leaves it open."""
        return self._pair.options.schedule

    @property
    def exact(self) -> bool:
        """Loaded to give what plain decoding gives, token for token."""
        return self._pair.options.exact

    @property
    def exactness(self) -> Exactness:
        """Whether passes over several rows compute what single rows do, measured in this session's
        settings. The first use takes about 200 passes, unless the result is in the user's cache.
        """
        with self._running.lock:
            self._running.check_open()
            return self._pair.measure_exactness()

    @property
    def has_chat_template(self) -> bool:
        return self._pair.target_file.has_chat_template

    def generate(
        self, prompt: Prompt, *, cancel: Cancel | None = None, **options: Unpack[GenerateSettings]
    ) -> Completion:
        """Complete a prompt.

        Args:
            prompt: chat messages ({"role": ..., "content": ...}) for the model's template; or text
                or token ids, used as they are.
            cancel: a threading.Event, say; once it is set, by any thread or task, the text ends
                before the next round, with what there is.
            options: the fields of GenerateOptions by name, which says what each means:
                max_tokens: most tokens to generate; the end of the context ends the text too.
                temperature: 0 for greedy decoding. seed: of the draws; the same seed gives the
                same text with and without a draft. None takes a fresh one.
                stop: one or more texts that end the completion.
                draft_max: most proposals a round, None for as many as pay, 0 for plain decoding.
                accept: "match", or with a temperature "residual" or "block", which accept more and
                give texts of the same distribution, but a seed another text than without the draft.
                logprobs: how many likeliest alternatives to give with every token's
                log-probability, None for none of it.
                cache_prompt: reuse what the caches hold of an earlier prompt that begins alike.
                priority: the higher goes first where requests wait for a place.
                top_k, top_p, min_p, typical_p; repeat_penalty, repeat_last_n, presence_penalty,
                frequency_penalty; dry_multiplier, dry_base, dry_allowed_length,
                dry_penalty_last_n, dry_sequence_breakers; logit_bias; grammar or json_schema.

        Raises:
            OptionError: an argument out of range, or a grammar or schema that cannot be used.
            QueueFullError: too many wait for a place already.
            ContextFullError: the prompt does not fit.
            SamplingError: grammar or logit_bias leave no token to go on with.
            DecodeError: llama.cpp failed, or an RPC server was lost.
            ClosedError: the session is closed.
        """
        return self._generate(self._prepare(prompt, GenerateOptions.of(options), cancel))

    def stream(
        self, prompt: Prompt, *, cancel: Cancel | None = None, **options: Unpack[GenerateSettings]
    ) -> Generator[Piece, None, Completion]:
        """As `generate`, yielding a Piece a round; afterwards `last` is the Completion. It starts
        when the first piece is asked for.

        Leaving the loop early frees the sequence as soon as the iterator is closed or dropped.
        """
        chosen = GenerateOptions.of(options)
        return self._stream(self._prepare(prompt, chosen, cancel, together=False))

    def generate_batch(
        self, prompts: Sequence[Prompt], **options: Unpack[GenerateSettings]
    ) -> list[Completion]:
        """Complete several prompts, as many at once as the session has places; return their
        completions in order.

        All prompts are checked before the first starts. Raises what `generate` does; an error ends
        all of them.
        """
        chosen = GenerateOptions.of(options)
        runs = [self._prepare(prompt, chosen) for prompt in prompts]
        done = run_batch(self._running, runs)
        self.last = done[-1] if done else self.last
        return done

    def astream(
        self, prompt: Prompt, *, cancel: Cancel | None = None, **options: Unpack[GenerateSettings]
    ) -> AsyncStream:
        """As `stream`, for asyncio: ``async for piece in session.astream(...)``, in any number of
        tasks at once. Errors come with the first piece; afterwards the stream's `completion` is the
        whole.
        """
        chosen = GenerateOptions.of(options)
        return AsyncStream(self._driver, partial(self._prepare, prompt, chosen, cancel))

    async def agenerate(
        self, prompt: Prompt, *, cancel: Cancel | None = None, **options: Unpack[GenerateSettings]
    ) -> Completion:
        """As `generate`, for asyncio. A task that is cancelled frees its place within a round."""
        stream = self.astream(prompt, cancel=cancel, **options)
        try:
            async for _ in stream:
                pass
            return stream.completion
        finally:
            await stream.aclose()

    @property
    def counters(self) -> Counters:
        """What the session has done so far, and what it is at."""
        return self._running.counters

    def tokenize(self, prompt: Prompt) -> IntArray:
        """Return the token ids [n] that `generate` would use for a prompt."""
        # the lock keeps another thread from closing the model in the middle
        with self._running.reading:
            self._running.check_open()
            return self._prompts.tokenize(prompt)

    @property
    def max_sequences(self) -> int:
        """Texts that are decoded at once."""
        return self._pair.options.max_sequences

    @property
    def stream_every_s(self) -> float:
        """Seconds for which pieces of asynchronous streams may be held back to come together, 0 for
        a piece a round: many streams at once cost less then. What begins and what ends a text comes
        at once.
        """
        return self._driver.every_s

    @stream_every_s.setter
    def stream_every_s(self, seconds: float) -> None:
        self._driver.every_s = seconds

    @property
    def names(self) -> tuple[str, str | None]:
        """The target's file without its ending, and the draft's; None without a draft's file."""
        pair = self._pair
        draft = None if pair.draft_file is None else pair.draft_file.path.stem
        return pair.target_file.path.stem, draft

    @property
    def vocab(self) -> Vocab:
        """The target's vocabulary; usable as long as the session is open."""
        return self._pair.model.vocab

    @property
    def template_source(self) -> str:
        """The target's chat template as text, empty where it has none."""
        with self._running.reading:
            self._running.check_open()
            return self._prompts.template.source if self.has_chat_template else ""

    def plain_gap(self, prompt: Prompt, tokens: Sequence[int]) -> float:
        """How far apart, in logits, the two largest lie where plain decoding of a prompt chooses
        the token after `tokens`.
        """
        ids = self._fitting_prompt(prompt)
        with self._running.lock:
            self._running.check_open()
            return plain_gap(self._pair.engine, self._pair.context, ids, tokens)

    def close(self) -> None:
        """Free both models. A second call does nothing; any later use raises ClosedError."""
        self._driver.stop()
        self._running.close()

    def __enter__(self) -> Self:
        self._running.check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _prepare(
        self,
        prompt: Prompt,
        options: GenerateOptions,
        cancel: Cancel | None = None,
        *,
        together: bool = True,
    ) -> Run:
        started = time.perf_counter()
        ids = self._fitting_prompt(prompt)
        with self._running.lock:
            self._running.check_open()
            sampler = self._requests.sampler(ids, options)
        request = self._requests.request(ids, options, sampler, together=together)
        return Run(request, sampler, Spent(time.perf_counter() - started), cancel)

    def _generate(self, run: Run) -> Completion:
        stream = self._stream(run)
        while True:
            try:
                next(stream)
            except StopIteration as end:
                # not `last`: another thread may have finished something meanwhile
                done: Completion = end.value
                return done

    def _stream(self, run: Run) -> Generator[Piece, None, Completion]:
        running = self._running
        try:
            running.submit(run)
            while True:
                with running.lock:
                    ended, piece = run.ended, run.take()
                if piece is not None:
                    yield piece
                elif ended:
                    break
                else:
                    running.step(run)
            done = run.completion()
            self._finish(done)
            return done
        finally:
            running.leave(run)

    def _finish(self, done: Completion) -> None:
        self.last = done

    def _fitting_prompt(self, prompt: Prompt) -> IntArray:
        ids = self.tokenize(prompt)
        if not len(ids):
            raise OptionError("the prompt is empty; give at least one token")
        if len(ids) >= self.n_ctx:
            raise ContextFullError(
                f"the prompt has {len(ids)} tokens but the context {self.n_ctx}, and at least one "
                "must stay free; shorten the prompt or load with a larger context (-c)"
            )
        return ids


class Settings(TypedDict, total=False):
    """The fields of LoadOptions, for giving them by name."""

    context: int
    n_gpu_layers: int
    n_gpu_layers_draft: int
    threads: int
    batch: int
    flash_attention: FlashAttention
    cache_type: CacheType
    head: Head
    max_sequences: int
    queue: int
    device: str | None
    device_draft: str | None
    split_mode: SplitMode
    rpc: str | None
    exact: bool
    lookup: bool
    cost_curve: str | None
    schedule: Schedule
    fit: bool
    prefix_cache: int | None


def load(
    model: str | PathLike[str] | None = None,
    draft: str | PathLike[str] | None = None,
    *,
    options: LoadOptions | None = None,
    **settings: Unpack[Settings],
) -> Session:
    """Load a target and its draft.

    Args:
        model: a GGUF file; or owner/repo:Q4_K_M of the Hub, or hf://owner/repo/file.gguf, which are
            downloaded. None, with no draft either: the bundled pair.
        draft: the target's DSpark or DFlash draft, likewise, or its checkpoint (a folder or a
            repository), which is converted once; "auto" for one that lies beside the target or is
            known for it; "lookup" to search prompt and output instead, without a model; None for
            plain decoding.
        options: see LoadOptions.
        settings: its fields by name, instead: context, n_gpu_layers, n_gpu_layers_draft, threads,
            batch, flash_attention, cache_type, head, max_sequences, queue, device, device_draft,
            split_mode, rpc, exact, lookup, cost_curve, schedule, fit, prefix_cache.

    Raises:
        OptionError: a setting cannot be used, or an RPC server not be reached.
        ModelLoadError: a file is missing, damaged or of another kind.
        IncompatibleDraftError: the two do not fit; both values are named.
    """
    if options is not None and settings:
        raise OptionError("give either options or single settings, not both")
    chosen = options or _load_options(settings)
    if model is None:
        if draft is not None:
            raise OptionError(f"draft {draft} was given without a model; give both or neither")
        model, draft = demo.target_path(), demo.draft_path()
    _check_name("model", model)
    target = models.find_target(model)
    draft_path: DraftSource = None
    if draft is not None:
        _check_name("draft", draft)
        draft_path = LOOKUP if draft == LOOKUP else models.find_draft(draft, target)
    return Session(load_pair(target.path, draft_path, chosen))


def _check_name(name: str, reference: str | PathLike[str]) -> None:
    if not isinstance(reference, str | PathLike) or not str(reference):
        raise OptionError(
            f"{name} is {reference!r}; give the path of a GGUF or the name of a repository"
        )


def _load_options(settings: Settings) -> LoadOptions:
    known = {field.name for field in fields(LoadOptions)}
    unknown = sorted(settings.keys() - known)
    if unknown:
        raise OptionError(f"unknown setting {unknown[0]!r}; known are {', '.join(sorted(known))}")
    return LoadOptions(**settings)
