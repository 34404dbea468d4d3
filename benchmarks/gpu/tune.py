"""Does a search for joules pay? Operators tuned for latency and for energy with the same seconds and seeds.

The winners of both searches are measured in rotation on a hot board. A search has a record file and a
compile cache of its own, so that it gains nothing from the other one, and odd seeds search for energy first.
A search that was killed goes on with what is in its file. The first nine minutes hold the float32 product
with both seeds.
"""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from benchmarks.common.script import use_compile_cache
from benchmarks.gpu.contenders import SLICE_PRICE_S, SLICE_S, Figure, Ours, Slice, compare_slices, rotate
from benchmarks.gpu.folder import TUNING, Row
from benchmarks.gpu.items import Item, list_recorded_items, list_small_items
from benchmarks.gpu.kit import Budget, Kit, NotRun
from ekc.devices.statistics import Difference, Interval, MeasuredValue, compare_pairwise
from ekc.errors import EkcError, InvalidInput
from ekc.ir.schedule.schedule import Schedule
from ekc.search.data.defaults import FINALS, MEASURING
from ekc.search.data.events import TuningEvent
from ekc.search.data.result import INTERRUPTED
from ekc.search.database.database import RecordStore
from ekc.search.database.merge import merge_records
from ekc.search.run import tune
from ekc.tables import format_table

MINUTES = 9.0
TRIALS, DRY_TRIALS = 512, 4
"""Trials of a search, at most: more than there is time for."""
SEEDS = (0, 1)
SEARCH_S, LEAST_S = 60.0, 20.0
"""Seconds of a search before its finals; less than the second number tells nothing."""
ROUNDS, DRY_ROUNDS = 12, 3
"""Slices of each winner, in rotation."""
METERING_S = 2.2
"""Seconds of a metering beside its window, on an H100."""
WINNERS_S = 2 * (1 + ROUNDS) * SLICE_PRICE_S
"""Seconds to measure two winners in rotation, with the round that warms up."""
CHECK_S = 3.0
"""CPU seconds to execute the kernel of one finalist: 2.3 to 2.9 s were measured for MM 2048^3."""
FINALISTS = FINALS.finalist_count + FINALS.fastest_count
FINALS_S = {
    "latency": FINALS.finalist_count * CHECK_S,
    "energy": FINALISTS * (CHECK_S + MEASURING.final_window_s + METERING_S)
    + 2 * (MEASURING.label_window_s + METERING_S),
}
"""Seconds that a search takes after its time is up, by objective: it checks its finalists, and one for energy
meters what it had just timed, then each finalist."""
OBJECTIVES = ("latency", "energy")


@dataclass(frozen=True)
class Pair:
    """An operator and a seed: one search for each objective."""

    item: Item
    seed: int

    @property
    def name(self) -> str:
        """The name of its row."""
        return f"{self.item.name}, seed {self.seed}"

    def name_search(self, objective: str) -> str:
        """The name of the row of one search."""
        return f"{self.name}, {objective}"


def run(kit: Kit, budget: Budget) -> None:
    """A row for each search, then one for each pair of winners."""
    if importlib.util.find_spec("xgboost") is None:
        raise NotRun("xgboost is not installed")
    items = list_small_items() if kit.dry else list_recorded_items()
    seeds = [kit.seed + n for n in (SEEDS[:1] if kit.dry else SEEDS)]
    todo = [Pair(item, seed) for item in items for seed in seeds]
    todo = [pair for pair in todo if kit.folder.find_row("tune", pair.name) is None]
    estimate = (lambda pair: 0.0) if kit.dry else partial(_estimate_seconds, kit)
    for pair in budget.take_affordable(todo, estimate):
        try:
            _compare_objectives(kit, pair, budget)
        except EkcError as problem:
            kit.folder.add_row("tune", pair.name, str(problem))


def _estimate_seconds(kit: Kit, pair: Pair) -> float:
    """Seconds of the searches of a pair that are missing, and of the comparison."""
    missing = [x for x in OBJECTIVES if kit.folder.find_row("tune", pair.name_search(x)) is None]
    return WINNERS_S + sum(LEAST_S + FINALS_S[objective] for objective in missing)


def _compare_objectives(kit: Kit, pair: Pair, budget: Budget) -> None:
    for objective in OBJECTIVES[:: -1 if pair.seed % 2 else 1]:
        if kit.folder.find_row("tune", pair.name_search(objective)) is None:
            left = budget.compute_left_s() - _estimate_seconds(kit, pair) + LEAST_S
            _search(kit, pair, objective, 1.0 if kit.dry else min(max(left, LEAST_S), SEARCH_S))
        _keep_records(kit, pair, objective)
    rows = {x: kit.folder.find_row("tune", pair.name_search(x)) for x in OBJECTIVES}
    searched = {name: row for name, row in rows.items() if row is not None}
    winners = [
        Ours(name, kit.device, kit.compile_kernel(Schedule.from_json(row["schedule"])))
        for name, row in searched.items()
    ]
    taken = rotate(winners, DRY_ROUNDS if kit.dry else ROUNDS, SLICE_S, pair.seed)
    slices = {name: [one.to_json() for one in some] for name, some in taken.items()}
    kit.folder.add_row("tune", pair.name, "ok", operator=pair.item.name, seed=pair.seed, slices=slices)


def _search(kit: Kit, pair: Pair, objective: str, seconds: float) -> None:
    """Search once; a row. What was measured before a kill counts as measured, and its seconds as used."""
    records = _find_records(kit, pair, objective)
    used_s = _measure_used_seconds(records)
    deadline = kit.now() + max(seconds - used_s, min(seconds, LEAST_S))

    def is_late(event: TuningEvent) -> bool:
        return kit.now() > deadline

    # The compile cache is empty at first: the kernels of another search cost as much as new ones.
    with use_compile_cache():
        result = tune(
            pair.item.op,
            target=kit.target,
            objective=objective,
            trials=DRY_TRIALS if kit.dry else TRIALS,
            seed=pair.seed,
            records=records,
            progress=False,
            callback=None if kit.dry else is_late,
        )
    if result.stopped == INTERRUPTED:
        # It ends with what it has; so shall all that comes after it. The next call goes on with its file.
        raise KeyboardInterrupt
    kit.folder.add_row(
        "tune",
        pair.name_search(objective),
        "ok",
        digest=result.best.schedule.digest,
        schedule=result.best.schedule.to_json(),
        checked=result.best.checked,
        trials=result.trial_count,
        metered=result.metered_count,
        seconds=result.seconds,
        used_s=used_s,
        stopped=result.stopped,
    )


def _find_records(kit: Kit, pair: Pair, objective: str) -> Path:
    """The record file of a search, which goes into the file of all searches when it has ended."""
    return kit.folder.path / f"search-{pair.item.op.digest[:8]}-{pair.seed}-{objective}.sqlite"


def _measure_used_seconds(records: Path) -> float:
    """Seconds from the first to the last row of a search that was killed."""
    if not records.exists():
        return 0.0
    with RecordStore(records) as store:
        at = [datetime.fromisoformat(row.created) for row in store.read_rows()]
    return (at[-1] - at[0]).total_seconds() if at else 0.0


def _keep_records(kit: Kit, pair: Pair, objective: str) -> None:
    """Move the rows of a search that has ended into the file of all searches; after a kill, once more."""
    records = _find_records(kit, pair, objective)
    if records.exists():
        merge_records([records], kit.folder.path / TUNING)
        for file in records.parent.glob(f"{records.name}*"):
            file.unlink()


def make_table(kit: Kit) -> str:
    """One line for each pair, and a verdict for each operator and for all."""
    rows = kit.folder.list_rows("tune")
    searches = {row["item"]: row for row in rows if "schedule" in row}
    pairs = [row for row in rows if "slices" in row]
    notes = [f"  {row['item']}: {row['status']}" for row in rows if row["status"] != "ok"]
    heads = (
        "operator",
        "seed",
        "latency: us",
        "energy: us",
        "latency: mJ",
        "energy: mJ",
        "trials",
        "metered",
    )
    title = f"tune: on {kit.label}; winner of the latency objective beside that of the energy objective"
    lines = [_format_pair(row, searches) for row in pairs]
    return "\n".join([format_table(heads, lines, title), *_format_verdicts(pairs), *notes])


def _format_pair(row: Row, searches: dict[str, Row]) -> tuple[str, ...]:
    fast, lean = (_read_slices(row, name) for name in OBJECTIVES)
    found = [searches[f"{row['item']}, {name}"] for name in OBJECTIVES]
    return (
        row["operator"],
        str(row["seed"]),
        *(f"{1e6 * statistics.median(one.latency_s for one in some):.4g}" for some in (fast, lean)),
        *(f"{1e3 * statistics.median(one.energy_j for one in some):.4g}" for some in (fast, lean)),
        " / ".join(str(one["trials"]) for one in found),
        str(found[1]["metered"]),
    )


def _format_verdicts(pairs: Sequence[Row]) -> list[str]:
    operators = list(dict.fromkeys(row["operator"] for row in pairs))
    groups = {name: [row for row in pairs if row["operator"] == name] for name in operators}
    if len(operators) > 1:
        groups["all operators"] = list(pairs)
    verdicts = ((name, judge_pairs(rows)) for name, rows in groups.items())
    return [f"  {name}: {text}" for name, text in verdicts]


def judge_pairs(pairs: Sequence[Row]) -> str:
    """Saving of the search for energy against that for latency, with an interval over the pairs."""
    try:
        energy, latency = compare_objectives(pairs, "energy_j"), compare_objectives(pairs, "latency_s")
    except InvalidInput as problem:
        return f"no verdict: {problem}"
    count = f"{len(pairs)} pair{'s' * (len(pairs) > 1)}"
    found = f"energy {energy}, sustained latency {latency}, {count}"
    if len(pairs) < 2:
        return f"{found}: no verdict, one seed shows nothing of how searches scatter"
    if not energy.is_significant:
        least = (energy.interval.high / energy.interval.low) ** 0.5 - 1
        return f"{found}: no difference found; one of {least:.1%} or more would have been"
    return f"{found}: the search for energy {'saves' if energy.ratio < 1 else 'wastes'} joules"


def compare_objectives(pairs: Sequence[Row], figure: Figure) -> Difference:
    """A figure of the winner for energy over that of the winner for latency, one ratio for each pair, with a
    95 % interval; of a single pair, that of its rounds. Raises `InvalidInput` where a figure is missing."""
    ratios = [
        compare_slices(*(_read_slices(row, name) for name in OBJECTIVES[::-1]), figure) for row in pairs
    ]
    if len(ratios) == 1:
        return ratios[0]
    values = [MeasuredValue(one.ratio, one.interval) for one in ratios]
    return compare_pairwise(values, [MeasuredValue(1.0, Interval(1.0, 1.0))] * len(values))


def _read_slices(row: Row, objective: str) -> list[Slice]:
    return [Slice.from_json(one) for one in row["slices"][objective]]
