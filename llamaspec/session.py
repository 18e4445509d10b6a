"""Session: a loaded pair, and everything a program does with it."""

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import fields
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict, TypeVar, Unpack

from llamaspec import demo, hub
from llamaspec.completion import Cancel, Clock, Completion, Piece, Run, Spent, finished
from llamaspec.engine.replay import plain_gap
from llamaspec.engine.sequence import Request
from llamaspec.errors import ClosedError, ContextFullError, OptionError
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
from llamaspec.runtime.arrays import IntArray
from llamaspec.runtime.sampler import Sampler
from llamaspec.schedule.pace import Pace
from llamaspec.text.prompt import Prompt, PromptReader
from llamaspec.trace import TokenLogprob
from llamaspec.verify.probe import Exactness

logger = logging.getLogger("llamaspec")

T = TypeVar("T")


class Session:
    """A loaded target with its draft. A context manager; use it from one thread at a time or
    from several.

    Attributes:
        last: the newest finished Completion, None before the first.
    """

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._lock = threading.RLock()
        self._closed = False
        self._prompts = PromptReader(pair.model.vocab, pair.target_file.path)
        self._requests = Requests(pair)
        self._runs: list[Run] = []
        self._stepping = False
        self._leaving: list[tuple[Request, Sampler | None]] = []
        self.last: Completion | None = None

    @property
    def n_ctx(self) -> int:
        """Positions that prompt and completion of one sequence may use together."""
        return self._pair.n_ctx

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
        with self._lock:
            self._check_open()
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
                top_k, top_p, min_p, typical_p; repeat_penalty, repeat_last_n, presence_penalty,
                frequency_penalty; dry_multiplier, dry_base, dry_allowed_length,
                dry_penalty_last_n, dry_sequence_breakers; logit_bias; grammar or json_schema.

        Raises:
            OptionError: an argument out of range, or a grammar or schema that cannot be used.
            ContextFullError: the prompt does not fit. SamplingError: grammar or logit_bias leave
            no token to go on with. DecodeError: llama.cpp failed. ClosedError: the session is
            closed.
        """
        stream = self._stream(prompt, GenerateOptions.of(options), cancel, together=True)
        while True:
            try:
                next(stream)
            except StopIteration as end:
                # not `last`: another thread may have finished something meanwhile
                done: Completion = end.value
                return done

    def stream(
        self, prompt: Prompt, *, cancel: Cancel | None = None, **options: Unpack[GenerateSettings]
    ) -> Generator[Piece, None, Completion]:
        """As `generate`, yielding a Piece a round; afterwards `last` is the Completion.

        Leaving the loop early frees the sequence as soon as the iterator is closed or dropped.
        """
        return self._stream(prompt, GenerateOptions.of(options), cancel, together=False)

    def tokenize(self, prompt: Prompt) -> IntArray:
        """Return the token ids [n] that `generate` would use for a prompt."""
        # the lock keeps another thread from closing the model in the middle
        with self._lock:
            self._check_open()
            return self._prompts.tokenize(prompt)

    def plain_gap(self, prompt: Prompt, tokens: Sequence[int]) -> float:
        """How far apart, in logits, the two largest lie where plain decoding of a prompt chooses
        the token after `tokens`.
        """
        ids = self._fitting_prompt(prompt)
        with self._lock:
            self._check_open()
            return plain_gap(self._pair.engine, self._pair.context, ids, tokens)

    def close(self) -> None:
        """Free both models. A second call does nothing; any later use raises ClosedError."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._pair.close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _stream(
        self, prompt: Prompt, options: GenerateOptions, cancel: Cancel | None, *, together: bool
    ) -> Generator[Piece, None, Completion]:
        started = time.perf_counter()
        ids = self._fitting_prompt(prompt)
        sampler = self._sampler(ids, options)
        request = self._requests.request(ids, options, sampler, together=together)
        parts: list[str] = []
        try:
            run = self._admit(request, started)
            run.cancel = cancel
            yield from self._pieces(run, parts)
            done = self.last = finished(run, "".join(parts))
            return done
        finally:
            self._leave(request, sampler)

    def _leave(self, request: Request, sampler: Sampler | None) -> None:
        with self._lock:
            if self._stepping:
                # the garbage collector has come upon a stream in the middle of a step
                self._leaving.append((request, sampler))
                return
            self._runs = [run for run in self._runs if run.sequence.request is not request]
            self._pair.engine.release(request)
            if sampler is not None:
                sampler.close()

    def _step(self, move: Callable[[], T], spent: list[Spent]) -> T:
        """Move sequences on: all that wait pay for it, and none leaves meanwhile."""
        self._stepping = True
        try:
            with Clock(self._pair, spent):
                return move()
        finally:
            self._stepping = False
            while self._leaving:
                self._leave(*self._leaving.pop())

    def _pieces(self, run: Run, parts: list[str]) -> Iterator[Piece]:
        sequence = run.sequence
        while True:
            text, tokens = self._take(run)
            if text or tokens:
                parts.append(text)
                yield Piece(text, tokens, self._logprobs(run, len(tokens)))
            if sequence.finish_reason is not None and run.taken == len(sequence.tokens):
                if sequence.failure is not None:
                    raise sequence.failure
                return
            self._advance(run)

    def _take(self, run: Run) -> tuple[str, tuple[int, ...]]:
        with self._lock:
            sequence = run.sequence
            tokens = tuple(sequence.tokens[run.taken :])
            run.taken = len(sequence.tokens)
            return sequence.request.ending.take(), tokens

    def _logprobs(self, run: Run, count: int) -> tuple[TokenLogprob, ...] | None:
        """Of the last `count` tokens that were taken."""
        sequence = run.sequence
        if sequence.request.logprobs is None:
            return None
        return tuple(sequence.logprobs[run.taken - count : run.taken])

    def _advance(self, run: Run) -> None:
        with self._lock:
            self._check_open()
            # another thread's step may have moved this sequence on already
            if run.taken < len(run.sequence.tokens):
                return
            if run.cancel is not None and run.cancel.is_set():
                run.sequence.request.ending.cancel()
            else:
                # a step moves all sequences on, and all of them wait for it
                self._step(self._pair.engine.step, self._waiting())

    def _sampler(self, ids: IntArray, options: GenerateOptions) -> Sampler | None:
        with self._lock:
            self._check_open()
            return self._requests.sampler(ids, options)

    def _admit(self, request: Request, started: float) -> Run:
        with self._lock:
            self._check_open()
            spent = Spent(time.perf_counter() - started)
            admit = partial(self._pair.engine.admit, request)
            sequence = self._step(admit, [spent, *self._waiting()])
            run = Run(sequence, spent, first_token_s=spent.total_s)
            self._runs.append(run)
            return run

    def _waiting(self) -> list[Spent]:
        # a finished stream that nobody reads on waits for nothing
        return [run.spent for run in self._runs if run.sequence.finish_reason is None]

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

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this session is closed; load the pair again to use it")


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
    device: str | None
    device_draft: str | None
    split_mode: SplitMode
    exact: bool
    lookup: bool
    cost_curve: str | None
    schedule: Schedule


def load(
    model: str | PathLike[str] | None = None,
    draft: str | PathLike[str] | None = None,
    *,
    options: LoadOptions | None = None,
    **settings: Unpack[Settings],
) -> Session:
    """Load a target and its draft.

    Args:
        model: a GGUF file, or hf://owner/repository/file.gguf. None, with no draft either: the
            bundled pair.
        draft: the target's DSpark or DFlash draft, likewise; "lookup" to search prompt and output
            instead, without a model; None for plain decoding.
        options: see LoadOptions.
        settings: its fields by name, instead: context, n_gpu_layers, n_gpu_layers_draft, threads,
            batch, flash_attention, cache_type, head, max_sequences, device, device_draft,
            split_mode, exact, lookup, cost_curve, schedule.

    Raises:
        OptionError, ModelLoadError, IncompatibleDraftError; each names what conflicts.
    """
    if options is not None and settings:
        raise OptionError("give either options or single settings, not both")
    chosen = options or _load_options(settings)
    if model is None:
        if draft is not None:
            raise OptionError(f"draft {draft} was given without a model; give both or neither")
        model, draft = demo.target_path(), demo.draft_path()
    target_path = _resolve("model", model)
    draft_path: DraftSource = None
    if draft is not None:
        draft_path = LOOKUP if draft == LOOKUP else _resolve("draft", draft)
    return Session(load_pair(target_path, draft_path, chosen))


def _resolve(name: str, reference: str | PathLike[str]) -> Path:
    if not isinstance(reference, str | PathLike) or not str(reference):
        raise OptionError(f"{name} is {reference!r}; give the path of a GGUF or an hf:// reference")
    return hub.resolve(reference)


def _load_options(settings: Settings) -> LoadOptions:
    known = {field.name for field in fields(LoadOptions)}
    unknown = sorted(settings.keys() - known)
    if unknown:
        raise OptionError(f"unknown setting {unknown[0]!r}; known are {', '.join(sorted(known))}")
    return LoadOptions(**settings)
