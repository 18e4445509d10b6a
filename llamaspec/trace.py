"""What happened, one record a round; every statistic is computed from the records."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Round:
    """One draft, verify, accept round of one sequence.

    start: the anchor's position. anchor: its token id. draft: the proposed ids that were verified.
    confidence: P(accepted | all before accepted) of each, where the draft has a confidence head.
    accepted: how many proposals became part of the text. committed: those plus the target's own
    token, less what an ending inside the block cut off.
    replayed: rows of earlier passes that were decoded again, one by one, before this pass, so that
    it decides a near tie as plain decoding does (exact mode).
    offered: how many ids the draft proposed; those beyond `draft` were not worth verifying.
    texts: how many sequences the pass was for.
    """

    start: int
    anchor: int
    draft: tuple[int, ...]
    confidence: tuple[float, ...] | None
    accepted: int
    committed: int
    replayed: int = 0
    offered: int = 0
    texts: int = 1


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural logarithm of a committed token's probability, by the model's own distribution:
    the softmax of its logits at temperature 1, before any bias, penalty, filter or grammar.

    top: the likeliest tokens at that place with theirs, likeliest first; the token itself is among
    them only if it is one of these.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Times:
    """Wall seconds of one completion.

    total_s: from the call to the last token, less what a consumer of a stream took. draft_s,
    verify_s: inside native compute calls of the draft and of the target (prompt included).
    first_token_s: until the first token was known. queue_s: until there was a place for it.
    """

    total_s: float
    draft_s: float
    verify_s: float
    first_token_s: float
    queue_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures of one completion. Rates are 0 where nothing was drafted.

    tau: tokens committed a round, the target's own included; the first token comes from the
    prompt, not from a round.
    accept_rate: accepted / drafted. accept_by_position[i]: how often proposal i was accepted, of
    the rounds that verified one. other_s: what is left of the time after native drafting and
    verifying. replayed: rows that near ties had decoded a second time (exact mode).
    cached_tokens: of the prompt's, those that were not computed again (cache_prompt). widths[i]:
    rounds that verified i proposals. queue_s: seconds until there was a place, part of total_s.
    texts: sequences that a pass was for, on the average; 0 without a round.
    """

    prompt_tokens: int
    completion_tokens: int
    rounds: int
    drafted: int
    accepted: int
    accept_rate: float
    tau: float
    accept_by_position: tuple[float, ...]
    tokens_per_second: float
    time_to_first_token_s: float
    total_s: float
    draft_s: float
    verify_s: float
    other_s: float
    replayed: int = 0
    cached_tokens: int = 0
    widths: tuple[int, ...] = ()
    queue_s: float = 0.0
    texts: float = 0.0


def by_position(rounds: Iterable[Round]) -> tuple[float, ...]:
    """Return accepted / verified for every proposal position."""
    verified: list[int] = []
    accepted: list[int] = []
    for record in rounds:
        while len(verified) < len(record.draft):
            verified.append(0)
            accepted.append(0)
        for i in range(len(record.draft)):
            verified[i] += 1
            accepted[i] += i < record.accepted
    return tuple(a / v for a, v in zip(accepted, verified, strict=True))


def summarise(
    rounds: Sequence[Round],
    *,
    prompt_tokens: int,
    completion_tokens: int,
    times: Times,
    cached_tokens: int = 0,
) -> Stats:
    """Compute the statistics of one completion."""
    drafted = sum(len(r.draft) for r in rounds)
    accepted = sum(r.accepted for r in rounds)
    committed = sum(r.committed for r in rounds)
    return Stats(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        rounds=len(rounds),
        drafted=drafted,
        accepted=accepted,
        accept_rate=accepted / drafted if drafted else 0.0,
        tau=committed / len(rounds) if rounds else 0.0,
        accept_by_position=by_position(rounds),
        tokens_per_second=completion_tokens / times.total_s if times.total_s > 0 else 0.0,
        time_to_first_token_s=times.first_token_s,
        total_s=times.total_s,
        draft_s=times.draft_s,
        verify_s=times.verify_s,
        other_s=max(0.0, times.total_s - times.draft_s - times.verify_s),
        replayed=sum(r.replayed for r in rounds),
        cached_tokens=cached_tokens,
        widths=_widths(rounds),
        queue_s=times.queue_s,
        texts=sum(r.texts for r in rounds) / len(rounds) if rounds else 0.0,
    )


def _widths(rounds: Sequence[Round]) -> tuple[int, ...]:
    counts = [0] * (1 + max((len(r.draft) for r in rounds), default=-1))
    for record in rounds:
        counts[len(record.draft)] += 1
    return tuple(counts)
