"""The state of one sequence in the loop."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from llamaspec.draft.drafter import Anchor, Dice, Proposal
from llamaspec.engine.chances import Chances
from llamaspec.engine.ending import Ending, EndReason
from llamaspec.engine.slots import Held
from llamaspec.errors import LlamaSpecError, SamplingError
from llamaspec.runtime.arrays import IntArray
from llamaspec.schedule.member import Member
from llamaspec.schedule.pace import Gait
from llamaspec.trace import Round, TokenLogprob

NO_SLOT = -1
"""Of a sequence that waits for one."""


@dataclass(frozen=True, eq=False)
class Request:
    """What to generate. prompt [n] token ids; limit: most tokens; draft_max: most proposals a
    round, 0 for none.

    draw(row, index): the target's token at `index` of the text, from an output row of the last
    pass; None for greedy. chances: how to accept proposals that were sampled, None where none are.
    logprobs: how many likeliest alternatives to keep with every token, None to keep no
    log-probabilities. cache_prompt: start from what a slot's caches hold already. auto: how many
    of draft_max to propose is left to the pace. together: nobody waits for single rounds, so that
    plain ones may go several at once. priority: the higher goes first where requests wait.
    """

    prompt: IntArray
    limit: int
    draft_max: int
    ending: Ending
    draw: Callable[[int, int], int] | None = None
    chances: Chances | None = None
    logprobs: int | None = None
    cache_prompt: bool = False
    auto: bool = False
    together: bool = False
    priority: int = 0

    @property
    def in_a_row(self) -> bool:
        """Whether rounds can go several at once: nothing but greedy choices lies between them."""
        return self.together and self.draw is None and self.logprobs is None


@dataclass(eq=False)
class Sequence:
    """A request, waiting or in a slot. The last token is the anchor: committed, but not yet in the
    KV cache.

    text: prompt and tokens. cached: positions of the prompt that the caches held already. filled:
    those that they hold now, while the prompt is taken in. held: what the slot's caches hold while
    nothing is decided about it. behind: whose prompt this one waits for, and up to where.
    certain: nothing has gone wrong, the caches hold what `text` says.
    clean: how many positions of the KV cache, from the first on, hold what plain decoding would
    have put there. in_doubt: the next token is nearly tied, to be decided by a single row over a
    clean cache. near_ties: how often that was so. decided: tokens that follow the committed ones
    already, by chance; an interrupted round leaves them to the next. gait, member: what the pace
    and the crowd know of this text, None where they are not asked. spared: the draft learns nothing
    of this text, which goes plainly to its end. lost: the target no longer holds `n_past`
    positions, and has to compute them anew.
    """

    slot: int
    request: Request
    tokens: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    failure: LlamaSpecError | None = None
    cached: int = 0
    filled: int = 0
    certain: bool = False
    clean: int = 0
    in_doubt: bool = False
    near_ties: int = 0
    decided: list[int] = field(default_factory=list)
    gait: Gait | None = None
    member: Member | None = None
    spared: bool = False
    lost: bool = False
    held: Held | None = None
    behind: "tuple[Sequence, int] | None" = None

    def __post_init__(self) -> None:
        self.text: list[int] = self.request.prompt.tolist()
        self._before = len(self.text) - 1

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
        return self._before + len(self.tokens) if self.tokens else self.filled

    @property
    def filling(self) -> bool:
        """Whether the prompt is still being taken in."""
        return not self.tokens and self.finish_reason is None

    @property
    def draft_limit(self) -> int:
        """The most proposals that can still become text: the last token is the target's own."""
        request = self.request
        if self.spared:
            return 0
        return max(0, min(request.draft_max, request.limit - len(self.tokens) - 1))

    @property
    def dice(self) -> Dice | None:
        """What the draft samples with, None for its likeliest tokens."""
        chances = self.request.chances
        return None if chances is None else chances.dice

    def place(self, width: int, *, parked: bool) -> Anchor:
        """Where the draft is to go on, with blocks of so many proposals."""
        return Anchor(
            seq=self.slot,
            token=self.anchor,
            position=self.n_past,
            width=width,
            limit=self.draft_limit,
            text=self.text,
            dice=self.dice,
            parked=parked,
        )

    def draws(self, start: int, proposal: Proposal) -> Iterator[int]:
        """The target's tokens after the anchor, from the output rows from `start` on, up to where
        the text ends: what would come after it is not drawn. Where none is left to draw, `failure`
        says why.
        """
        ending = self.request.ending
        try:
            self._decide(start, proposal)
            for ahead in itertools.count():
                token = self._draw(start, ahead)
                yield token
                if ending.ends_with(ahead, token):
                    return
        except SamplingError as error:
            self.failure = error

    def begin(self, first: int) -> None:
        """The prompt is in the caches, and this is the token after it."""
        self.commit([first])
        self.clean = self.filled

    def fail(self, error: LlamaSpecError) -> None:
        """End the text with an error; the caches are not to be trusted."""
        self.failure = error
        self.certain = False
        self.request.ending.reason = "error"

    def commit(self, tokens: list[int]) -> int:
        """Append tokens up to where the text ends; return how many were kept."""
        ending = self.request.ending
        kept = ending.extend(tokens)
        taken = tokens[:kept]
        self.tokens += taken
        self.text += taken
        del self.decided[:kept]
        if self.failure is not None and ending.reason is None:
            ending.reason = "error"
        return kept

    def _decide(self, start: int, proposal: Proposal) -> None:
        chances = self.request.chances
        if chances is not None and proposal.odds is not None and not self.decided:
            self.decided = chances.decide(proposal, start, len(self.tokens))

    def _draw(self, start: int, ahead: int) -> int:
        draw, chances, index = self.request.draw, self.request.chances, len(self.tokens) + ahead
        assert draw is not None
        if chances is None or ahead >= len(self.decided):
            return draw(start + ahead, index)
        chances.take(self.decided[ahead], index)
        return self.decided[ahead]
