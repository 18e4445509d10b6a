"""A text decoded plainly once more, to see how close a choice was."""

from collections.abc import Sequence

from llamaspec.engine.ending import Ending
from llamaspec.engine.loop import Engine
from llamaspec.engine.sequence import Request
from llamaspec.runtime.arrays import IntArray
from llamaspec.runtime.context import TargetContext
from llamaspec.text.detokenize import Pieces


def plain_gap(
    engine: Engine, context: TargetContext, prompt: IntArray, tokens: Sequence[int]
) -> float:
    """How far apart, in logits, the two largest lie where plain decoding of a prompt chooses the
    token after `tokens`, from a cold start. Takes a free slot. Raises DecodeError.
    """
    gaps: list[float] = []

    def draw(_: int, __: int) -> int:
        # every pass puts out one row: what was generated is forced, the last gap is wanted
        gaps.append(float(context.top2(1)[1][0]))
        return tokens[len(gaps) - 1] if len(gaps) <= len(tokens) else 0

    limit = len(tokens) + 1
    ending = Ending(pieces=Pieces(lambda _: b""), ends=frozenset(), limit=limit)
    request = Request(prompt, limit, 0, ending, draw)
    try:
        sequence = engine.admit(request)
        while sequence.finish_reason is None:
            engine.step()
    finally:
        engine.release(request)
    return gaps[-1]
