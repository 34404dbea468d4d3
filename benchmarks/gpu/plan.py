"""Which schedules are tried: chosen beforehand on the simulated model of a GPU, or, without a plan, by the
prior alone on the spot. Minutes on a GPU are not for searching what a simulation can rule out."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from benchmarks.gpu.folder import PLAN
from benchmarks.gpu.items import Item, list_small_items, list_versus_items
from benchmarks.gpu.kit import Budget, Kit, NotRun
from benchmarks.gpu.sampling import Sampler
from ekc.errors import EkcError, RecordError
from ekc.ir.schedule.schedule import Schedule
from ekc.search.run import tune
from ekc.tables import format_table

MINUTES = 60.0
TRIALS, DRY_TRIALS = 96, 4
KEPT = 12
POPULATION = 2048
VERSION = 1


def run(kit: Kit, budget: Budget) -> None:
    """Tune every item of `versus` on the device, which should be a simulated one; keep the fastest."""
    if importlib.util.find_spec("xgboost") is None:
        raise NotRun("xgboost is not installed")
    items = list_small_items() if kit.dry else list_versus_items()
    file = kit.folder.path / PLAN
    known = read_plan(file)
    for item in budget.take_affordable(one for one in items if one.name not in known):
        try:
            known[item.name] = _choose_fastest(kit, item)
            kit.folder.add_row("prepare", item.name, "ok", kept=len(known[item.name]))
        except EkcError as problem:
            kit.folder.add_row("prepare", item.name, str(problem))
        text = {"version": VERSION, "chosen_on": kit.device.label, "schedules": known}
        aside = file.with_name(f".{file.name}")
        aside.write_text(json.dumps(text))
        aside.replace(file)


def _choose_fastest(kit: Kit, item: Item) -> list[str]:
    trials = DRY_TRIALS if kit.dry else TRIALS
    result = tune(
        item.op, target=kit.target, objective="latency", trials=trials, seed=kit.seed, progress=False
    )
    timed = [t for t in result.trials if t.ok and t.latency_s]
    ranked = sorted(timed, key=lambda t: (t.latency_s or 0.0, t.schedule.digest))
    return [trial.schedule.to_json() for trial in ranked[:KEPT]]


def read_plan(file: Path) -> dict[str, list[str]]:
    """Schedules by item; none where there is no file. Raises `RecordError` for another version."""
    if not file.exists():
        return {}
    try:
        data = json.loads(file.read_text())
        if data["version"] != VERSION:
            raise RecordError(f"{file} is of version {data['version']}, this reads {VERSION}: prepare again")
        return dict(data["schedules"])
    except (ValueError, KeyError, TypeError) as problem:
        raise RecordError(f"{file} is no plan ({problem}); remove it or prepare again") from None


def list_schedules(kit: Kit, item: Item, count: int) -> list[Schedule]:
    """Schedules of an item to try, most promising first."""
    planned = read_plan(kit.folder.path / PLAN).get(item.name)
    if planned:
        return [Schedule.from_json(text) for text in planned[:count]]
    size = 256 if kit.dry else POPULATION
    sampler = Sampler(item.op, kit.device.limits, kit.device.prior, kit.seed, size)
    return [schedule for schedule, _ in sampler.choose_best(count)]


def make_table(kit: Kit) -> str:
    """The table of chosen schedules."""
    rows = [(r["item"], str(r.get("kept", r["status"]))) for r in kit.folder.list_rows("prepare")]
    title = f"prepare: schedules chosen on {kit.label}"
    return format_table(("item", "schedules kept"), rows, title)
