"""Hands features to the drafter, and bears with its failures: decoding goes on without a draft."""

import logging
from collections.abc import Callable, Iterable

from llamaspec.draft.drafter import Drafter, Features, Span
from llamaspec.engine.sequence import Sequence
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.context import TargetContext

logger = logging.getLogger("llamaspec")


class Teacher:
    """Between a target that publishes features and a drafter that reads them, if there is one."""

    def __init__(self, target: TargetContext, drafter: Drafter | None) -> None:
        self.drafter = drafter
        self._target = target
        self._warned = False

    @property
    def teaches(self) -> bool:
        return self.drafter is not None and self.drafter.reads_features

    @property
    def spares(self) -> bool:
        """Whether a text can go without the drafter: one that may propose for nothing is kept."""
        return self.drafter is not None and self.teaches and not self.drafter.proposes_parked

    def wants(self, sequence: Sequence) -> bool:
        """Whether the drafter is to learn the rows of a sequence."""
        return self.teaches and sequence.request.draft_max > 0 and not sequence.spared

    def publish(self, sequences: Iterable[Sequence]) -> None:
        """Have the target publish features if one of the sequences drafts."""
        self._target.publish(any(self.wants(s) for s in sequences))

    def teach(self, read: Callable[[], FloatArray], spans: list[Span]) -> None:
        """Hand the features of committed rows to the drafter."""
        assert self.drafter is not None
        try:
            self.drafter.commit(Features(read(), spans))
        except Exception as error:
            self.warn(error)

    def warn(self, error: Exception) -> None:
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        logger.log(level, "the draft failed, decoding goes on without it for now: %s", error)
