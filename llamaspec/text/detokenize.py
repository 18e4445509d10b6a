"""Text from a stream of tokens, whose pieces are bytes and need not end where a character does."""

import codecs
from collections.abc import Callable

_UTF8 = codecs.getincrementaldecoder("utf-8")


class Pieces(dict[int, str | bytes]):
    """What each token adds to a text: as text where that is whole characters, else as bytes.

    Filled when first asked; one table serves all streams of a vocabulary.
    """

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        """Take `piece`, which gives the bytes of a token id; it is asked once for each id."""
        super().__init__()
        self._piece = piece

    def __missing__(self, token: int) -> str | bytes:
        raw = self._piece(token)
        try:
            found: str | bytes = raw.decode()
        except UnicodeDecodeError:
            found = raw
        self[token] = found
        return found


class StreamDetokenizer:
    """Turns token ids into text, holding back the bytes of an unfinished character.

    All that `push` and one final `flush` return, joined, equals the bytes of all pieces decoded at
    once with errors="replace"; so U+FFFD appears only where the bytes really are no UTF-8.
    """

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._decoder = _UTF8("replace")
        self._unfinished = False

    def push(self, token: int) -> str:
        """Take the next token id; return the text that is complete now, often its whole piece."""
        piece = self._pieces[token]
        if isinstance(piece, str):
            if not self._unfinished:
                return piece
            piece = piece.encode()
        text = self._decoder.decode(piece)
        self._unfinished = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """End the stream: an unfinished character becomes U+FFFD. Ready for a new stream after."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._unfinished = False
        return text
