"""The loop's side of choosing widths: for requests that leave it to us, all texts of a round at
once. A text that is alone asks the pace, several ask the crowd.
"""

from collections.abc import Sequence as Several

from llamaspec.draft.drafter import NOTHING, Proposal
from llamaspec.engine.sequence import Sequence
from llamaspec.runtime.rounds import MOST_ROUNDS, Drafted
from llamaspec.runtime.rule import Rule
from llamaspec.schedule.crowd import Crowd
from llamaspec.schedule.pace import Offer, Pace
from llamaspec.verify.accept import Verification


class Pacing:
    """Asks for the sequences whose request leaves it open; others draft as they were told.

    pace: of one text, None where every request says how much to draft. crowd: of several at once,
    None where these draft whole blocks. threshold: what every verified proposal's confidence is at
    least, None without such a bound; then nobody is asked.
    """

    def __init__(
        self,
        pace: Pace | None = None,
        crowd: Crowd | None = None,
        threshold: float | None = None,
    ) -> None:
        self.pace = pace
        self.crowd = crowd
        self.threshold = threshold
        self._many = False
        # whether the round before drafted: after others more features than usual wait
        self._before = False
        self._drafts = False

    def begin(self, sequence: Sequence, texts: int) -> None:
        """A request has got its slot, one of so many now where it can go without the draft."""
        if not sequence.request.auto:
            return
        if self.crowd is not None:
            sequence.member = self.crowd.begin()
            sequence.spared = texts > 1 and self.crowd.spares(texts)
        if self.pace is not None and not sequence.spared:
            sequence.gait = self.pace.begin(together=sequence.request.in_a_row)

    def end(self, sequence: Sequence) -> None:
        """A request gives its slot back."""
        if self.pace is not None and sequence.gait is not None:
            self.pace.end(sequence.gait)

    def plan(self, active: Several[Sequence]) -> list[int]:
        """How many proposals to draft for each sequence of the round, 0 for none; asked once a
        round.
        """
        self._many = len(active) > 1
        if not self._many:
            widths = [self._alone(active[0])]
        elif self.crowd is None:
            widths = [s.draft_limit and s.request.draft_max for s in active]
        else:
            for sequence in active:
                if sequence.member is not None and sequence.member.given_up:
                    sequence.spared = True
            widths = self._together(self.crowd, active)
        self._before, self._drafts = self._drafts, any(widths)
        return widths

    def _alone(self, sequence: Sequence) -> int:
        gait, limit = sequence.gait, sequence.draft_limit
        if self.pace is None or gait is None or limit == 0:
            return limit and sequence.request.draft_max
        return self.pace.block(gait, sequence.n_past) if self.pace.drafts(gait) else 0

    def _together(self, crowd: Crowd, active: Several[Sequence]) -> list[int]:
        limits = [s.draft_limit for s in active]
        if not any(limits):
            crowd.rest(len(active))
            return limits
        blocks = crowd.plan([s.member for s in active], limits, _depth(active))
        # a block's ids depend on its width, so a text that is told gets always the same
        return [
            (s.draft_limit and s.request.draft_max) if s.member is None else block
            for s, block in zip(active, blocks, strict=True)
        ]

    def idle(self, sequence: Sequence) -> int:
        """How many rounds will go plainly, whatever they bring, where the sequence is alone."""
        gait = sequence.gait
        return 0 if self.pace is None or gait is None else self.pace.idle(gait)

    def skip(self, sequence: Sequence, rounds: int) -> None:
        """So many of these rounds have gone by."""
        if self.pace is not None and sequence.gait is not None and not sequence.spared:
            self.pace.skip(sequence.gait, rounds, sequence.n_past - rounds)

    def ahead(
        self, sequence: Sequence, seconds: float
    ) -> tuple[int, tuple[int, int, int], Rule | None]:
        """How many rounds of a sequence that is alone will draft as far as so many seconds reach,
        whatever they bring; of how many proposals the first block, a usual one and one after a
        block that was accepted whole are; and how many of these to verify: None where all.
        """
        request, gait, pace = sequence.request, sequence.gait, self.pace
        if self.threshold is not None or sequence.draft_limit == 0:
            return 0, (0, 0, 0), None
        if pace is None or gait is None:
            return MOST_ROUNDS, (request.draft_max,) * 3, None
        if not gait.due:
            return 0, (0, 0, 0), None
        depth = sequence.n_past
        widths = pace.widths(gait, depth)
        return pace.ahead(gait, seconds), widths, pace.rule(gait, depth)

    def went(self, sequence: Sequence, drafted: Drafted, rule: Rule | None) -> None:
        """Take in what native code drafted and what that took; what came of it is for `learn`."""
        gait, pace, depth = sequence.gait, self.pace, sequence.n_past
        if pace is None:
            return
        if gait is not None and rule is not None:
            gait.drafted = len(drafted.ids)
            if gait.wait is None and not gait.fresh:
                pace.prices.observe_draft(gait.drafted, depth, drafted.draft_s)
            worth = drafted.worth[: sequence.draft_limit + 1]
            pace.took(gait, worth, drafted.verified, rule)
        pace.prices.observe(1 + drafted.verified, depth, drafted.verify_s)

    def cut(self, active: Several[Sequence], offers: Several[Proposal]) -> list[Proposal]:
        """What of each sequence's proposal is worth verifying."""
        if self.threshold is not None:
            return [self._sure(s, offer) for s, offer in zip(active, offers, strict=True)]
        if self._many and self.crowd is not None:
            known = [_offer(s, p) for s, p in zip(active, offers, strict=True)]
            widths = self.crowd.widths(known)
            return [p.first(n) if p.ids else p for p, n in zip(offers, widths, strict=True)]
        if self._many or self.pace is None:
            return [*offers]
        sequence, proposal = active[0], offers[0]
        offer = _offer(sequence, proposal)
        if sequence.gait is None or offer is None:
            return [proposal]
        return [proposal.first(self.pace.width(sequence.gait, offer))]

    def _sure(self, sequence: Sequence, proposal: Proposal) -> Proposal:
        """The beginning of a proposal whose every confidence is large enough."""
        assert self.threshold is not None
        if not sequence.request.auto or proposal.confidence is None:
            return proposal
        doubtful = (i for i, c in enumerate(proposal.confidence) if not c >= self.threshold)
        return proposal.first(next(doubtful, len(proposal.ids)))

    def learn(self, sequence: Sequence, proposal: Proposal, found: Verification) -> None:
        """Take in how a round went that did not end the text: what an ending cuts off says nothing
        about the draft.
        """
        if self.pace is None or sequence.finish_reason is not None or sequence.spared:
            return
        verified, committed = len(proposal.ids), len(found.tokens)
        if sequence.gait is not None:
            calibration = self.pace.calibration_of(cheap=proposal.cheap)
            calibration.learn(proposal.confidence, found.accepted, verified)
        if self._many:
            if self.crowd is not None and sequence.member is not None:
                self.crowd.learn(sequence.member, found.accepted, committed)
            return
        if sequence.gait is None:
            return
        depth, drafted = sequence.n_past - committed, proposal.offered > 0 and not proposal.cheap
        width = sequence.gait.drafted if drafted else 0
        self.pace.learn(sequence.gait, committed, verified, drafted=width, depth=depth)

    def observe_pass(
        self, active: Several[Sequence], proposals: Several[Proposal], seconds: float
    ) -> None:
        """Take in what a pass over the anchors and proposals of these sequences, and over nothing
        else, took.
        """
        if self._many:
            if self.crowd is not None:
                widths = [len(p.ids) for p in proposals]
                rows, even = len(active) + sum(widths), len({*widths}) == 1
                depth = _depth(active)
                self.crowd.prices.observe(rows, len(active), depth, seconds, even=even)
        elif proposals[0] is NOTHING:
            self.observe_plain(active[0].n_past, seconds)
        elif self.pace is not None:
            self.pace.prices.observe(1 + len(proposals[0].ids), active[0].n_past, seconds)

    def observe_plain(self, depth: int, seconds: float, times: int = 1) -> None:
        """Take in what plain passes of one sequence took, each of so many."""
        if self.pace is not None:
            self.pace.prices.observe_plain(depth, seconds, times)

    def went_plainly(self, active: Several[Sequence], rounds: int, seconds: float) -> None:
        """So many rounds in a row have gone plainly, in place of `plan`, and are not committed yet:
        what each pass took.
        """
        self._many = len(active) > 1
        if not self._many:
            self.observe_plain(active[0].n_past, seconds, rounds)
        elif self.crowd is not None:
            self._before = self._drafts = False
            self.crowd.rest(len(active), rounds)
            self.observe_pass(active, [NOTHING] * len(active), seconds)

    def observe_draft(
        self, active: Several[Sequence], offers: Several[Proposal], seconds: float
    ) -> None:
        """Take in what drafting this round's offers took, with the features that waited for it."""
        blocks = [len(p.ids) for p in offers if p.ids and not p.cheap]
        if not blocks or self.pace is None:
            return
        if self._many:
            if self.crowd is not None and self._before:
                prices = self.crowd.prices
                prices.observe_draft(len(blocks), sum(blocks), _depth(active), seconds)
            return
        gait = active[0].gait
        # after rounds without a draft there were more of them than usual
        if gait is not None and gait.wait is None and not gait.fresh:
            self.pace.prices.observe_draft(gait.drafted, active[0].n_past, seconds)

    def observe_besides(
        self, active: Several[Sequence], seconds: float, before: int, *, in_a_row: bool
    ) -> None:
        """Take in what the rounds since the first of these had `before` took beside passes; in a
        row: in native code.
        """
        count = len(active[0].rounds) - before
        if self.pace is None or not count:
            return
        if len(active) == 1:
            drafted = active[0].rounds[-1].offered > 0
            row = count if in_a_row else 0
            self.pace.prices.observe_besides(seconds / count, drafted=drafted, in_a_row=row)
        elif self.crowd is not None and not in_a_row:
            self.crowd.prices.observe_besides(seconds, len(active), drafted=self._drafts)


def _offer(sequence: Sequence, proposal: Proposal) -> Offer | None:
    if not proposal.ids:
        return None
    return Offer(
        confidence=proposal.confidence,
        limit=len(proposal.ids),
        depth=sequence.n_past,
        sampled=proposal.odds is not None,
        cheap=proposal.cheap,
    )


def _depth(active: Several[Sequence]) -> int:
    return sum(s.n_past for s in active) // len(active)
