"""How many of the fast kernels to meter, and which.

The share shrinks while predictions made beforehand agree with what the meter then says, and grows
when they do not. Agreement is rank correlation together with a signal-to-noise ratio whose mean is
removed (a raw one flatters a model that predicts the mean), and two rounds must say the same before
the share moves: the dynamic update of arXiv 2411.18873, with constants of our own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.search.model import spearman

FLOOR, START, CEILING = 0.1, 0.5, 1.0
FAITHFUL_RANK, FAITHFUL_SNR = 0.7, 2.0
INFORMATION = 0.3
"""The part of the metered kernels chosen to learn from, not because they look good."""


@dataclass
class MeteringShare:
    """The share k of low-latency kernels that is metered."""

    share: float = START
    _streak: int = 0

    def update(self, predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> None:
        """Compare one round's predictions with its figures."""
        verdict = self._verdict(predicted, measured)
        self._streak = verdict if verdict * self._streak <= 0 else self._streak + verdict
        if self._streak >= 2:
            self.share = max(self.share * 0.6, FLOOR)
        elif self._streak <= -2:
            self.share = min(self.share * 1.6, CEILING)

    def _verdict(self, predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> int:
        """1 faithful, -1 not, 0 when there is too little to tell."""
        rank = spearman(predicted, measured)
        if rank is None:
            return 0
        faithful = rank >= FAITHFUL_RANK or signal_to_noise(predicted, measured) >= FAITHFUL_SNR
        return 1 if faithful else -1


def signal_to_noise(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> float:
    """Variance of the log of the figures over that of the prediction error, means removed."""
    signal, error = np.log(measured), np.log(predicted) - np.log(measured)
    return float(signal.var() / max(float(error.var()), 1e-12))


def choose(share: float, predicted: NDArray[np.float64], rows: NDArray[np.float32]) -> list[int]:
    """Which of the fast kernels to meter: the most promising, and some that look unlike them.

    `predicted` is the energy expected of each, `rows` their features. Ties break by position, so the
    answer depends on nothing but its arguments.
    """
    count = len(predicted)
    wanted = min(count, max(1, int(np.ceil(share * count))))
    curious = int(wanted * INFORMATION)
    order = np.argsort(predicted, kind="stable").tolist()
    chosen = order[: wanted - curious]
    spread = rows.std(axis=0)
    scaled = rows / np.where(spread > 0, spread, 1.0)
    for _ in range(curious):
        rest = [i for i in order if i not in chosen]
        near = [float(np.min(np.linalg.norm(scaled[chosen] - scaled[i], axis=1))) for i in rest]
        chosen.append(rest[int(np.argmax(near))])
    return sorted(chosen)
