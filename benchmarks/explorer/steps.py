"""The explorer: seconds until its list and its figures appear, and how well the estimates rank next steps.

    python -m benchmarks.explorer.steps [--json FILE] [--only TEXT] [--target NAME] [--schedules N]
        [--steps N]

Half of the drawn schedules are random walks of up to five steps of the menu from the naive schedule, the
others are the first steps, all bindings included, of schedules drawn from the space of the search. For each,
the list is made as for the page, by as many worker processes as cores, with an empty compile cache. Some of
the next steps, each of another family of the menu, are compiled. `rank` is the median over schedules of
Spearman's correlation of estimated and compiled figures. Many steps change next to nothing; their order is
that of the seeded residual, which no estimate knows (`--target a100@no-residual` has none).
`pick` is the compiled figure of the step with the least estimate over that of the best step. `error` is the
median absolute relative error of the estimates; `scaled` that of estimates times compiled over estimated
figure of the present schedule, which is what the page shows. Bar: rank and median pick by energy. Seconds
depend on the machine and its load, and have no bar; the aim is 0.3 s for the list and 1 s for the figures.
`list` has its estimates. `CPU` is what the list takes on one core: the rules, then rules and estimates.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ekc
from benchmarks.common.ranking import spearman
from benchmarks.common.script import (
    Arguments,
    Column,
    format_lines,
    make_main,
    select_names,
    use_compile_cache,
)
from ekc import devices
from ekc.errors import EkcError
from ekc.explorer.figures import StepFigures, run_figures_job
from ekc.explorer.session import Explorer
from ekc.explorer.steps import estimate_families, list_legal_families, list_steps
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule.menu import list_families
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.space.space import Space

BAR = {"rank": 0.5, "pick": 1.05}
"""Median Spearman correlation of energies, at least; median pick by energy, at most."""
MAX_WALK = 5
OPERATORS: dict[str, Callable[[], ekc.Operator]] = {
    "matmul 512x512x512": lambda: ekc.matmul(512, 512, 512),
    "conv2d 1x64x56x56 3x3 -> 64": lambda: ekc.conv2d(1, 64, 56, 56, out_channels=64, kernel=3, padding=1),
}


def draw_schedule(op: ekc.Operator, space: Space, random: np.random.Generator, number: int) -> ekc.Schedule:
    """A legal schedule: a walk in the menu, or the first steps of a schedule of the search."""
    if number % 2 == 0:
        schedule = make_naive_schedule(op)
        for _ in range(random.integers(0, MAX_WALK + 1)):
            legal = list_legal_families(schedule, space.limits)
            entries = {x.number: x.rows.tolist() for x in legal}
            steps = list_steps(list(list_families(schedule.program)), entries)
            kinds = sorted({step.kind for step in steps})
            kind = kinds[random.integers(len(kinds))]
            own = [step for step in steps if step.kind == kind]
            schedule = schedule.apply_steps(*own[random.integers(len(own))].steps)
        return schedule
    while True:
        drawn, _ = space.repair(random, space.sample(random, 8))
        steps = space.build_schedule(drawn, 0).steps
        bound = max(number for number, step in enumerate(steps, 1) if step.kind == "bind")
        schedule = ekc.Schedule(op).apply_steps(*steps[: random.integers(bound, len(steps) + 1)])
        try:
            enforce_rules(schedule.program, space.limits)
        except EkcError:
            continue
        return schedule


async def measure_schedule(
    explorer: Explorer, schedule: ekc.Schedule, count: int, random: np.random.Generator
) -> dict[str, Any]:
    """Seconds of the list and figures of a schedule, and figures of some of its next steps."""
    explorer.move_to(schedule, "drawn")
    await explorer.wait()
    rows = {row.family: row for row in random.permutation(np.array(explorer.rows, dtype=object))}
    chosen = list(rows.values())[:count]
    next_schedules = [schedule.apply_steps(*row.choice.steps) for row in chosen]
    loop, executor = asyncio.get_running_loop(), explorer._executor
    jobs = [
        loop.run_in_executor(executor, run_figures_job, s.to_json(), explorer.target) for s in next_schedules
    ]
    compiled: list[StepFigures] = await asyncio.gather(*jobs)
    pairs = [(row, one) for row, one in zip(chosen, compiled, strict=True) if not one.failure]
    now = explorer.figures[schedule.digest]
    result: dict[str, Any] = {"count": len(explorer.rows), "seconds": dict(explorer.seconds)}
    result["cpu"] = _measure_cpu(schedule, explorer)
    for name in ("latency_s", "energy_j"):
        estimated = np.array([getattr(row, name) for row, _ in pairs])
        truth = np.array([getattr(one, name) for _, one in pairs])
        result[name] = _compare(estimated, truth, getattr(now, name), getattr(now, f"estimated_{name}"))
    return result


def _measure_cpu(schedule: ekc.Schedule, explorer: Explorer) -> dict[str, float]:
    """Seconds of one core for the rules, and for the list with its estimates, without the workers."""
    begin = time.process_time()
    families = list_legal_families(schedule, explorer.device.limits)
    checked = time.process_time()
    estimate_families(families, explorer.device)
    return {"rules_cpu": checked - begin, "list_cpu": time.process_time() - begin}


def _compare(
    estimated: np.ndarray, truth: np.ndarray, now: float | None, estimated_now: float | None
) -> dict[str, Any]:
    if len(truth) < 2:
        return {}
    scale = now / estimated_now if now and estimated_now else 1.0
    return {
        "rank": spearman(estimated, truth),
        "pick": float(truth[np.argmin(estimated)] / truth.min()),
        "error": np.abs(estimated / truth - 1).tolist(),
        "scaled": np.abs(scale * estimated / truth - 1).tolist(),
    }


async def measure_operator(name: str, arguments: Arguments) -> dict[str, Any]:
    """All drawn schedules of an operator."""
    op, random = OPERATORS[name](), np.random.default_rng(arguments.seed)
    space = Space(op, devices.open(arguments.target).limits)
    explorer, found = Explorer(make_naive_schedule(op), arguments.target), []
    try:
        explorer.start()
        await explorer.wait()
        for number in range(arguments.schedules):
            schedule = draw_schedule(op, space, random, number)
            found.append(await measure_schedule(explorer, schedule, arguments.steps, random))
    finally:
        explorer.close()
    return _summarise(name, found)


def _summarise(name: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    line: dict[str, Any] = {"operator": name, "schedules": len(found)}
    line["next_steps"] = float(np.median([one["count"] for one in found]))
    seconds = {stage: [one["seconds"][stage] for one in found] for stage in ("list", "figures")}
    seconds |= {stage: [one["cpu"][stage] for one in found] for stage in ("rules_cpu", "list_cpu")}
    for stage, values in seconds.items():
        line[f"{stage}_s"] = [float(np.percentile(values, p)) for p in (50, 95)]
    for key in ("latency_s", "energy_j"):
        each = [one[key] for one in found if one[key]]
        line[f"{key}_rank"] = float(np.median([e["rank"] for e in each if e["rank"] is not None]))
        line[f"{key}_pick"] = [float(np.percentile([e["pick"] for e in each], p)) for p in (50, 95)]
        for error in ("error", "scaled"):
            line[f"{key}_{error}"] = float(np.median([x for e in each for x in e[error]]))
    line["pass"] = line["energy_j_rank"] >= BAR["rank"] and line["energy_j_pick"][0] <= BAR["pick"]
    return line


def _format_pair(pair: tuple[float, float]) -> str:
    return " / ".join(f"{x:.2f}" for x in pair)


COLUMNS = (
    Column("operator", "operator"),
    Column("schedules", "schedules"),
    Column("next steps", "next_steps", ".0f"),
    Column("list [s]", "list_s", _format_pair),
    Column("figures [s]", "figures_s", _format_pair),
    Column("CPU [s]", "rules_cpu_s", _format_pair),
    Column("with estimates [s]", "list_cpu_s", _format_pair),
    Column("rank time", "latency_s_rank", ".2f"),
    Column("joules", "energy_j_rank", ".2f"),
    Column("pick time", "latency_s_pick", _format_pair),
    Column("joules", "energy_j_pick", _format_pair),
    Column("error time", "latency_s_error", ".0%"),
    Column("joules", "energy_j_error", ".0%"),
    Column("scaled time", "latency_s_scaled", ".0%"),
    Column("joules", "energy_j_scaled", ".0%"),
    Column("", "pass"),
)


def measure(arguments: Arguments) -> dict[str, Any]:
    """Measure, and print the table."""
    with use_compile_cache():
        names = select_names(OPERATORS, arguments.only)
        lines = [asyncio.run(measure_operator(name, arguments)) for name in names]
    label, what = devices.open(arguments.target).label, "seconds and picks: median / 95th percentile"
    title = f"Next steps on {label}; {what}; CPU: of one core, for the rules"
    print(format_lines(COLUMNS, lines, title))
    return {"lines": lines, "target": arguments.target, "load": os.getloadavg()}


OPTIONS = {
    "--only": {"default": "", "metavar": "TEXT", "help": "operators whose name contains this"},
    "--target": {"default": "a100", "help": "default %(default)s"},
    "--schedules": {"type": int, "default": 25, "help": "drawn for each operator, default %(default)s"},
    "--steps": {"type": int, "default": 10, "help": "next steps compiled, default %(default)s"},
}
main = make_main(__doc__, measure, BAR, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
