"""The loop's side of choosing widths: for requests that leave it to us, one text at a time."""

from llamaspec.draft.drafter import NOTHING, Proposal
from llamaspec.engine.sequence import Sequence
from llamaspec.schedule.pace import Offer, Pace
from llamaspec.verify.accept import Verification


class Pacing:
    """Asks a session's pace for the sequences that have a gait; others draft as they were told.

    pace: None where every request says how much to draft.
    """

    def __init__(self, pace: Pace | None = None) -> None:
        self.pace = pace

    def begin(self, sequence: Sequence) -> None:
        if self.pace is not None and sequence.request.auto:
            sequence.gait = self.pace.begin()

    def end(self, sequence: Sequence) -> None:
        if self.pace is not None and sequence.gait is not None:
            self.pace.end(sequence.gait)

    def parked(self, sequence: Sequence, *, alone: bool) -> bool:
        """Whether to draft for nothing only, since drafting does not pay; asked once a round.

        alone: the pass is this sequence's only; prices are those of such passes.
        """
        if self.pace is None or sequence.gait is None or not alone or sequence.draft_limit == 0:
            return False
        return not self.pace.drafts(sequence.gait)

    def idle(self, sequence: Sequence) -> int:
        """How many rounds will go plainly, whatever they bring, where the sequence is alone."""
        gait = sequence.gait
        return 0 if self.pace is None or gait is None else self.pace.idle(gait)

    def skip(self, sequence: Sequence, rounds: int) -> None:
        """So many of these rounds have gone by."""
        if self.pace is not None and sequence.gait is not None:
            self.pace.skip(sequence.gait, rounds, sequence.n_past - rounds)

    def block(self, sequence: Sequence, *, alone: bool) -> int:
        """How many proposals a block is to have."""
        if self.pace is None or sequence.gait is None or not alone:
            return sequence.request.draft_max
        return self.pace.block(sequence.gait, sequence.n_past)

    def cut(self, sequence: Sequence, proposal: Proposal, *, alone: bool) -> Proposal:
        """What of a proposal is worth verifying."""
        if self.pace is None or sequence.gait is None or not alone or not proposal.ids:
            return proposal
        offer = Offer(
            confidence=proposal.confidence,
            limit=len(proposal.ids),
            depth=sequence.n_past,
            sampled=proposal.odds is not None,
            cheap=proposal.cheap,
        )
        return proposal.first(self.pace.width(sequence.gait, offer))

    def learn(self, sequence: Sequence, proposal: Proposal, found: Verification) -> None:
        """Take in how a round went that did not end the text: what an ending cuts off says nothing
        about the draft.
        """
        if self.pace is None or sequence.gait is None or sequence.finish_reason is not None:
            return
        verified, committed = len(proposal.ids), len(found.tokens)
        calibration = self.pace.calibration_of(cheap=proposal.cheap)
        calibration.learn(proposal.confidence, found.accepted, verified)
        depth, drafted = sequence.n_past - committed, proposal.offered > 0 and not proposal.cheap
        width = sequence.gait.drafted if drafted else 0
        self.pace.learn(sequence.gait, committed, verified, drafted=width, depth=depth)

    def observe(self, sequence: Sequence, proposal: Proposal, seconds: float) -> None:
        """Take in what a pass of one sequence over its anchor and a proposal took."""
        if proposal is NOTHING:
            self.observe_plain(sequence.n_past, seconds)
        elif self.pace is not None:
            self.pace.prices.observe(1 + len(proposal.ids), sequence.n_past, seconds)

    def observe_plain(self, depth: int, seconds: float, times: int = 1) -> None:
        """Take in what plain passes of one sequence took, each of so many."""
        if self.pace is not None:
            self.pace.prices.observe_plain(depth, seconds, times)

    def observe_draft(self, sequence: Sequence, seconds: float) -> None:
        """Take in what a block of one sequence took, with the features that it waited for."""
        gait = sequence.gait
        # after rounds without a draft there were more of them than usual
        if self.pace is not None and gait is not None and gait.wait is None and not gait.fresh:
            self.pace.prices.observe_draft(gait.drafted, sequence.n_past, seconds)

    def observe_besides(self, sequence: Sequence, seconds: float, before: int) -> None:
        """Take in what the rounds of one sequence since there were `before` took beside passes."""
        count = len(sequence.rounds) - before
        if self.pace is not None and count:
            drafted = sequence.rounds[-1].offered > 0
            self.pace.prices.observe_besides(seconds / count, drafted=drafted)
