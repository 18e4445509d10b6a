"""How drafting for several texts has gone lately, in units of plain decoding."""

from dataclasses import dataclass

ROUNDS = 50
"""Rounds that the going rate is of."""


@dataclass
class Going:
    """The going rate of so many texts, in units of plain decoding: tokens a text's round, and its
    seconds.
    """

    tokens: float = 1.0
    seconds: float = 1.0
    rounds: int = 0

    def add(self, tokens: float, seconds: float) -> None:
        self.rounds = min(self.rounds + 1, ROUNDS)
        step = 1 / max(self.rounds, 8)
        self.tokens += step * (tokens - self.tokens)
        self.seconds += step * (seconds - self.seconds)


@dataclass
class Stretch:
    """Rounds in a row that were drafted for, in units of plain decoding."""

    tokens: float = 0.0
    seconds: float = 0.0
    rounds: int = 0

    def add(self, tokens: float, seconds: float) -> None:
        self.tokens += tokens
        self.seconds += seconds
        self.rounds += 1

    @property
    def gain(self) -> float:
        """What it brought, of what plain decoding brings in that time."""
        return self.tokens / self.seconds if self.rounds else 0.0
