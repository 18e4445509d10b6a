"""What rounds of the bundled pair did."""

from collections import Counter
from collections.abc import Sequence

from llamaspec.completion import Completion

BLOCK = 7


def widths(found: Sequence[Completion]) -> Counter[int]:
    """Rounds by how many proposals were verified, less those that a limit of tokens cuts."""
    counts: Counter[int] = Counter()
    for done in found:
        end = done.stats.prompt_tokens + len(done.token_ids)
        counts += Counter(len(r.draft) for r in done.rounds if end - r.start > BLOCK + 1)
    return counts
