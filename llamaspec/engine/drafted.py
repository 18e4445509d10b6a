"""Drafted greedy rounds in a row, in one native call: between the passes of a small target the loop
would take a tenth of a round again.
"""

from collections.abc import Sequence as Several
from dataclasses import dataclass

from llamaspec.draft.block import BlockDrafter
from llamaspec.draft.drafter import Drafter, Proposal
from llamaspec.engine.pacing import Pacing
from llamaspec.engine.plain import SECONDS
from llamaspec.engine.sequence import Sequence
from llamaspec.runtime.context import TargetContext
from llamaspec.runtime.rounds import MOST_ROUNDS, Drafted, Start
from llamaspec.runtime.rule import Rule
from llamaspec.trace import Round
from llamaspec.verify.accept import Verification

_FRUITLESS = 2
"""Rounds in a row without an accepted proposal, after which the pace is asked again."""


@dataclass(frozen=True)
class DraftedRuns:
    """Rounds of a sequence that is alone."""

    target: TargetContext
    drafter: BlockDrafter

    @classmethod
    def of(cls, target: TargetContext, drafter: Drafter | None) -> "DraftedRuns | None":
        """None for a drafter or a target that has no such runs."""
        if not isinstance(drafter, BlockDrafter) or not drafter.runs or target.recurrent:
            return None
        return cls(target, drafter)

    def start(self, sequence: Sequence, pacing: Pacing) -> Start | None:
        """From where, how, and how far rounds can go in a row; None where they cannot. For a
        sequence that the drafter learns of.
        """
        request, position = sequence.request, sequence.n_past
        if not request.in_a_row or self.drafter.known(sequence.slot) != position:
            return None
        most, widths, rule = pacing.ahead(sequence, SECONDS)
        if most < 1:
            return None
        width, usual, whole = (min(n, self.drafter.proposals) for n in widths)
        return Start(
            seq=sequence.slot,
            anchor=sequence.anchor,
            position=position,
            left=request.limit - len(sequence.tokens),
            width=width,
            usual=usual,
            whole=whole,
            most=most,
            ends=request.ending.ends,
            # where widths are chosen, how many rounds there are must not depend on a clock
            seconds=SECONDS if rule is None else 60.0,
            rule=rule,
            fruitless=MOST_ROUNDS if rule is None else _FRUITLESS,
        )

    def run(self, sequence: Sequence, pacing: Pacing, start: Start) -> None:
        """Go through several rounds. Where the text ends between them, both caches hold more than
        `n_past` afterwards. Raises DecodeError where the first round fails.
        """
        self._commit(sequence, pacing, self.drafter.run(self.target, start), start.rule)

    def _commit(
        self, sequence: Sequence, pacing: Pacing, drafted: Several[Drafted], rule: Rule | None
    ) -> None:
        for each in drafted:
            position, anchor = sequence.n_past, sequence.anchor
            ids = each.ids[: sequence.draft_limit]
            proposal = Proposal(ids, each.confidence).first(each.verified)
            tokens = [*ids[: each.accepted], each.bonus]
            pacing.went(sequence, each, rule)
            kept = sequence.commit(tokens)
            accepted = min(each.accepted, kept)
            about = position, anchor, proposal.ids, proposal.confidence, accepted, kept
            sequence.rounds.append(Round(*about, offered=len(ids)))
            pacing.learn(sequence, proposal, Verification(each.accepted, tokens))
            if sequence.finish_reason is not None:
                return
