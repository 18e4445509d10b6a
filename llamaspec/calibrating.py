"""Rolls a pair out with full verification, fits a calibration of its draft's confidences, and says
how good it is on prompts that it was not fitted on.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, get_args

import numpy as np

from llamaspec.errors import OptionError
from llamaspec.schedule.fitting import Verdicts, fit_verdicts
from llamaspec.schedule.reliability import (
    Bin,
    Truths,
    Values,
    ece,
    ece_by_chance,
    reliability,
    roc_auc,
)
from llamaspec.schedule.scaling import Scaling
from llamaspec.session import Session
from llamaspec.text.prompt import Prompt
from llamaspec.trace import Round

LEAST_PROMPTS = 2
Kept = Literal["confidences", "temperatures", "levels"]
KINDS: tuple[Kept, ...] = get_args(Kept)


@dataclass(frozen=True, slots=True)
class Errors:
    """Calibration errors (ECE, ten bins of equal width) of the survival at one position.

    before: of the confidences' products. temperatures: after sequential temperature scaling.
    levels: after the curves too. chance: what exactly right probabilities like the last ones would
    show with as many rounds.
    """

    before: float
    temperatures: float
    levels: float
    chance: float


@dataclass(frozen=True, slots=True)
class Position:
    """One position on prompts that were held out of the fit. rounds: of which the outcome is known.
    errors: of all held-out rounds together. auc_before, auc_after: ROC-AUC, the mean of the halves,
    since scores of two fits have no common order; None where all or none survived.
    """

    rounds: int
    errors: Errors
    auc_before: float | None
    auc_after: float | None


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A calibration and what it is worth.

    scaling: fitted on all rounds. kept: what of the fit it has, the best on held-out prompts of
    "confidences" (as they are: temperatures of 1), "temperatures" and "levels". positions: each
    half of the prompts judged by a fit on the other half, together. halves: mean errors over the
    positions of either half by itself. before, after: reliability bins of all positions together.
    """

    scaling: Scaling
    kept: Kept
    prompts: int
    rounds: int
    positions: tuple[Position, ...]
    halves: tuple[Errors, Errors]
    before: tuple[Bin, ...]
    after: tuple[Bin, ...]

    @property
    def mean(self) -> Errors:
        """The mean over the positions."""
        return _mean([position.errors for position in self.positions])


class _Flag:
    """What ends a text before its next round."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set


def roll_out(
    session: Session,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int,
    mixed: bool = True,
    on_prompt: Callable[[int, int], None] = lambda done, total: None,
) -> list[tuple[Round, ...]]:
    """Decode prompts greedily, every block verified in full; the rounds of each.

    mixed: the rounds of one pass through the text for each width that may be verified of a block,
    since a scheduler changes where rounds begin, and those right after a rejection are harder than
    others; each round as often as such passes have it. Without it those of whole blocks, once.
    on_prompt: called with the number of prompts done and of all.

    Raises:
        OptionError: the pair has no draft, or one without confidences.
        What `Session.generate` raises.
    """
    if not session.draft_limit:
        raise OptionError("there is no draft to calibrate; give one with -d")
    found = []
    for number, prompt in enumerate(prompts, 1):
        rounds = _rounds(session, prompt, max_tokens, mixed=mixed)
        if any(r.draft and r.confidence is None for r in rounds):
            raise OptionError(
                "the draft gives no confidences: it has no confidence head, and nothing to "
                "calibrate"
            )
        found.append(rounds)
        on_prompt(number, len(prompts))
    return found


def _rounds(session: Session, prompt: Prompt, max_tokens: int, *, mixed: bool) -> tuple[Round, ...]:
    ids = session.tokenize(prompt).tolist()
    seen: dict[int, Round] = {}
    text = _on(session, ids, (), max_tokens, seen)
    most = session.draft_limit
    found = []
    for width in range(1 if mixed else most, most + 1):
        at = 0
        while at < len(text) - 1:
            start = len(ids) + at
            if start not in seen:
                _on(session, ids, text[:at], max_tokens, seen)
            # a near tie may have ended another text here
            if start not in seen:
                break
            found.append(seen[start])
            at += min(seen[start].committed, width + 1)
    return tuple(found)


def _on(
    session: Session,
    ids: list[int],
    text: Sequence[int],
    max_tokens: int,
    seen: dict[int, Round],
) -> tuple[int, ...]:
    """Go on from a part of a text up to the first round that is known; the new tokens."""
    flag, tokens = _Flag(), 0
    stream = session.stream(
        [*ids, *text],
        cancel=flag,
        max_tokens=max_tokens - len(text),
        draft_max=session.draft_limit,
        cache_prompt=bool(text),
    )
    while True:
        try:
            piece = next(stream)
        except StopIteration as end:
            done = end.value
            break
        tokens += len(piece.token_ids)
        if len(ids) + len(text) + tokens - 1 in seen:
            flag.set()
    for record in done.rounds:
        seen.setdefault(record.start, record)
    return tuple(done.token_ids)


def known(record: Round) -> int:
    """Positions of a round of which it is known whether all proposals up to there were accepted:
    all that were verified, or where the text ended with an accepted one, those up to it.
    """
    ended = record.committed <= record.accepted
    return record.accepted if ended else len(record.draft)


def verdicts_of(rounds: Iterable[Sequence[Round]]) -> Verdicts:
    """What became of the proposals of each prompt's rounds; a round that a prompt has several times
    counts as often, one without confidences not at all.
    """
    counted = [pair for each in rounds for pair in Counter(each).items() if pair[0].confidence]
    return Verdicts.of(
        [(r.confidence or ())[: len(r.draft)] for r, _ in counted],
        [r.accepted for r, _ in counted],
        [known(r) for r, _ in counted],
        [times for _, times in counted],
    )


def calibrate(
    rounds: Sequence[Sequence[Round]],
    *,
    levels: bool = True,
    about: tuple[tuple[str, str], ...] = (),
) -> Calibrated:
    """Fit a calibration to the rounds of some prompts, and judge it on prompts held out.

    rounds: of each prompt, as `roll_out` gives them. Prompts go to the two halves in turn, so that
    a list sorted by kind gives halves alike. about: what the calibration says of itself.

    Raises OptionError for fewer than two prompts with confidences.
    """
    chosen = [[r for r in each if r.confidence] for each in rounds]
    chosen = [each for each in chosen if each]
    if len(chosen) < LEAST_PROMPTS:
        raise OptionError(
            f"{len(chosen)} prompts gave rounds with confidences; at least {LEAST_PROMPTS} are "
            "needed, and hundreds are better"
        )
    everything = verdicts_of(chosen)
    half = np.concatenate([np.full(len(set(each)), n % 2 == 0) for n, each in enumerate(chosen)])
    held = _held_out(everything, half)
    kept = _best(_half(everything, held, half | ~half), levels=levels)
    after = held[KINDS.index(kept)]
    return Calibrated(
        scaling=replace(_fitted(everything, kept), about=about),
        kept=kept,
        prompts=len(chosen),
        rounds=len(everything),
        positions=tuple(
            _position(everything, (held, after), half, p) for p in range(after.shape[1])
        ),
        halves=(_half(everything, held, half), _half(everything, held, ~half)),
        before=_bins(everything, held[0]),
        after=_bins(everything, after),
    )


def _fitted(verdicts: Verdicts, kept: Kept) -> Scaling:
    if kept == "confidences":
        return Scaling((1.0,) * verdicts.positions)
    return fit_verdicts(verdicts, levels=kept == "levels")


def _best(held: Errors, *, levels: bool) -> Kept:
    """What errs least on held-out prompts: of few prompts a fit can know too much."""
    errors = (held.before, held.temperatures, held.levels)[: 3 if levels else 2]
    return KINDS[errors.index(min(errors))]


Held = tuple[Values, Values, Values]
"""Survivals [n, B] of every round, as the confidences say, after temperatures, after levels; each
by the fit on the half that it does not belong to.
"""


def _held_out(verdicts: Verdicts, half: Truths) -> Held:
    found = []
    for kept in KINDS:
        survivals = np.zeros(verdicts.confidence.shape)
        for side in (half, ~half):
            scaling = _fitted(verdicts.part(~side), kept)
            survivals[side] = verdicts.part(side).survivals(scaling)
        found.append(survivals)
    return found[0], found[1], found[2]


def _position(
    verdicts: Verdicts, scores: tuple[Held, Values], half: Truths, position: int
) -> Position:
    held, after = scores
    return Position(
        rounds=int(verdicts.seen(position).sum()),
        errors=_errors(verdicts, held, position, half | ~half),
        auc_before=_auc(verdicts, held[0], half, position),
        auc_after=_auc(verdicts, after, half, position),
    )


def _auc(verdicts: Verdicts, survivals: Values, half: Truths, position: int) -> float | None:
    found = []
    for side in (half, ~half):
        seen = verdicts.seen(position) & side
        found.append(roc_auc(survivals[seen, position], verdicts.survived(position)[seen]))
    told = [auc for auc in found if auc is not None]
    return fmean(told) if told else None


def _errors(verdicts: Verdicts, held: Held, position: int, chosen: Truths) -> Errors:
    seen = verdicts.seen(position) & chosen
    survived = verdicts.survived(position)[seen]
    before, temperatures, levels = (values[seen, position] for values in held)
    weight = verdicts.weight[seen].astype(np.float64)
    return Errors(
        ece(before, survived, weight),
        ece(temperatures, survived, weight),
        ece(levels, survived, weight),
        ece_by_chance(levels, weight),
    )


def _half(verdicts: Verdicts, held: Held, chosen: Truths) -> Errors:
    return _mean([_errors(verdicts, held, p, chosen) for p in range(verdicts.positions)])


def _mean(errors: Sequence[Errors]) -> Errors:
    return Errors(
        before=fmean(e.before for e in errors),
        temperatures=fmean(e.temperatures for e in errors),
        levels=fmean(e.levels for e in errors),
        chance=fmean(e.chance for e in errors),
    )


def _bins(verdicts: Verdicts, survivals: Values) -> tuple[Bin, ...]:
    parts = [(verdicts.seen(p), verdicts.survived(p), p) for p in range(verdicts.positions)]
    predicted = np.concatenate([survivals[seen, p] for seen, _, p in parts])
    happened = np.concatenate([survived[seen] for seen, survived, _ in parts])
    weight = np.concatenate([verdicts.weight[seen] for seen, _, _ in parts])
    return reliability(predicted, happened, weight.astype(np.float64))
