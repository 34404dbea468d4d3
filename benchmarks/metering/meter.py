"""Error of the meter on GPUs of known power, and how often its interval holds the true power.

    python -m benchmarks.metering.meter [--draws 500] [--seconds 3] [--seed 0] [--json FILE]

The meter and the sensors are the real ones, over a scripted NVML on a virtual clock (tests/scripted/nvml); no
GPU draws these powers. "any" mixes all kinds. The last rows have no bar: calls as long as the sensor's own
rhythm, of which a sensor that looks a quarter of the time sees the same part again and again. "noted" is the
share of rows that say so (docs/explanation/metering.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.common.script import Arguments, Column, format_lines, judge_lines, make_main
from tests.scripted.nvml.card import Card, any_card
from tests.scripted.nvml.metering import metered

ERROR, HELD = 0.01, (0.90, 0.98)
"""Bars for all draws at once: the largest error, and the share of intervals that hold the truth."""
QUARTER = Card(share=0.25, swing_w=40.0, noise=0.008)
BARRED: dict[str, Callable[[np.random.Generator], Card]] = {
    "any": any_card,
    "ticks of 100 ms": lambda random: Card(call_s=sample_short_call(random)),
    "ticks of 20 ms": lambda random: Card(call_s=sample_short_call(random), tick_s=0.02),
    "ticks seen up to 10 ms late": lambda random: Card(call_s=sample_short_call(random), late_s=0.01),
    "looks a quarter of the time": lambda random: replace(QUARTER, call_s=sample_short_call(random)),
    "warms up by 40 W": lambda random: Card(call_s=sample_short_call(random), warming_w=40.0, warming_s=8.0),
    "no counter": lambda random: Card(call_s=sample_short_call(random), counts=False),
    "no counter, power is a mean of 1 s": lambda random: Card(
        call_s=sample_short_call(random), counts=False, instantaneous=False
    ),
}
KNOWN_LIMITS: dict[str, Callable[[np.random.Generator], Card]] = {
    "a quarter, calls of 5 to 25 ms": lambda random: replace(QUARTER, call_s=random.uniform(0.005, 0.025)),
    "a quarter, calls of exactly 50 ms": lambda random: replace(QUARTER, call_s=0.05),
}


def sample_short_call(random: np.random.Generator) -> float:
    """Seconds of a call that is short beside the sensor's rhythm."""
    return float(10 ** random.uniform(-5, -3))


def measure_kind(card_of: Callable[[np.random.Generator], Card], arguments: Arguments) -> dict[str, Any]:
    """Meter all draws of one kind of card."""
    random = np.random.default_rng(arguments.seed)
    seeds = (int(arguments.seed) * 10**6 + draw for draw in range(arguments.draws))
    draws = [metered(card_of(random), arguments.seconds, seed) for seed in seeds]
    errors = np.array([draw.error for draw in draws])
    widths = [(d.window.power_interval_w.high - d.window.power_w) / d.window.power_w for d in draws]
    return {
        "largest_error": float(np.max(np.abs(errors))),
        "rms_error": float(np.sqrt(np.mean(errors**2))),
        "half_width": float(np.mean(widths)),
        "held": float(np.mean([draw.held for draw in draws])),
        "noted": float(np.mean([any("are in step" in n for n in draw.window.notes) for draw in draws])),
    }


def judge_kind(name: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Add the bars and the verdict to the figures of a kind; None where it has no bar."""
    if name in KNOWN_LIMITS:
        return figures | {"kind": name, "bar": None, "pass": None}
    met = figures["largest_error"] < ERROR
    # Every kind has the bar of the error; only the mixture has the bar of the coverage.
    if name == "any":
        met = met and HELD[0] <= figures["held"] <= HELD[1]
    return figures | {"kind": name, "bar": {"error": ERROR, "held": HELD}, "pass": bool(met)}


def measure(arguments: Arguments) -> dict[str, Any]:
    """Measure all kinds of cards, and print the table."""
    print(
        f"scripted NVML (no GPU), windows of {arguments.seconds:g} s, {arguments.draws} draws a row, "
        f"seed {arguments.seed}"
    )
    kinds = BARRED | KNOWN_LIMITS
    rows = [judge_kind(name, measure_kind(card_of, arguments)) for name, card_of in kinds.items()]
    print(format_lines(COLUMNS, rows))
    return {"rows": rows, "seed": arguments.seed, "pass": judge_lines(rows)}


COLUMNS = (
    Column("card", "kind"),
    Column("largest error", "largest_error", ".2%"),
    Column("rms error", "rms_error", ".2%"),
    Column("half width", "half_width", ".2%"),
    Column("held", "held", ".1%"),
    Column("noted", "noted", ".0%"),
    Column("", "pass", {True: "pass", False: "FAIL", None: "no bar"}.__getitem__),
)
OPTIONS = {
    "--draws": {"type": int, "default": 500},
    "--seconds": {"type": float, "default": 3.0},
}
main = make_main(__doc__, measure, {"error": ERROR, "held": HELD}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
