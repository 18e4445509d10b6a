"""From a draft's confidences to probabilities of acceptance, learnt while decoding."""

import math
from collections.abc import Sequence

_LEAST = 1e-6
_MOST = 1 - _LEAST
_REMEMBER = 100


class Calibration:
    """P(accepted | all before accepted) = sigmoid(offset + slope * logit(c)), both learnt by online
    logistic regression (Platt scaling; the slope is one over a temperature).

    Trained confidences are too sure of themselves: an untaught calibration divides their logits by
    1.5. Without confidences every position has a rate of its own, 0.6 until it is known better.
    """

    def __init__(self, proposals: int) -> None:
        """proposals: the most that a block holds."""
        self.offset, self.slope = 0.0, 1 / 1.5
        self.rates = [0.6] * proposals
        self._seen = [3] * proposals

    def probabilities(self, confidence: Sequence[float] | None, count: int) -> list[float]:
        """Of each of `count` proposals, from their confidences or without any."""
        if confidence is None:
            return self.rates[:count]
        offset, slope = self.offset, self.slope
        return [_sigmoid(offset + slope * _logit(c)) for c in confidence[:count]]

    def learn(self, confidence: Sequence[float] | None, accepted: int, verified: int) -> None:
        """Take in how many of the verified proposals were accepted: those and the first after them
        say something, what follows was not looked at.
        """
        for i in range(min(verified, accepted + 1)):
            hit = float(i < accepted)
            if confidence is None:
                self._seen[i] = min(self._seen[i] + 1, _REMEMBER)
                self.rates[i] += (hit - self.rates[i]) / self._seen[i]
                continue
            score = _logit(confidence[i])
            gradient = 0.05 * (hit - _sigmoid(self.offset + self.slope * score))
            self.offset += gradient
            self.slope = max(0.1, self.slope + gradient * score / (1 + score * score))


def _sigmoid(x: float) -> float:
    x = 60.0 if x > 60.0 else -60.0 if x < -60.0 else x
    return 1 / (1 + math.exp(-x))


def _logit(c: float) -> float:
    # of these comparisons a NaN, of a damaged draft, fails the first: it is the least
    c = (c if c < _MOST else _MOST) if c > _LEAST else _LEAST
    return math.log(c / (1 - c))
