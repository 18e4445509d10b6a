"""A block draft beside lookup: who wins the round, and what the block draft is told."""

from dataclasses import dataclass, field

from llamaspec.draft.both import LONG, BothDrafters
from llamaspec.draft.drafter import NOTHING, Anchor, Features, NothingLearnt, Proposal
from llamaspec.draft.lookup import LookupDrafter


@dataclass
class Block(NothingLearnt):
    """Proposes 7 7 7 wherever it is asked to."""

    proposals: int = 3
    reads_features: bool = True
    proposes_parked: bool = False
    seconds: float = 1.5
    asked: list[list[int]] = field(default_factory=list)
    kept: list[tuple[int, int]] = field(default_factory=list)

    def commit(self, features: Features) -> None:
        self.kept.append((-1, len(features.rows)))

    def keep(self, seq: int, length: int) -> int:
        self.kept.append((seq, length))
        return length - 1

    def propose(self, anchors: list[Anchor]) -> list[Proposal]:
        wanted = [a for a in anchors if a.limit > 0 and not a.parked]
        self.asked.append([a.seq for a in wanted])
        return [Proposal((7, 7, 7)) if a in wanted else NOTHING for a in anchors]


def both() -> tuple[BothDrafters, Block]:
    block = Block()
    drafter = BothDrafters(block, LookupDrafter())
    for seq in range(3):
        assert drafter.keep(seq, 5) == 4
    return drafter, block


def anchor(seq: int, text: list[int], *, parked: bool = False) -> Anchor:
    return Anchor(seq, text[-1], len(text) - 1, 15, 9, text, parked=parked)


def test_a_long_match_wins_and_the_draft_computes_nothing_for_it() -> None:
    drafter, block = both()
    long = [*range(100, 130), 1, *range(100, 100 + LONG)]
    short = [*range(100, 130), 1, *range(100, 100 + LONG - 1)]
    found = drafter.propose([anchor(0, long), anchor(1, short), anchor(2, [1, 2, 3])])
    assert found[0].ids == tuple(range(100 + LONG, 100 + LONG + 9))
    assert found[0].cheap
    assert [p.ids for p in found[1:]] == [(7, 7, 7), (7, 7, 7)]
    assert not found[1].cheap
    assert block.asked == [[1, 2]]


def test_while_drafting_does_not_pay_any_match_is_welcome() -> None:
    drafter, block = both()
    found = drafter.propose([anchor(0, [5, 6, 5], parked=True), anchor(1, [1, 2], parked=True)])
    assert found[0].ids == (6, 5, 6, 5)
    assert found[0].cheap
    assert found[1] == NOTHING
    assert block.asked == [[]]


def test_everything_else_is_the_block_drafts() -> None:
    drafter, block = both()
    assert (drafter.proposals, drafter.reads_features, drafter.seconds) == (15, True, 1.5)
    block.proposals = 40
    assert BothDrafters(block, LookupDrafter()).proposals == 40


def test_what_the_block_draft_knows_moves_and_the_lookup_starts_anew() -> None:
    drafter, block = both()
    assert drafter.copy(0, 1, 4) == block.copy(0, 1, 4) == 3
    saved = drafter.save(1)
    assert drafter.saved_size(1) == saved.nbytes == 0
    assert drafter.restore(2, saved, 4) == 3
    assert drafter.knows(2, 4) == 4
    # of its own index nothing is left that belongs to another text
    assert all(not drafter._lookup._indexes[seq].latest for seq in (1, 2))
