"""The completions under way of a loaded pair: one step moves all of them on, whoever makes it."""

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from llamaspec.completion import Clock, Run
from llamaspec.engine.sequence import NO_SLOT
from llamaspec.errors import ClosedError, LlamaSpecError
from llamaspec.loading import Pair
from llamaspec.turnstile import Turnstile


@dataclass(frozen=True, slots=True)
class Counters:
    """What a session has done so far, and what it is at.

    active, waiting: texts with a place, and without. requests: all that were taken in; finished,
    cancelled, failed: how they ended ("finished" by an end, a stop text or a limit). rounds,
    drafted, accepted, prompt_tokens, cached_tokens, completion_tokens: sums of their statistics.
    queue_s: seconds that they waited for a place. cells_used, cells_total: positions of the
    target's KV cache.
    """

    active: int = 0
    waiting: int = 0
    requests: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    queue_s: float = 0.0
    cells_used: int = 0
    cells_total: int = 0


class Running:
    """Runs of a pair, moved on by any thread that waits for one. Thread-safe.

    lock: for whatever else computes with the pair.
    """

    def __init__(self, pair: Pair) -> None:
        self.lock = Turnstile()
        # whoever only reads the vocabulary does not wait for passes
        self.reading = threading.Lock()
        self.closed = False
        self._pair = pair
        self._runs: list[Run] = []
        self._leaving: deque[Run] = deque()
        self._stepping = False
        self._sums: dict[str, float] = dict.fromkeys(_SUMMED, 0)

    def check_open(self) -> None:
        if self.closed:
            raise ClosedError("this session is closed; load the pair again to use it")

    def submit(self, run: Run) -> None:
        """Take a run in. Raises QueueFullError and ClosedError."""
        with self.lock:
            self.check_open()
            self._leave_all()
            self._submit(run)

    def step(self, run: Run | None = None) -> bool:
        """Move all runs on by a round; return whether there was one to move. A run that is given
        needs something: where another thread's step has brought it that already, nothing is done.
        """
        with self.lock:
            self.check_open()
            self._leave_all()
            if run is not None and self._has_news(run):
                return True
            self._cancel()
            waiting = [r for r in self._runs if not r.ended]
            if waiting:
                self._step(waiting)
            self._settle()
            return bool(waiting)

    def leave(self, run: Run) -> None:
        """Give up what a run holds: now, or if a step is under way, after it.

        The garbage collector may come here from anywhere, so that nobody is waited for.
        """
        self._leaving.append(run)
        if self.lock.acquire(blocking=False):
            try:
                if not self._stepping:
                    self._leave_all()
            finally:
                self.lock.release()

    def fail(self, runs: Iterable[Run], error: LlamaSpecError) -> None:
        """End those of the runs that have a place, since their steps go on failing."""
        with self.lock:
            for run in runs:
                sequence = run.sequence
                if sequence is not None and sequence.slot != NO_SLOT and not run.ended:
                    sequence.fail(error)

    def close(self) -> None:
        """Free both models. A second call does nothing."""
        with self.lock, self.reading:
            if not self.closed:
                self.closed = True
                self._pair.close()

    @property
    def counters(self) -> Counters:
        with self.lock:
            engine, context = self._pair.engine, self._pair.context
            used = 0
            if not self.closed:
                used = sum(context.length(seq) for seq in range(context.shape.n_seq))
            sums = {name: int(value) for name, value in self._sums.items() if name != "queue_s"}
            return Counters(
                **sums,
                active=engine.active,
                waiting=engine.waiting,
                queue_s=self._sums["queue_s"],
                cells_used=used,
                cells_total=context.shape.n_ctx,
            )

    def _submit(self, run: Run) -> None:
        run.sequence = self._pair.engine.submit(run.request)
        self._sums["requests"] += 1
        self._runs.append(run)

    def _has_news(self, run: Run) -> bool:
        assert run.sequence is not None
        return run.ended or run.taken < len(run.sequence.tokens)

    def _cancel(self) -> None:
        for run in self._runs:
            if run.cancel is not None and run.cancel.is_set():
                run.request.ending.cancel()

    def _step(self, waiting: list[Run]) -> None:
        """A step, which all that wait pay for, and during which none leaves."""
        queued = [(run, run.spent.total_s) for run in waiting if run.queue_s is None]
        self._stepping = True
        try:
            with Clock(self._pair, [run.spent for run in waiting]):
                self._pair.engine.step()
        finally:
            self._stepping = False
            for run, before in queued:
                if run.sequence is not None and run.sequence.slot != NO_SLOT:
                    run.queue_s = before
            self._leave_all()
        for run in waiting:
            if run.first_token_s is None and run.sequence is not None and run.sequence.tokens:
                run.first_token_s = run.spent.total_s

    def _settle(self) -> None:
        """Note the ends of runs, and give their places back, also where nobody reads them."""
        for run in self._runs:
            if run.ended:
                self._pair.engine.release(run.request)
                self._count(run)
        self._runs = [run for run in self._runs if not run.ended]

    def _leave_all(self) -> None:
        while self._leaving:
            run = self._leaving.popleft()
            if not self.closed:
                self._pair.engine.release(run.request)
            if run in self._runs:
                run.request.ending.cancel()
                self._count(run)
                self._runs.remove(run)
            if run.sampler is not None:
                run.sampler.close()

    def _count(self, run: Run) -> None:
        sequence = run.sequence
        if run.counted or sequence is None:
            return
        run.counted = True
        reason, sums = sequence.finish_reason, self._sums
        kind = {"cancelled": "cancelled", "error": "failed"}.get(reason or "", "finished")
        sums[kind] += 1
        sums["rounds"] += len(sequence.rounds)
        sums["drafted"] += sum(len(r.draft) for r in sequence.rounds)
        sums["accepted"] += sum(r.accepted for r in sequence.rounds)
        sums["prompt_tokens"] += len(run.request.prompt)
        sums["cached_tokens"] += sequence.cached
        sums["completion_tokens"] += len(sequence.tokens)
        sums["queue_s"] += run.queue_s or 0.0


_SUMMED = (
    *("requests", "finished", "cancelled", "failed", "rounds", "drafted", "accepted"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "queue_s"),
)
