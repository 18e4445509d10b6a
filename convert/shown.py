"""What untrusted files say, in messages: short, on one line, in printable characters."""

import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxdict = 12
_SHORT.maxstring = _SHORT.maxother = 80
_LONGEST, _BEGINNING = 1200, 800


def shown(value: object) -> str:
    """A value as Python writes it, cut short however large or deep it is."""
    return _SHORT.repr(value)


def one_line(text: str) -> str:
    """A message without control characters, its middle left out where it is very long."""
    if len(text) > _LONGEST:
        end = _LONGEST - _BEGINNING
        text = f"{text[:_BEGINNING]} ... {text[-end:]}"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
