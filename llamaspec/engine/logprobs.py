"""The log-probabilities that a request wants of its tokens."""

from llamaspec.engine.sequence import Request
from llamaspec.runtime.context import TargetContext
from llamaspec.trace import TokenLogprob


def logprobs_of(
    target: TargetContext, request: Request, tokens: list[int], start: int
) -> list[TokenLogprob]:
    """Those of tokens chosen by the batch rows from `start` on; none where none are wanted."""
    if request.logprobs is None or not tokens:
        return []
    rows = list(range(start, start + len(tokens)))
    found, ids, top = target.logprobs(rows, tokens, request.logprobs)
    columns = tokens, found.tolist(), ids.tolist(), top.tolist()
    return [
        TokenLogprob(token, own, tuple(zip(others, values, strict=True)))
        for token, own, others, values in zip(*columns, strict=True)
    ]
