"""A simulated GPU beside kernels of ekc that the real one ran: latency, power, equal speed, counters.

    python -m benchmarks.simulator.own [--folder DIR] [--fit] [--json FILE]

DIR is a folder of `benchmarks.gpu`; the default one holds an H100. Half of the kernels, by the parity of the
digest, may fit the model; the other half scores. Predictions are those of the models without the seeded
residual, at the recorded clock. Power is judged at the recorded time of a call, so that no error of the
latency hides in it. Beside each figure stands its trivial predictor: for latencies the analytic prior, for
power the median of the operator, for energies at equal speed the time alone. The bar: on the scored half,
the median error of power is below that of the median. `--fit` prints the energy of each kind of event that
fits the fitted half best within its bounds, beside the one that is in use. No GPU is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import lsq_linear

from benchmarks.common.ranking import compute_error, spearman
from benchmarks.common.script import WIDE_TABLE, Arguments, format_verdict, make_main
from benchmarks.simulator.own_rows import DRAM, OwnRow, read_folder
from ekc.devices.simulated import power
from ekc.devices.simulated.specs import GpuSpec
from ekc.tables import format_table

FOLDER = Path(__file__).parents[2] / "recordings" / "h100"
PARTS: Mapping[str, Callable[[OwnRow], bool]] = {
    "all": lambda row: True,
    "fitted half": lambda row: row.measured.is_fitted,
    "scored half": lambda row: not row.measured.is_fitted,
}
NEAR = 2.0
"""Latency relative to the fastest of an operator, up to which a kernel is near the top."""
RIDGE = 0.1
"""Weight of "as it is" for each energy in the fit, relative to one row with an error of 100 %."""
COUNTED: Mapping[str, tuple[Callable[[OwnRow], float], tuple[str, ...]]] = {
    "instructions": (lambda row: row.events.issued_instructions, ("smsp__inst_executed.sum",)),
    "global requests": (
        lambda row: row.events.traffic.requests,
        tuple(f"l1tex__t_requests_pipe_lsu_mem_global_op_{way}.sum" for way in ("ld", "st")),
    ),
    "global sectors": (
        lambda row: row.events.traffic.sectors,
        tuple(f"l1tex__t_sectors_pipe_lsu_mem_global_op_{way}.sum" for way in ("ld", "st")),
    ),
    "shared requests": (
        lambda row: row.events.shared_requests,
        tuple(f"smsp__sass_inst_executed_op_shared_{way}.sum" for way in ("ld", "st")),
    ),
    "shared wavefronts": (
        lambda row: row.events.shared_wavefronts,
        ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",),
    ),
    "L2 sectors": (lambda row: row.events.traffic.l2_bytes / 32.0, ("lts__t_sectors_srcunit_tex.sum",)),
    "DRAM bytes": (
        lambda row: row.events.traffic.drifting_dram_bytes,
        ("dram__bytes_read.sum", "dram__bytes_write.sum"),
    ),
}
"""The event of the model, and the counters of Nsight Compute that add up to it."""
LEAST_DRAM_BYTES = 2e7
"""Bytes below which the traffic of DRAM is that of whatever else runs."""


def measure(arguments: Arguments) -> dict[str, Any]:
    """Print the tables."""
    label, spec, rows = read_folder(arguments.folder)
    print(f"{spec.name} (simulated, no residual) beside {label}: {len(rows)} kernels")
    lines = _compare_kernels(rows)
    _print_lines("latency at the recorded clock; power at the recorded time", lines)
    rates = _compare_rates(rows)
    _print_lines("fastest recorded kernel of each operator, operations a second", rates)
    equals = _compare_equals(rows)
    _print_lines("energy of kernels of equal speed: rank by", equals)
    counters = _compare_counters(rows)
    _print_lines("events of the model over counters of Nsight Compute", counters)
    fitted = _fit_energies(spec, rows) if arguments.fit else []
    if fitted:
        _print_lines("energies that fit the fitted half, in pJ at 7 nm", fitted)
    return {
        "lines": lines,
        "rates": rates,
        "equals": equals,
        "counters": counters,
        "fit": fitted,
        "device": label,
    }


def _compare_kernels(rows: Sequence[OwnRow]) -> list[dict[str, Any]]:
    lines = []
    operators = {row.operator.digest: str(row.operator).splitlines()[0] for row in rows}
    for part, is_in in PARTS.items():
        chosen = [row for row in rows if is_in(row)]
        for digest, name in operators.items():
            mine = [row for row in chosen if row.operator.digest == digest]
            if len(mine) > 2:
                lines.append(
                    {"kernels": part, "operator": name, **_score_latency(mine), **_score_power(mine)}
                )
        lines.append({"kernels": part, "operator": "all", **_score_latency(chosen), **_score_power(chosen)})
        if part == "scored half":
            lines[-1]["pass"] = lines[-1]["power error"] < lines[-1]["median's error"]
    return lines


def _compare_rates(rows: Sequence[OwnRow]) -> list[dict[str, Any]]:
    """The simulated rate of the fastest kernel of each operator beside the recorded one."""
    fastest: dict[str, OwnRow] = {}
    for row in sorted(rows, key=lambda row: row.measured.latency_s):
        fastest.setdefault(row.operator.digest, row)
    return [
        {
            "operator": str(row.operator).splitlines()[0],
            "recorded, 1e12/s": row.operator.flops / row.measured.latency_s / 1e12,
            "simulated": row.operator.flops / row.simulated_s / 1e12,
            "ratio": row.measured.latency_s / row.simulated_s,
        }
        for row in fastest.values()
    ]


def _score_latency(rows: Sequence[OwnRow]) -> dict[str, Any]:
    real = np.array([row.measured.latency_s for row in rows])
    simulated = np.array([row.simulated_s for row in rows])
    fastest = {row.operator.digest: np.inf for row in rows}
    for row in rows:
        fastest[row.operator.digest] = min(fastest[row.operator.digest], row.measured.latency_s)
    near = np.array([row.measured.latency_s <= NEAR * fastest[row.operator.digest] for row in rows])
    facts: dict[str, Any] = {
        "n": len(rows),
        "error": compute_error(simulated, real),
        "near the top": compute_error(simulated[near], real[near]),
        "ratio there": float(np.median(simulated[near] / real[near])),
    }
    if len(fastest) == 1:
        prior = np.array([row.prior_s for row in rows])
        facts |= {
            "pick": float(real[np.argmin(simulated)] / real.min()),
            "rank": spearman(simulated, real),
            "prior's pick": float(real[np.argmin(prior)] / real.min()),
            "prior's rank": spearman(prior, real),
        }
    return facts


def _score_power(rows: Sequence[OwnRow]) -> dict[str, Any]:
    metered = [row for row in rows if row.measured.call_s is not None]
    if len(metered) < 3:
        return {}
    real = np.array([row.measured.power_w for row in metered])
    predicted = np.array([row.predict_power(row.measured.call_s or 1.0) for row in metered])
    medians = {
        digest: np.median([r.measured.power_w for r in metered if r.operator.digest == digest])
        for digest in {row.operator.digest for row in metered}
    }
    constant = np.array([medians[row.operator.digest] for row in metered])
    return {
        "metered": len(metered),
        "power error": compute_error(predicted, real),
        "power rank": spearman(predicted, real),
        "median's error": compute_error(constant, real),
    }


def _compare_equals(rows: Sequence[OwnRow]) -> list[dict[str, Any]]:
    equal = [row for row in rows if row.measured.is_equal]
    lines = []
    for digest in {row.operator.digest: None for row in equal}:
        mine = [row for row in equal if row.operator.digest == digest]
        call_s = np.array([row.measured.call_s for row in mine], dtype=np.float64)
        real = np.array([row.measured.power_w for row in mine]) * call_s
        at_recorded = np.array([row.predict_power(t) * t for row, t in zip(mine, call_s, strict=True)])
        simulated = np.array([row.predict_power(row.simulated_s) * row.simulated_s for row in mine])
        lines.append(
            {
                "operator": str(mine[0].operator).splitlines()[0],
                "n": len(mine),
                "most over least energy": float(real.max() / real.min()),
                "model, recorded time": spearman(at_recorded, real),
                "model, simulated time": spearman(simulated, real),
                "time alone": spearman(call_s, real),
                "pick of the model": float(real[np.argmin(at_recorded)] / real.min()),
                "pick of the time": float(real[np.argmin(call_s)] / real.min()),
            }
        )
    return lines


def _compare_counters(rows: Sequence[OwnRow]) -> list[dict[str, Any]]:
    lines = []
    for name, (count, counters) in COUNTED.items():
        pairs = []
        for row in rows:
            if row.measured.counters is None:
                continue
            real = sum(row.measured.counters.get(counter, 0.0) for counter in counters)
            if real > (LEAST_DRAM_BYTES if name == "DRAM bytes" else 0.0) and count(row) > 0:
                pairs.append(count(row) / real)
        if pairs:
            ratios = np.array(pairs)
            lines.append(
                {
                    "event": name,
                    "n": len(ratios),
                    "median ratio": float(np.median(ratios)),
                    "least": float(ratios.min()),
                    "most": float(ratios.max()),
                }
            )
    return lines


def _fit_energies(spec: GpuSpec, rows: Sequence[OwnRow]) -> list[dict[str, Any]]:
    """Least squares of relative errors of power; every energy within `power.BOUND_FACTOR` of its figure in
    the literature, the clock tree of busy SMs within the same factor of what is in use."""
    metered = [row for row in rows if row.measured.call_s is not None and row.measured.is_fitted]
    kinds = [*power.UNIT_ENERGIES, DRAM]
    weight = np.array([1.0 / row.measured.power_w for row in metered])
    watts = np.array(
        [
            [*(row.joules[kind] / (row.measured.call_s or 1.0) for kind in kinds), row.clock_w]
            for row in metered
        ]
    )
    rest = np.array([row.measured.power_w - row.idle_w for row in metered])
    low, high = np.array([_find_bounds(spec, kind) for kind in kinds] + [(0.5, 2.0)]).T
    ridge = RIDGE * np.eye(len(kinds) + 1)
    found = lsq_linear(
        np.vstack([watts * weight[:, None], ridge]),
        np.concatenate([rest * weight, np.diag(ridge)]),
        (low, high),
    ).x
    lines = []
    for number, kind in enumerate(kinds):
        used = _find_used_pj(spec, kind)
        lines.append({"energy": kind, "in use": used, "fit": used * found[number]})
        lines[-1] |= {"least": used * low[number], "most": used * high[number]}
    clock = spec.power.active_clock_w_per_ghz
    lines.append({"energy": "clock tree of busy SMs, W/GHz", "in use": clock, "fit": clock * found[-1]})
    return lines


def _find_used_pj(spec: GpuSpec, kind: str) -> float:
    if kind == DRAM:
        return spec.power.memory_pj_per_byte
    return power.UNIT_ENERGIES[kind].pj * spec.power.energy_factors.get(kind, 1.0)


def _find_bounds(spec: GpuSpec, kind: str) -> tuple[float, float]:
    """Least and most of the literature, relative to what is in use."""
    used = _find_used_pj(spec, kind)
    if kind == DRAM:
        published = spec.power.memory_published_pj_per_byte
        return published / power.BOUND_FACTOR / used, published * power.BOUND_FACTOR / used
    low, high = power.UNIT_ENERGIES[kind].bounds
    # Energies in use are rounded, so one may exceed its bound slightly.
    return min(low / used, 1.0), max(high / used, 1.0)


def _print_lines(title: str, lines: Sequence[dict[str, Any]]) -> None:
    if not lines:
        return
    names = [name for name in dict.fromkeys(key for line in lines for key in line) if name != "pass"]
    cells = [(*(_format_cell(n, line.get(n)) for n in names), format_verdict(line)) for line in lines]
    labels = sum(isinstance(lines[0].get(name), str) for name in names)
    print(format_table((*names, ""), cells, title, label_count=labels, width=WIDE_TABLE))


def _format_cell(name: str, value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, int):
        return str(value)
    return f"{value:.1%}" if "error" in name or name == "near the top" else f"{value:.3g}"


OPTIONS = {
    "--folder": {"type": Path, "default": FOLDER, "help": "folder of benchmarks.gpu; default: an H100"},
    "--fit": {"action": "store_true", "help": "fit the energies of events on the fitted half"},
}
main = make_main(__doc__, measure, {"scored half": "power error below that of the median"}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
