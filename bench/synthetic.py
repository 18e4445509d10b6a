"""Acceptance at given rates instead of the target's word: for timing drafts that are not trained.

What comes out is no text of the model. The meaning is that of llama.cpp's --spec-synth-rates: from
left to right, each proposal is accepted with a fixed chance and becomes text as it is; the first
that is not is replaced by the target's own choice, and so is one that would end the text. The
target still computes every row, so that a round costs what it costs.
"""

import random
from collections.abc import Iterable, Sequence, Set

from llamaspec.bench.figures import unconditional
from llamaspec.errors import OptionError
from llamaspec.verify.accept import Verification

SEED = 42


class ScriptedAcceptance:
    """Stands in for `verify.accept.accept`, as `Engine.accept`."""

    def __init__(self, rates: Sequence[float], ends: Set[int]) -> None:
        """rates[i]: P(proposal i is accepted | all before it are). ends: tokens that end a text."""
        self._rates = tuple(rates)
        self._ends = ends
        self._random = random.Random(SEED)

    def seed(self, number: int) -> None:
        """Start a text: the same number gives the same decisions."""
        self._random.seed(SEED + number)

    def __call__(self, choices: Iterable[int], proposal: Sequence[int]) -> Verification:
        """Decide a block by chance; as `accept` otherwise."""
        tokens: list[int] = []
        target = iter(choices)
        for rate, proposed in zip(self._rates, proposal, strict=False):
            own = next(target, None)
            if own is None:
                return Verification(len(tokens), tokens)
            if self._random.random() >= rate or proposed in self._ends:
                return Verification(len(tokens), [*tokens, own])
            tokens.append(proposed)
        own = next(target, None)
        return Verification(len(tokens), tokens if own is None else [*tokens, own])


def read_rates(text: str) -> tuple[float, ...]:
    """Conditional rates, separated by commas. Raises OptionError for what is none in 0 to 1."""
    try:
        rates = tuple(float(word) for word in text.split(","))
    except ValueError:
        rates = ()
    if not rates or not all(0 <= rate <= 1 for rate in rates):
        raise OptionError(f"synthetic rates are {text!r}; give numbers in 0 to 1, such as 0.9,0.8")
    return rates


def for_width(rates: Sequence[float], width: int, arm: str) -> tuple[float, ...]:
    """The rates of the first `width` proposals. Raises OptionError where there are fewer."""
    if len(rates) < width:
        raise OptionError(
            f"{len(rates)} synthetic rates were given and {arm} proposes {width} tokens a round; "
            "give as many"
        )
    return tuple(rates[:width])


def as_llama_cpp(rates: Sequence[float]) -> str:
    """The value of llama.cpp's --spec-synth-rates, which are unconditional."""
    return ",".join(f"{rate:.9f}" for rate in unconditional(rates))
