"""Several completions, moved on by the thread that wants all of them."""

from collections import deque
from collections.abc import Sequence

from llamaspec.completion import Completion, Run
from llamaspec.errors import QueueFullError
from llamaspec.running import Running


def run_batch(running: Running, runs: Sequence[Run]) -> list[Completion]:
    """Run all to their ends and return their completions, in order. Those for which the queue has
    no room come later. Raises what ends one of them; none is under way afterwards.
    """
    coming, left = deque(runs), list(runs)
    try:
        while left:
            _submit(running, coming)
            running.step()
            for run in left:
                if run.ended and not run.finished:
                    run.completion()
            left = [run for run in left if not run.ended]
        for run in runs:
            run.take()
        return [run.completion() for run in runs]
    finally:
        for run in runs:
            running.leave(run)


def _submit(running: Running, coming: deque[Run]) -> None:
    while coming:
        try:
            running.submit(coming[0])
        except QueueFullError:
            return
        coming.popleft()
