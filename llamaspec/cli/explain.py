"""What `llamaspec run --explain` says of the widths that were chosen."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llamaspec.completion import Completion
    from llamaspec.options import GenerateOptions
    from llamaspec.schedule.calibration import Calibration
    from llamaspec.schedule.pace import Pace
    from llamaspec.session import Session

_CONFIDENCES = {f"{c:g}": c for c in (0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99)}
_MATCHES = (1, 3, 10)


def explanation(done: "Completion", session: "Session", asked: "GenerateOptions") -> list[str]:
    """A few lines: what passes cost, what was chosen, how often, and on which grounds."""
    if not session.draft_limit:
        return ["proposals verified a round: none, there is no draft"]
    lines, pace = [_choices(done)], session.pace
    if asked.draft_max is not None:
        given = "--draft-max" if asked.draft_max else "--plain or --draft-max"
        return [*lines, f"widths: as {given} says; auto would choose them by what passes cost"]
    if session.schedule != "auto":
        said = "whole blocks" if session.schedule == "full" else "up to the first less sure"
        return [*lines, f"widths: {said}, as --schedule {session.schedule} says"]
    if pace is None:
        return [*lines, "widths: whole blocks; with --head python nothing is priced"]
    if asked.accept != "match" and asked.temperature > 0 and asked.seed is not None:
        return [
            *lines,
            f"widths: whole blocks; with --accept {asked.accept} a seed's text depends on them, "
            "and must not depend on what passes cost",
        ]
    depth = done.stats.prompt_tokens + done.stats.completion_tokens
    prices = pace.prices
    known = [prices.plain(depth), *prices.verify_all(depth)[2:]]
    passes = ", ".join(f"{rows}: {1000 * seconds:.2f}" for rows, seconds in enumerate(known, 1))
    blocks = ", ".join(
        f"{width}: {1000 * prices.draft(width, depth):.2f}" for width in range(1, prices.width + 1)
    )
    source = "of the given file" if prices.pinned else "measured here"
    return [
        *lines,
        f"prices ({source}, at {depth} positions): a target pass in ms by rows {passes}; "
        f"a block by proposals {blocks}",
        f"going rate: {pace.rate:.0f} tokens/s; a width is taken while its tokens are worth more "
        "than its time at that rate",
        *_expected(done, pace),
    ]


def _choices(done: "Completion") -> str:
    counts = [
        f"{width} x {count}" for width, count in enumerate(done.stats.widths) if width and count
    ]
    drafted = [record for record in done.rounds if record.offered or record.draft]
    none = sum(not record.draft for record in drafted)
    silent = len(done.rounds) - len(drafted)
    return (
        f"proposals verified a round: {', '.join(counts) or 'none'}; drafted and none verified: "
        f"{none} rounds; not drafted: {silent} of {len(done.rounds)} rounds"
    )


def _expected(done: "Completion", pace: "Pace") -> list[str]:
    lines, drafts = [], pace.prices.draft(pace.prices.width, 0) > 0
    states = any(r.confidence is not None for r in done.rounds)
    if drafts and states and pace.calibration.confident:
        counts = _counts(pace.calibration, _CONFIDENCES)
        lines.append(f"confidences {counts}, as learnt from what was accepted")
    elif drafts:
        rates = ", ".join(f"{rate:.2f}" for rate in pace.calibration.rates)
        why = "confidences foretell little here" if states else "this draft has no confidences"
        lines.append(f"{why}; by position {rates} are accepted, as learnt")
    if not drafts or pace.lookup.taught:
        counts = _counts(pace.lookup, {str(m): m / (m + 1) for m in _MATCHES})
        lines.append(f"tokens after matches of {counts}, as learnt from what was accepted")
    return lines


def _counts(calibration: "Calibration", named: dict[str, float]) -> str:
    found = calibration.probabilities(tuple(named.values()), len(named))
    return f"{', '.join(named)} count for {', '.join(f'{p:.2f}' for p in found)}"
