"""The state of one sequence in the loop."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from llamaspec.engine.ending import Ending, EndReason
from llamaspec.errors import SamplingError
from llamaspec.runtime.arrays import IntArray
from llamaspec.trace import Round, TokenLogprob


@dataclass(frozen=True)
class Request:
    """What to generate. prompt [n] token ids; limit: most tokens; draft_max: most proposals a
    round, 0 for none.

    draw(row, index): the target's token at `index` of the text, from an output row of the last
    pass; None for greedy. logprobs: how many likeliest alternatives to keep with every token, None
    to keep no log-probabilities.
    """

    prompt: IntArray
    limit: int
    draft_max: int
    ending: Ending
    draw: Callable[[int, int], int] | None = None
    logprobs: int | None = None


@dataclass
class Sequence:
    """A request in a slot. The last token is the anchor: committed, but not yet in the KV cache.

    text: prompt and tokens. clean: how many positions of the KV cache, from the first on, hold
    what plain decoding would have put there. in_doubt: the next token is nearly tied, to be
    decided by a single row over a clean cache. near_ties: how often that was so. lost: the target
    no longer holds `n_past` positions, and has to compute them anew.
    """

    slot: int
    request: Request
    tokens: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    failure: SamplingError | None = None
    clean: int = 0
    in_doubt: bool = False
    near_ties: int = 0
    lost: bool = False

    def __post_init__(self) -> None:
        self.text: list[int] = self.request.prompt.tolist()

    @property
    def finish_reason(self) -> EndReason | None:
        """Why the text has ended, None as long as it has not."""
        return self.request.ending.reason

    @property
    def anchor(self) -> int:
        return self.tokens[-1]

    @property
    def n_past(self) -> int:
        """Positions in the target's KV cache, and feature rows in the draft's: all but the
        anchor.
        """
        return len(self.request.prompt) + len(self.tokens) - 1

    @property
    def remaining(self) -> int:
        return self.request.limit - len(self.tokens)

    @property
    def draft_limit(self) -> int:
        """The most proposals that can still become text: the last token is the target's own."""
        return max(0, min(self.request.draft_max, self.remaining - 1))

    def draws(self, start: int) -> Iterator[int]:
        """The target's tokens after the anchor, from the output rows from `start` on, up to where
        the text ends: what would come after it is not drawn. Where none is left to draw, `failure`
        says why.
        """
        draw, ending, index = self.request.draw, self.request.ending, len(self.tokens)
        assert draw is not None
        for ahead in itertools.count():
            try:
                token = draw(start + ahead, index + ahead)
            except SamplingError as error:
                self.failure = error
                return
            yield token
            if ending.ends_with(ahead, token):
                return

    def commit(self, tokens: list[int]) -> int:
        """Append tokens up to where the text ends; return how many were kept."""
        ending = self.request.ending
        kept = ending.extend(tokens)
        self.tokens.extend(tokens[:kept])
        self.text.extend(tokens[:kept])
        if self.failure is not None and ending.reason is None:
            ending.reason = "error"
        return kept
