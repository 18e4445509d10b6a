"""From a draft's confidences to probabilities of acceptance, learnt while decoding."""

from bisect import bisect_right
from collections.abc import Sequence

from llamaspec.schedule.scaling import Scaling, logit, sigmoid

_LEAST = 1e-6
_REMEMBER = 100
_QUICK, _SLOW = 0.2, 0.04
_KNOTS = (-9.0, -3.0, -1.5, 0.0, 1.5, 3.0, 4.5, 6.0, 8.0)


class Calibration:
    """P(accepted | all before accepted) = sigmoid(f(logit(c))), f rising and linear between knots
    whose values are learnt by online logistic regression: trained heads can be right about low
    confidences and too sure of high ones, which no single temperature says.

    An untaught calibration divides logits by 1.5. One that starts from a scaling takes its
    probabilities for c, and learns slowly. Without confidences every position has a rate of its
    own, 0.6 until it is known better.
    """

    def __init__(self, proposals: int, scaling: Scaling | None = None) -> None:
        """proposals: the most that a block holds. scaling: what `llamaspec calibrate` found."""
        self.scaling = scaling
        self._values = [x / (1.0 if scaling else 1.5) for x in _KNOTS]
        self._step = _SLOW if scaling else _QUICK
        self._taught = False
        self.rates = [0.6] * proposals
        self._seen = [3] * proposals

    def probabilities(self, confidence: Sequence[float] | None, count: int) -> list[float]:
        """Of each of `count` proposals, from their confidences or without any."""
        if confidence is None:
            return self.rates[:count]
        return [self._read(c)[0] for c in self._scaled(confidence[:count])]

    def learn(self, confidence: Sequence[float] | None, accepted: int, verified: int) -> None:
        """Take in how many of the verified proposals were accepted: those and the first after them
        say something, what follows was not looked at.
        """
        known = min(verified, accepted + 1)
        if confidence is None:
            for i in range(known):
                self._seen[i] = min(self._seen[i] + 1, _REMEMBER)
                self.rates[i] += ((i < accepted) - self.rates[i]) / self._seen[i]
            return
        self._taught = self._taught or known > 0
        for i, c in enumerate(self._scaled(confidence[:known])):
            found, right, share = self._read(c)
            self._move(right, share, self._step * ((i < accepted) - found))

    @property
    def taught(self) -> bool:
        """Whether any confidence has been learnt from."""
        return self._taught

    def _read(self, c: float) -> tuple[float, int, float]:
        """The probability for a confidence; the knot right of it, and that one's share in it."""
        x = logit(c)
        right = min(max(1, bisect_right(_KNOTS, x)), len(_KNOTS) - 1)
        left = _KNOTS[right - 1]
        share = min(max((x - left) / (_KNOTS[right] - left), 0.0), 1.0)
        values = self._values
        return (
            sigmoid(values[right - 1] + share * (values[right] - values[right - 1])),
            right,
            share,
        )

    def _move(self, right: int, share: float, by: float) -> None:
        values = self._values
        values[right - 1] += (1 - share) * by
        values[right] += share * by
        # what is learnt of some confidences bounds what larger and smaller ones can mean
        for i in range(right, len(values) - 1):
            values[i + 1] = max(values[i + 1], values[i])
        for i in range(right, 0, -1):
            values[i - 1] = min(values[i - 1], values[i])

    def _scaled(self, confidence: Sequence[float]) -> Sequence[float]:
        """P(accepted | all before accepted) by the scaling, which has survivals."""
        if self.scaling is None:
            return confidence
        survival = self.scaling.survival(confidence)
        return [a / max(b, _LEAST) for a, b in zip(survival, [1.0, *survival], strict=False)]
