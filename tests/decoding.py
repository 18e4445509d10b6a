"""Decodes one text with a loaded pair, token limit aside to its very end."""

from llamaspec.engine.ending import Ending
from llamaspec.engine.sequence import Request, Sequence
from llamaspec.loading import Pair
from llamaspec.runtime.arrays import IntArray
from llamaspec.text.detokenize import Pieces


def decode(pair: Pair, prompt: IntArray, tokens: int, draft_max: int) -> Sequence:
    """The finished sequence of a text that nothing but its length ends."""
    ending = Ending(pieces=Pieces(pair.model.vocab.piece), ends=frozenset(), limit=tokens)
    sequence = pair.engine.admit(Request(prompt, tokens, draft_max, ending))
    try:
        while sequence.finish_reason is None:
            pair.engine.step()
    finally:
        pair.engine.release(sequence.request)
    return sequence
