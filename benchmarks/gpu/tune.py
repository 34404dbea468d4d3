"""Operators tuned for latency and for energy: the two winners measured in turn, and their difference."""

from __future__ import annotations

import importlib.util
from typing import Any

from benchmarks.gpu.budget import Budget
from benchmarks.gpu.contenders import Ours, compute_ratio, format_median, measure_in_turn
from benchmarks.gpu.folder import TUNING
from benchmarks.gpu.items import Item, list_small_items, list_tuned_items
from benchmarks.gpu.kit import Kit
from ekc.errors import EkcError
from ekc.search.data.defaults import FINALS, MEASURING
from ekc.search.data.result import INTERRUPTED
from ekc.search.data.trial import Trial
from ekc.search.tune import tune
from ekc.tables import format_table

MINUTES = 9.0
TRIALS, DRY_TRIALS = 128, 4
TURNS, WINDOWS, WINDOW_S = 5, 3, 3.0
WINNERS_S = 2 * (TURNS * 0.2 + WINDOWS * (WINDOW_S + 2.0))
"""Kept of an item's time for the winners, measured in turn: a window costs two seconds beside its own."""
CHECK_S = 3.0
"""CPU seconds to execute the kernel of one finalist: 2.3 to 2.9 s were measured for MM 2048^3."""
CHECKS_S = (2 * FINALS.finalist_count + FINALS.fastest_count) * CHECK_S
"""CPU seconds for the finalists of both searches: for latency the fastest, for energy others as well."""
FINALISTS = FINALS.finalist_count + FINALS.fastest_count
FINALS_S = (1 + FINALISTS) * (MEASURING.final_window_s + 2.0) + CHECKS_S
"""And for what searches do whether they are late or not: where one for energy began and its finalists are
metered, and finalists are checked."""
LEAST_S, GOOD_S = 20.0, 30.0
"""For a search: less tells nothing, and so much is better than another operator."""
OBJECTIVES = ("latency", "energy")


def run(kit: Kit, budget: Budget) -> None:
    """A row for each operator."""
    if importlib.util.find_spec("xgboost") is None:
        kit.folder.add_note("tune", "not run", "xgboost is not installed")
        return
    items = list(list_small_items()) if kit.dry else list(list_tuned_items())
    todo = [item for item in items if kit.folder.find_row("tune", item.name) is None]
    kept = WINNERS_S + FINALS_S
    # A dry run tunes next to nothing.
    good, least = (1.0, 1.0) if kit.dry else (kept + len(OBJECTIVES) * s for s in (GOOD_S, LEAST_S))
    for item, share in budget.share_time(todo, good, least):
        try:
            _tune(kit, item, max((share - kept) / len(OBJECTIVES), LEAST_S))
        except EkcError as problem:
            kit.folder.add_row("tune", item.name, str(problem))


def _tune(kit: Kit, item: Item, seconds: float) -> None:
    winners: dict[str, Trial] = {}
    searched: dict[str, Any] = {}
    for objective in OBJECTIVES:
        result = tune(
            item.op,
            target=kit.target,
            objective=objective,
            trials=DRY_TRIALS if kit.dry else TRIALS,
            seed=kit.seed,
            records=kit.folder.path / TUNING,
            time_budget_s=seconds,
            progress=False,
        )
        if result.stopped == INTERRUPTED:
            # It ends with what it has; so shall all that comes after it.
            raise KeyboardInterrupt
        winners[objective] = result.best
        searched[objective] = {
            "digest": result.best.schedule.digest,
            "schedule": result.best.schedule.to_json(),
            "checked": result.best.checked,
            "trials": result.trial_count,
            "metered": result.metered_count,
            "seconds": result.seconds,
            "stopped": result.stopped,
        }
    figures = measure_in_turn(
        [Ours(name, kit.device, kit.compile_kernel(trial.schedule)) for name, trial in winners.items()],
        *(TURNS, WINDOWS, WINDOW_S),
    )
    kit.folder.add_row("tune", item.name, "ok", searched=searched, figures=figures)


def make_table(kit: Kit) -> str:
    """One line for each operator."""
    rows, notes = [], []
    for row in kit.folder.list_rows("tune"):
        if "figures" not in row:
            notes.append(f"  {row['item']}: {row['status']}")
            continue
        fast, lean = (row["figures"][name] for name in OBJECTIVES)
        same = row["searched"]["latency"]["digest"] == row["searched"]["energy"]["digest"]
        rows.append(
            (
                row["item"],
                format_median(fast["latency_s"], 1e6),
                format_median(lean["latency_s"], 1e6),
                format_median(fast["energy_j"], 1e3),
                format_median(lean["energy_j"], 1e3),
                "same kernel" if same else _format_saving(fast["energy_j"], lean["energy_j"]),
            )
        )
        notes += [f"  {row['item']}, {n}: {x['problem']}" for n, x in row["figures"].items() if x["problem"]]
    heads = ("operator", "latency: us", "energy: us", "latency: mJ", "energy: mJ", "energy saved")
    title = f"tune: on {kit.label}; winner of the latency objective beside that of the energy objective"
    return "\n".join([format_table(heads, rows, title), *notes])


def _format_saving(fast: list[list[float]], lean: list[list[float]]) -> str:
    difference = compute_ratio(fast, lean)
    if difference is None:
        return "-"
    return f"{1 - difference.ratio:.1%}{'' if difference.is_significant else ' ~ does not count'}"
