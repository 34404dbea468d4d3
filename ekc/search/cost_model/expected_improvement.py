"""Expected improvement: the value of a measurement by the mean and standard deviation of its prediction."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_TAIL_Z_SCORE = -6.0
"""Z-score below which the exact formula of the expected improvement loses its digits."""
_ERFC = np.frompyfunc(math.erfc, 1, 1)
_TAIL_PROBABILITY = 0.5 * math.erfc(-_TAIL_Z_SCORE / math.sqrt(2))


def normal_cdf(z: Array) -> Array:
    """Cumulative distribution function of the standard normal distribution."""
    return 0.5 * np.asarray(_ERFC(-z / math.sqrt(2)), dtype=np.float64)


def log_expected_improvement(mean: Array, std: Array, best: Array | float) -> Array:
    """Log of the expected improvement E[max(best - x, 0)], x normal with this mean and standard deviation.

    `mean` and `best` are logs of figures, lower is better; of the result, higher is better.
    """
    z = (best - mean) / std
    near = np.maximum(z, _TAIL_Z_SCORE)
    probability = np.full(z.shape, _TAIL_PROBABILITY)
    at = z > _TAIL_Z_SCORE
    probability[at] = normal_cdf(z[at])
    gain = near * probability + np.exp(-near * near / 2) / math.sqrt(2 * math.pi)
    # In the tail, two terms of the series: density / z^2 * (1 - 3 / z^2).
    far = np.minimum(z, _TAIL_Z_SCORE)
    tail = -z * z / 2 - 0.5 * math.log(2 * math.pi) - 2 * np.log(-far) + np.log1p(-3 / far**2)
    return np.asarray(np.log(std) + np.where(at, np.log(gain), tail))
