"""Tune a matrix product for a simulated A100, call the best kernel and export it.

Run:     python tune_matmul.py [TRIALS]
Prints:  the summary of the run, the error of the kernel against NumPy, and the files it leaves in build/.

The device is simulated: latency, power and energy come from a model of an A100. The result of the kernel is
real: its compiled PTX is executed on the CPU.
"""

import sys

import numpy as np

import ekc


def main(trials: int) -> None:
    op = ekc.matmul(128, 128, 128)
    result = ekc.tune(op, target="a100", trials=trials, seed=0, progress=False)
    print(result.summary())

    kernel = result.compile()
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((128, 128), dtype=np.float32) for _ in range(2))
    error = float(np.abs(kernel(a, b) - a @ b).max())
    print(f"\nlargest error against NumPy: {error:.1e}")

    for path in result.export("build"):
        print(f"written: {path}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 16)
