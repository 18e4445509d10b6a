"""From a draft's confidences to probabilities of acceptance, learnt while decoding."""

import math
from collections.abc import Sequence

from llamaspec.schedule.scaling import Scaling

_LEAST = 1e-6
_MOST = 1 - _LEAST
_REMEMBER = 100
_QUICK, _SLOW = 0.05, 0.01


class Calibration:
    """P(accepted | all before accepted) = sigmoid(offset + slope * logit(c)), both learnt by online
    logistic regression (Platt scaling; the slope is one over a temperature).

    Trained confidences are too sure of themselves: an untaught calibration divides their logits by
    1.5. One that starts from a scaling takes its probabilities for c, and learns slowly. Without
    confidences every position has a rate of its own, 0.6 until it is known better.
    """

    def __init__(self, proposals: int, scaling: Scaling | None = None) -> None:
        """proposals: the most that a block holds. scaling: what `llamaspec calibrate` found."""
        self.scaling = scaling
        self.offset, self.slope = 0.0, 1.0 if scaling else 1 / 1.5
        self._step = _SLOW if scaling else _QUICK
        self.rates = [0.6] * proposals
        self._seen = [3] * proposals

    def probabilities(self, confidence: Sequence[float] | None, count: int) -> list[float]:
        """Of each of `count` proposals, from their confidences or without any."""
        if confidence is None:
            return self.rates[:count]
        offset, slope = self.offset, self.slope
        return [_sigmoid(offset + slope * _logit(c)) for c in self._scaled(confidence[:count])]

    def learn(self, confidence: Sequence[float] | None, accepted: int, verified: int) -> None:
        """Take in how many of the verified proposals were accepted: those and the first after them
        say something, what follows was not looked at.
        """
        known = min(verified, accepted + 1)
        if confidence is not None:
            confidence = self._scaled(confidence[:known])
        for i in range(known):
            hit = float(i < accepted)
            if confidence is None:
                self._seen[i] = min(self._seen[i] + 1, _REMEMBER)
                self.rates[i] += (hit - self.rates[i]) / self._seen[i]
                continue
            score = _logit(confidence[i])
            gradient = self._step * (hit - _sigmoid(self.offset + self.slope * score))
            self.offset += gradient
            self.slope = max(0.1, self.slope + gradient * score / (1 + score * score))

    def _scaled(self, confidence: Sequence[float]) -> Sequence[float]:
        """P(accepted | all before accepted) by the scaling, which has survivals."""
        if self.scaling is None:
            return confidence
        survival = self.scaling.survival(confidence)
        return [a / max(b, _LEAST) for a, b in zip(survival, [1.0, *survival], strict=False)]


def _sigmoid(x: float) -> float:
    x = 60.0 if x > 60.0 else -60.0 if x < -60.0 else x
    return 1 / (1 + math.exp(-x))


def _logit(c: float) -> float:
    # of these comparisons a NaN, of a damaged draft, fails the first: it is the least
    c = (c if c < _MOST else _MOST) if c > _LEAST else _LEAST
    return math.log(c / (1 - c))
