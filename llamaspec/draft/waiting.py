"""Features that a draft has been given and not yet computed on."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from llamaspec.draft.drafter import Features


class Waiting:
    """Rows of several sequences, those of each in the order of their positions."""

    def __init__(self) -> None:
        self._parts: list[Features] = []

    def __len__(self) -> int:
        return sum(len(part.seq) for part in self._parts)

    def add(self, features: Features) -> None:
        """Take a copy of rows that follow those of the same sequences here."""
        self._parts.append(features.copy())

    def of(self, seqs: Iterable[int]) -> Features | None:
        """The rows of the given sequences; None where there are none."""
        wanted = set(seqs)
        found = [part.only(wanted) for part in self._parts]
        found = [part for part in found if part.seq]
        if not found:
            return None
        if len(found) == 1:
            return found[0]
        return Features(
            np.concatenate([part.rows for part in found]),
            [seq for part in found for seq in part.seq],
            [position for part in found for position in part.position],
        )

    def end(self, seq: int) -> int | None:
        """The position after the last row of a sequence; None where it has no rows."""
        for part in reversed(self._parts):
            if seq in part.seq:
                pairs = zip(part.seq, part.position, strict=True)
                return 1 + max(position for slot, position in pairs if slot == seq)
        return None

    def every(self) -> set[int]:
        """The sequences that have rows here."""
        return {seq for part in self._parts for seq in part.seq}

    def drop(self, seq: int, start: int = 0) -> None:
        """Forget the rows of a sequence from position `start` on."""
        self._keep(lambda slot, position: slot != seq or position < start)

    def drop_below(self, ends: Mapping[int, int]) -> None:
        """Forget the rows of sequences at positions below their ends."""
        self._keep(lambda seq, position: position >= ends.get(seq, 0))

    def _keep(self, stays: Callable[[int, int], bool]) -> None:
        parts = [part.where(stays) for part in self._parts]
        self._parts = [part for part in parts if part.seq]
