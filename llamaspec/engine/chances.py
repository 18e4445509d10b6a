"""What a request needs for proposals that are sampled and accepted by chance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llamaspec.draft.drafter import Dice, Proposal
from llamaspec.runtime.arrays import FloatArray
from llamaspec.verify.chance import SampledRule, judge


@dataclass(frozen=True, slots=True)
class Chances:
    """The rule, the draft's dice, and the target's side of it.

    odds(row, ids, index): p [m, V], what the target's token would be drawn from at output rows
    row, row + 1, ... of the last pass, were ids the text from `index` on; m <= len(ids) + 1, fewer
    where an id ends the text, is excluded, or leaves no token to follow. take(token, index): the
    token at `index` of the text is decided; a second time it does nothing.
    """

    rule: SampledRule
    dice: Dice
    odds: Callable[[int, Sequence[int], int], FloatArray]
    take: Callable[[int, int], None]

    def decide(self, proposal: Proposal, row: int, index: int) -> list[int]:
        """The tokens from `index` of the text on: accepted proposals and, mostly, a bonus.

        Raises SamplingError where no token can follow at all.
        """
        assert proposal.odds is not None
        p = self.odds(row, proposal.ids, index)
        return judge(self.rule, p, proposal.odds, proposal.ids, self.dice.random).tokens
