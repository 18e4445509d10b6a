"""From a draft's confidences to probabilities of acceptance, learnt while decoding."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from math import exp, log

from llamaspec.runtime.rule import Rule
from llamaspec.schedule.scaling import Scaling

_LEAST, _MOST = 1e-6, 1 - 1e-6
_FARTHEST = 60.0
_UNTAUGHT, _FITTED = 1.2, 5.0
_BELIEF = 0.002
_REMEMBER = 100
_RATE, _FIRST, _BORROWED = 0.6, 3, 8
_QUICK, _SLOW = 0.2, 0.04
_KNOTS = (-9.0, -3.0, -1.5, 0.0, 1.5, 3.0, 4.5, 6.0, 8.0)


class Calibration:
    """P(accepted | all before accepted) = sigmoid(f(logit(c))), f rising and linear between knots
    whose values are learnt by online logistic regression: trained heads can be right about low
    confidences and too sure of high ones, which no single temperature says.

    An untaught calibration divides logits by 1.5. One that starts from a scaling takes its
    probabilities for c, and learns slowly. Every position also has a rate, 0.6 at first and then
    that of the position before until it is known better: all there is without confidences, and what
    counts where confidences foretell less than it does (by squared errors).
    """

    def __init__(self, proposals: int, scaling: Scaling | None = None) -> None:
        """proposals: the most that a block holds; 0 for confidences alone, and proposals without
        end. scaling: what `llamaspec calibrate` found.
        """
        self.scaling = scaling
        self._values = [x / (1.0 if scaling else 1.5) for x in _KNOTS]
        self._step = _SLOW if scaling else _QUICK
        self._taught = False
        # by how much confidences foretell better than rates, lately
        self._lead = self._trust = _FITTED if scaling else _UNTAUGHT
        self._right = [0.0] * proposals
        self._seen = [0.0] * proposals
        self.rates = [_RATE] * proposals

    def probabilities(self, confidence: Sequence[float] | None, count: int) -> list[float]:
        """Of each of `count` proposals, from their confidences or without any."""
        if confidence is None or not self.confident:
            return self.rates[:count]
        found = []
        values = self._values
        for c in self._scaled(confidence[:count]):
            right, share = _place(c)
            left = values[right - 1]
            x = left + share * (values[right] - left)
            found.append(1 / (1 + exp(-x)))
        return found

    def learn(self, confidence: Sequence[float] | None, accepted: int, verified: int) -> None:
        """Take in how many of the verified proposals were accepted: those and the first after them
        say something, what follows was not looked at.
        """
        known = min(verified, accepted + 1)
        rates, values = self.rates, self._values
        said = () if confidence is None else self._scaled(confidence[:known])
        for i, c in enumerate(said):
            right, share = _place(c)
            left = values[right - 1]
            error = (i < accepted) - 1 / (1 + exp(-left - share * (values[right] - left)))
            if i < len(rates):
                lead = self._lead + ((i < accepted) - rates[i]) ** 2 - error * error + _BELIEF
                self._lead = min(max(lead, -self._trust), self._trust)
            self._move(right, share, self._step * error)
        self._count(min(known, len(rates)), accepted)
        self._taught = self._taught or bool(said)

    def rule(self, rule: Rule) -> Rule:
        """A rule with what `probabilities` makes of proposals now."""
        if not self.confident:
            return replace(rule, rates=[*self.rates])
        found = replace(rule, at=_KNOTS, values=[*self._values])
        if self.scaling is None:
            return found
        return replace(found, temperatures=self.scaling.temperatures, levels=self.scaling.levels)

    @property
    def confident(self) -> bool:
        """Whether confidences count, or rates by position, which foretell more."""
        return self._lead >= 0

    @property
    def taught(self) -> bool:
        """Whether any confidence has been learnt from."""
        return self._taught

    def _count(self, known: int, accepted: int) -> None:
        right, seen, rate = self._right, self._seen, _RATE
        for i in range(known):
            if seen[i] > _REMEMBER:
                right[i] *= 1 - 1 / _REMEMBER
                seen[i] *= 1 - 1 / _REMEMBER
            right[i] += i < accepted
            seen[i] += 1
        borrowed = _FIRST
        for i in range(len(seen)):
            # a position that was hardly seen is taken to be like the one before
            rate = (right[i] + borrowed * rate) / (seen[i] + borrowed)
            self.rates[i] = rate
            borrowed = _BORROWED

    def _move(self, right: int, share: float, by: float) -> None:
        values = self._values
        high = _bounded(values[right] + share * by)
        low = min(_bounded(values[right - 1] + (1 - share) * by), high)
        values[right - 1 : right + 1] = low, high
        # what is learnt of some confidences bounds what larger and smaller ones can mean
        for i in range(right + 1, len(values)):
            if values[i] >= high:
                break
            values[i] = high
        for i in range(right - 2, -1, -1):
            if values[i] <= low:
                break
            values[i] = low

    def _scaled(self, confidence: Sequence[float]) -> Sequence[float]:
        """P(accepted | all before accepted) by the scaling, which has survivals."""
        if self.scaling is None:
            return confidence
        survival = self.scaling.survival(confidence)
        return [a / max(b, _LEAST) for a, b in zip(survival, [1.0, *survival], strict=False)]


def _place(c: float) -> tuple[int, float]:
    """The knot right of a confidence, and that one's share in it."""
    # a confidence that is no number counts as the least
    c = c if c > _LEAST else _LEAST
    x = log(c / (1 - c)) if c < _MOST else _KNOTS[-1]
    if x >= _KNOTS[-1]:
        return len(_KNOTS) - 1, 1.0
    right = bisect_right(_KNOTS, x)
    if right == 0:
        return 1, 0.0
    left = _KNOTS[right - 1]
    return right, (x - left) / (_KNOTS[right] - left)


def _bounded(x: float) -> float:
    return min(max(x, -_FARTHEST), _FARTHEST)
