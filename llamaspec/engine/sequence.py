"""The state of one sequence in the loop."""

from collections.abc import Callable
from dataclasses import dataclass, field

from llamaspec.engine.ending import Ending, FinishReason
from llamaspec.runtime.arrays import IntArray
from llamaspec.trace import Round


@dataclass(frozen=True)
class Request:
    """What to generate. prompt [n] token ids; limit: most tokens; draft_max: most proposals a
    round, 0 for none.

    draw(row): the target's token from an output row of the last verify pass, None for greedy.
    """

    prompt: IntArray
    limit: int
    draft_max: int
    ending: Ending
    draw: Callable[[int], int] | None = None


@dataclass
class Sequence:
    """A request in a slot. The last token is the anchor: committed, but not yet in the KV cache.

    text: prompt and tokens. clean: how many positions of the KV cache, from the first on, hold
    what plain decoding would have put there. in_doubt: the next token is nearly tied, to be
    decided by a single row over a clean cache. near_ties: how often that was so.
    """

    slot: int
    request: Request
    tokens: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    clean: int = 0
    in_doubt: bool = False
    near_ties: int = 0

    def __post_init__(self) -> None:
        self.text: list[int] = self.request.prompt.tolist()

    @property
    def finish_reason(self) -> FinishReason | None:
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

    def commit(self, tokens: list[int]) -> int:
        """Append tokens up to where the text ends; return how many were kept."""
        kept = self.request.ending.extend(tokens)
        self.tokens.extend(tokens[:kept])
        self.text.extend(tokens[:kept])
        return kept
