"""Decodes one text: with a loaded pair to its very end, or with a session round by round."""

from typing import Any

from llamaspec.completion import Completion
from llamaspec.engine.ending import Ending
from llamaspec.engine.sequence import Request, Sequence
from llamaspec.loading import Pair
from llamaspec.runtime.arrays import IntArray
from llamaspec.session import Session
from llamaspec.text.detokenize import Pieces
from llamaspec.text.prompt import Prompt


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


def one_by_one(session: Session, prompt: Prompt, **arguments: Any) -> Completion:  # noqa: ANN401
    """A completion by rounds that go one by one."""
    for _ in session.stream(prompt, **arguments):
        pass
    assert session.last is not None
    return session.last
