"""Write an operator of your own as an expression over named axes, and tune it.

Run:     python own_operator.py
Prints:  two operators, the best schedule found for the first, and whether its kernel agrees with NumPy.

The first operator multiplies a band matrix (33 diagonals) with a matrix. Elements outside a tensor read as
0, so the borders need no special case. The second chooses between values with `ekc.where`, as a body is
written once for all elements. Figures are those of a simulated A100.
"""

import numpy as np

import ekc

ROWS, COLUMNS, DIAGONALS = 96, 64, 33
MIDDLE = DIAGONALS // 2

band = ekc.compute(
    "band",
    axes={"i": ROWS, "j": COLUMNS},
    reduce={"d": DIAGONALS},
    inputs={"A": (ROWS, DIAGONALS), "B": (ROWS, COLUMNS)},
    body=lambda A, B, i, j, d: A[i, d] * B[i + d - MIDDLE, j],
)

leaky = ekc.compute(
    "leaky_difference",
    axes={"i": ROWS, "j": COLUMNS},
    inputs={"X": (ROWS, COLUMNS)},
    body=lambda X, i, j: ekc.where(
        ekc.less(X[i, j], X[i, j - 1]), 0.1 * (X[i, j] - X[i, j - 1]), X[i, j] - X[i, j - 1]
    ),
)


def compute_band(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The same product in NumPy: one padded copy of B for each diagonal."""
    padded = np.pad(b, ((MIDDLE, MIDDLE), (0, 0)))
    return sum(a[:, d, None] * padded[d : d + ROWS] for d in range(DIAGONALS))


def main() -> None:
    print(band)
    print(leaky)

    result = ekc.tune(band, target="a100", trials=8, seed=0, progress=False)
    print(f"\nbest of {result.trial_count} trials on {result.device.label}:")
    print(result.best.schedule)

    random = np.random.default_rng(0)
    a, b = (random.standard_normal(t.shape, dtype=np.float32) for t in band.inputs)
    print("\nagrees with NumPy:", np.allclose(result.compile()(a, b), compute_band(a, b), atol=1e-4))


if __name__ == "__main__":
    main()
