"""With the draft and without it: the same tokens? Where not, how close the choice was."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from llamaspec.errors import OptionError
from llamaspec.session import Session
from llamaspec.text.prompt import Prompt


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of two texts of one prompt.

    prompt: its number, from 0. position: tokens before the difference. drafted, plain: the token
    of each, None where that text had ended. gap: how far apart plain decoding's two largest
    logits lay there.
    inside: whether that lies within what rounding does here. A text that ended early, at another
    token than the other's, never does.
    """

    prompt: int
    position: int
    drafted: int | None
    plain: int | None
    gap: float
    inside: bool


@dataclass(frozen=True, slots=True)
class Check:
    """Prompts decoded both ways in one setting.

    tokens: of the plain texts. drafted, accepted, rounds, replayed: of the drafted ones.
    bound: what rounding may move the gap of two logits by; 0 where nothing may differ.
    exactness: what the probe says, in words.
    """

    prompts: int
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    replayed: int
    exact: bool
    bound: float
    exactness: str
    divergences: tuple[Divergence, ...]

    @property
    def passed(self) -> bool:
        """No difference but at ties that rounding decides; in exact mode none at all."""
        return all(d.inside for d in self.divergences)


def check(
    session: Session,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int,
    draft_max: int | None = None,
    on_prompt: Callable[[int, int], None] = lambda done, total: None,
) -> Check:
    """Decode every prompt greedily with the draft and without it, and compare the tokens.

    draft_max: None for whole blocks, whether they pay or not: as many proposals as possible are put
    to the test.
    on_prompt: called with the number of prompts done and of all. Raises OptionError where there
    is no draft, and what `generate` raises.
    """
    if not session.draft_limit or draft_max == 0:
        raise OptionError("there is no draft to compare with; give one, or lookup, with -d")
    most = session.draft_limit if draft_max is None else draft_max
    found = session.exactness
    bound = 0.0 if session.exact else found.bound
    divergences: list[Divergence] = []
    totals = [0] * 5
    for number, prompt in enumerate(prompts):
        # both from a cold start: another split of the prompt rounds in another way
        plain, fast = (
            session.generate(prompt, max_tokens=max_tokens, draft_max=limit, cache_prompt=False)
            for limit in (0, most)
        )
        stats = fast.stats
        counts = (stats.rounds, stats.drafted, stats.accepted, stats.replayed)
        totals = [a + b for a, b in zip(totals, (len(plain.token_ids), *counts), strict=True)]
        divergence = _compare(session, number, prompt, (fast.token_ids, plain.token_ids), bound)
        divergences += divergence
        on_prompt(number + 1, len(prompts))
    tokens, rounds, drafted, accepted, replayed = totals
    return Check(
        prompts=len(prompts),
        tokens=tokens,
        rounds=rounds,
        drafted=drafted,
        accepted=accepted,
        replayed=replayed,
        exact=session.exact,
        bound=bound,
        exactness=str(found),
        divergences=tuple(divergences),
    )


def _compare(
    session: Session,
    number: int,
    prompt: Prompt,
    texts: tuple[tuple[int, ...], tuple[int, ...]],
    bound: float,
) -> Iterable[Divergence]:
    drafted, plain = texts
    if drafted == plain:
        return
    same = 0
    while same < min(len(drafted), len(plain)) and drafted[same] == plain[same]:
        same += 1
    ids = [text[same] if same < len(text) else None for text in texts]
    gap = session.plain_gap(prompt, plain[:same])
    inside = None not in ids and gap <= bound
    yield Divergence(number, same, ids[0], ids[1], gap, inside)
