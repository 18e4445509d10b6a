"""A completion: what a caller gets, and the clock and state of one under way."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from llamaspec.engine.ending import FinishReason
from llamaspec.engine.sequence import Request, Sequence
from llamaspec.loading import Pair
from llamaspec.runtime.sampler import Sampler
from llamaspec.trace import Round, Stats, Times, TokenLogprob, summarise


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a streamed completion: text in whole characters, and the token ids committed
    with it.

    The text may lag behind the ids by an unfinished character or a possible stop text; `text`
    over all pieces is the completion's text, `token_ids` over all pieces its ids. logprobs: one
    for each id, None where none were asked for. accepted: of each id, whether it was a proposal of
    the draft; the others are the target's own.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    accepted: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished completion.

    text: without the stop text and without control tokens. token_ids: as committed, an
    end-of-generation token included. finish_reason: "stop" (end token or stop text), "length"
    (max_tokens or the end of the context) or "cancelled".
    rounds: what was drafted and accepted, in order. logprobs: of every token of token_ids, None
    where none were asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats
    rounds: tuple[Round, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass
class Spent:
    """Seconds of work on one completion so far; the parts are those in native compute calls."""

    total_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0


class Cancel(Protocol):
    """What tells a completion to end: a threading.Event, for instance."""

    def is_set(self) -> bool: ...


@dataclass(eq=False)
class Run:
    """One completion, asked for or under way; `taken` tokens of it have been handed out, and their
    text is in `parts`. sequence: None until the engine knows of it. cancel: looked at before every
    round. queue_s, first_token_s: seconds until it had a slot, and its first token. counted: its
    end has been noted.
    """

    request: Request
    sampler: Sampler | None
    spent: Spent
    cancel: Cancel | None = None
    sequence: Sequence | None = None
    queue_s: float | None = None
    first_token_s: float | None = None
    taken: int = 0
    parts: list[str] = field(default_factory=list)
    counted: bool = False

    @property
    def ended(self) -> bool:
        """Whether nothing more comes, also of what has not been handed out."""
        return self.request.ending.reason is not None

    @property
    def finished(self) -> bool:
        """Whether it has ended, and not by an error."""
        return self.request.ending.reason not in (None, "error")

    def take(self) -> Piece | None:
        """What has come since the last call, None where nothing has."""
        sequence = self.sequence
        if sequence is None:
            return None
        tokens = tuple(sequence.tokens[self.taken :])
        text = self.request.ending.take()
        if not text and not tokens:
            return None
        logprobs = None
        if self.request.logprobs is not None:
            logprobs = tuple(sequence.logprobs[self.taken : self.taken + len(tokens)])
        accepted = _accepted(sequence, self.taken)
        self.taken += len(tokens)
        self.parts.append(text)
        return Piece(text, tokens, logprobs, accepted)

    def completion(self) -> Completion:
        """What it came to. Raises what ended it, if an error did."""
        sequence = self.sequence
        assert sequence is not None, "a completion that never began has no end"
        if sequence.failure is not None:
            raise sequence.failure
        return finished(self, sequence)


class Clock:
    """Adds what happens inside it to every Spent: wall time, and the part of it in native compute
    calls.
    """

    def __init__(self, pair: Pair, spent: Collection[Spent]) -> None:
        self._pair = pair
        self._spent = spent

    def __enter__(self) -> None:
        self._draft, self._verify = self._native()
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        total = time.perf_counter() - self._started
        draft, verify = self._native()
        for spent in self._spent:
            spent.total_s += total
            spent.draft_s += draft - self._draft
            spent.verify_s += verify - self._verify

    def _native(self) -> tuple[float, float]:
        drafter = self._pair.drafter
        return (drafter.seconds if drafter else 0.0), self._pair.context.seconds


def _accepted(sequence: Sequence, start: int) -> tuple[bool, ...]:
    """Of the tokens from `start` on, which were proposals."""
    found = [False] * (len(sequence.tokens) - start)
    after = len(sequence.request.prompt) + start - 1
    for record in reversed(sequence.rounds):
        # a round's tokens follow its anchor
        first = record.start - after
        if first + record.committed <= 0:
            break
        for place in range(max(0, first), first + record.accepted):
            found[place] = True
    return tuple(found)


def finished(run: Run, sequence: Sequence) -> Completion:
    """The Completion of a run whose sequence has ended."""
    reason = sequence.finish_reason
    assert reason in ("stop", "length", "cancelled"), "only a text that has ended is a completion"
    times = Times(
        total_s=run.spent.total_s,
        draft_s=run.spent.draft_s,
        verify_s=run.spent.verify_s,
        first_token_s=run.first_token_s or 0.0,
        queue_s=run.queue_s or 0.0,
    )
    stats = summarise(
        sequence.rounds,
        prompt_tokens=len(run.request.prompt),
        completion_tokens=len(sequence.tokens),
        times=times,
        cached_tokens=sequence.cached,
    )
    return Completion(
        text="".join(run.parts),
        token_ids=tuple(sequence.tokens),
        finish_reason=reason,
        stats=stats,
        rounds=tuple(sequence.rounds),
        logprobs=None if run.request.logprobs is None else tuple(sequence.logprobs),
    )
