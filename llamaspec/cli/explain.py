"""What `llamaspec run --explain` says of the widths that were chosen."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llamaspec.completion import Completion
    from llamaspec.schedule.pace import Pace


def explanation(done: "Completion", pace: "Pace | None", *, auto: bool) -> list[str]:
    """A few lines: what passes cost, what was chosen, how often, and on which grounds."""
    lines = [_choices(done)]
    if pace is None:
        return [*lines, "widths: every round drafts a whole block; nothing is priced here"]
    if not auto:
        return [*lines, "widths: as --draft-max says; auto would choose them by what passes cost"]
    depth = done.stats.prompt_tokens + done.stats.completion_tokens
    prices, calibration = pace.prices, pace.calibration
    passes = ", ".join(
        f"{rows}: {1000 * prices.verify(rows, depth):.2f}" for rows in range(1, prices.rows + 1)
    )
    source = "of the given file" if prices.pinned else "measured here"
    return [
        *lines,
        f"prices ({source}, at {depth} positions): a target pass in ms by rows {passes}; "
        f"a draft {1000 * prices.draft(depth):.2f}",
        f"going rate: {pace.rate:.0f} tokens/s; a width is taken while its tokens are worth more "
        "than its time at that rate",
        f"a confidence c counts as sigmoid({calibration.offset:+.2f} {calibration.slope:+.2f} "
        "logit c), as learnt from what was accepted",
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
