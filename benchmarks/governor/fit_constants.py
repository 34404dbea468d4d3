"""Fits the constants of `ekc/governor/simulation/random_jobs.py` to recordings of real GPUs.

    python -m benchmarks.governor.fit_constants --data DIR

Kernels: time over the SM clock, t = (c x^p + 1 - c)^(1/p) with x = top clock / clock. c is the share that
follows the SM clock, p the sharpness of the bend. Jobs: the share of the board's power limit that training
draws without a cap, and c from its slowdown under power caps, with the voltage curve of the simulated RTX
3090 (A40 has the same chip). Needs SciPy.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from benchmarks.common.recordings import read_table

SHARPNESS = (2, 3, 4, 5, 6, 8)


def fit_kernel(clock: np.ndarray, seconds: np.ndarray) -> tuple[float, float, float]:
    """(core share, sharpness, relative rms error) of one kernel over the clock."""
    x = clock.max() / clock
    best = (0.0, 1.0, np.inf)
    for p in SHARPNESS:
        top = seconds[clock.argmax()]

        def compute_residuals(v: np.ndarray, p: int = p, top: float = top) -> np.ndarray:
            return v[1] * (v[0] * x**p + 1 - v[0]) ** (1 / p) * top / seconds - 1

        fit = least_squares(compute_residuals, [0.8, 1.0], bounds=([0, 0.5], [1, 2]))
        rms = float(np.sqrt((fit.fun**2).mean()))
        if rms < best[2] - 1e-4:
            best = (float(fit.x[0]), float(p), rms)
    return best


def print_kernels(folder: Path) -> None:
    """Fit Perseus' stages, the four GEMM tiles recorded at every clock, and the FMA kernel."""
    table: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in read_table(folder / "perseus_gpt3_a100_clocks.csv"):
        if row["stage"] in ("0", "7"):
            table[f"GPT-3 {row['instruction']} {row['stage']}"].append(
                (float(row["frequency"]), float(row["time"]))
            )
    tiles = ("MWG", "NWG", "KWG", "MDIMC", "NDIMC", "VWM", "VWN", "SA", "SB")
    for row in read_table(folder / "a100_gemm_clocks.csv"):
        table["GEMM " + "-".join(row[t] for t in tiles)].append(
            (float(row["clock_mhz"]), float(row["time_ms"]))
        )
    for row in read_table(folder / "fp32_power_vs_clock.csv"):
        table[f"FMA {row['gpu']}"].append((float(row["clock_mhz"]), float(row["time_ms"])))
    for name, points in table.items():
        clock, seconds = np.array(sorted(points)).T
        keep = clock >= 0.45 * clock.max()
        if len(set(clock[keep])) >= 5:
            c, p, rms = fit_kernel(clock[keep], seconds[keep])
            print(f"    KernelClockFit({name!r}, {c:.3f}, {p:.0f}),  # {keep.sum()} clocks, rms {rms:.1%}")


def compute_voltage(clock: np.ndarray, knee: float, slope: float) -> np.ndarray:
    """Voltage relative to the top clock's, over the clock as a share of the top clock."""
    return 1 + slope * np.maximum(0, clock - knee)


def compute_slowdown(caps: np.ndarray, c: float, drawn_w: float, base: float, p: float = 4.0) -> np.ndarray:
    """Slowdown at each cap of a kernel that draws `drawn_w` W without a cap beside a constant `base` W."""
    clock = np.linspace(0.1, 1, 400)
    stretch = (c * clock**-p + 1 - c) ** (1 / p)
    squared = (compute_voltage(clock, 0.79, 1.45) / compute_voltage(np.ones(1), 0.79, 1.45)) ** 2
    watts = base + drawn_w * squared * (0.8 / stretch + 0.2 * clock)
    return np.interp(caps, watts, stretch, left=stretch[0], right=1.0)


def print_jobs(folder: Path, name: str, board: str, base: float) -> None:
    """Fit each network and batch size of one sweep: power without a cap, and core share from its caps."""
    table: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    for row in read_table(folder / name):
        key = (row["network"], row["batch_size"])
        table[key].append(tuple(float(row[k]) for k in ("power_limit", "time_per_epoch", "average_power")))
    for (network, batch), points in table.items():
        data = np.array(sorted(points))
        caps = np.unique(data[:, 0])
        seconds = np.array([np.median(data[data[:, 0] == cap, 1]) for cap in caps])
        watts = np.array([np.median(data[data[:, 0] == cap, 2]) for cap in caps])
        if len(caps) < 6:
            continue
        slower = seconds / seconds[-1]

        def compute_residuals(
            v: np.ndarray, caps: np.ndarray = caps, slower: np.ndarray = slower
        ) -> np.ndarray:
            return v[2] * compute_slowdown(caps, v[0], v[1], base) / slower - 1

        drawn_w = max(20.0, watts[-1] - base)
        fit = least_squares(compute_residuals, [0.5, drawn_w, 1.0], bounds=([0, 1, 0.9], [1, 600, 1.1]))
        rms = float(np.sqrt((fit.fun**2).mean()))
        share = watts[-1] / caps[-1]
        # A cap far above the power drawn says nothing about the core share, and neither does a bad fit.
        core = f"{fit.x[0]:.2f}" if share > 0.45 and rms < 0.05 else "-"
        print(f"{network} {board} | {batch} {share:.3f} {core}  (rms {rms:.1%})")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the recordings")
    folder = parser.parse_args().data
    print_kernels(folder)
    print_jobs(folder, "zeus_power_caps_a40.csv", "A40", 60.0)
    print_jobs(folder, "zeus_power_caps_v100.csv", "V100", 50.0)


if __name__ == "__main__":
    main()
