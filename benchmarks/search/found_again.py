"""Does the search find steps again that no rule gives? Three techniques, each taken from the seeds.

    python -m benchmarks.search.found_again [--json FILE] [--folder DIR] [--seeds FIRST:END] [--trials N]
        [--only TEXT] [--target NAME]

split-K: structures of the rule for it are left out. pipelines: every `pipeline` step is removed, and the
structures of asynchronous copies are left out. lanes: structures that spread a sum over lanes are left out.
Each on an operator that needs it, objective latency, on a simulated device. *found*: the best schedule of the
run has the steps. *fixed*: latency of the same seeds without evolution, over that with it. *rules*: latency
with all rules and no evolution over that of the search that found them again; 1 is as good.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ekc
from benchmarks.common.run_log import Line, RunLog, name_file
from benchmarks.common.script import ONLY, Arguments, Column, format_lines, make_main, select_names
from benchmarks.search.ablation import parse_seeds
from benchmarks.search.runs import AblationMeasurer, digest_code
from ekc import devices
from ekc.ir.schedule import Pipeline, RFactor
from ekc.ir.schedule.schedule import Schedule
from ekc.search.data.options import TuneOptions
from ekc.search.database.database import RecordStore
from ekc.search.run import TuningRun
from ekc.search.sketches.builder import Structure
from ekc.search.sketches.rules import COPY, SPLIT_K, SPREAD
from ekc.search.space.evolving_space import EvolvingSpace
from ekc.search.space.space import Space

KEYS = ("technique", "space", "seed", "trials", "target", "code")
SPACES = ("evolved", "fixed", "rules")


@dataclass(frozen=True)
class Technique:
    """Steps that are taken from the seeds."""

    op: Callable[[], ekc.Operator]
    remove: Callable[[Structure], Structure | None]
    is_used: Callable[[Schedule], bool]


def _remove_pipelines(structure: Structure) -> Structure | None:
    if COPY in structure.rules:
        return None
    steps = tuple(step for step in structure.steps if not isinstance(step, Pipeline))
    holes = {hole.name for step in steps for _, hole in step.list_holes()}
    kept = tuple(d for d in structure.decisions if not holes.isdisjoint(d.holes))
    return replace(structure, steps=steps, decisions=kept)


def _has_pipeline(schedule: Schedule) -> bool:
    return any(isinstance(step, Pipeline) and step.stages > 1 for step in schedule.steps)


def _has_lanes(schedule: Schedule) -> bool:
    """In the launch with most arithmetic: the sum of parts of another one is spread by repair."""
    largest = max(schedule.program.nests, key=lambda nest: nest.compute.flops)
    return any(x.is_thread and x.is_reduction for x in largest.loops)


TECHNIQUES = {
    "split-K": Technique(
        lambda: ekc.matmul(64, 64, 65536),
        lambda s: None if SPLIT_K in s.rules else s,
        lambda schedule: any(isinstance(step, RFactor) for step in schedule.steps),
    ),
    "pipelines": Technique(
        lambda: ekc.matmul(1024, 1024, 1024, dtype="float16"), _remove_pipelines, _has_pipeline
    ),
    "lanes": Technique(
        lambda: ekc.matvec(4096, 4096), lambda s: None if SPREAD in s.rules else s, _has_lanes
    ),
}


def run_once(
    technique: Technique, space: str, target: str, store: RecordStore, trials: int, seed: int
) -> dict[str, Any]:
    """One run, and whether its best schedule has the steps."""
    op, device = technique.op(), devices.open(target)
    rules = Space(op, device.limits).structures
    kept = rules if space == "rules" else tuple(filter(None, map(technique.remove, rules)))
    kind = EvolvingSpace if space == "evolved" else Space
    measurer = AblationMeasurer(device, store)
    with ThreadPoolExecutor(1) as workers:
        options = TuneOptions(trials, "latency", 0.05, False, seed, None)
        result = TuningRun(kind(op, device.limits, kept), measurer, workers, options).run(())
    used = [n for n, t in enumerate(result.trials, 1) if t.latency_s and technique.is_used(t.schedule)]
    return {
        "latency_s": result.best.latency_s,
        "found": technique.is_used(result.best.schedule),
        "first_trial": min(used, default=None),
        "structure": result.best.structure,
    }


def summarize(name: str, lines: list[Line]) -> Line:
    """The row of a technique."""
    own = {s: {x["seed"]: x for x in lines if x["space"] == s and x["technique"] == name} for s in SPACES}

    def compare(space: str) -> float | None:
        both = own[space].keys() & own["evolved"].keys()
        pairs = [own[space][seed]["latency_s"] / own["evolved"][seed]["latency_s"] for seed in both]
        return float(np.median(pairs)) if pairs else None

    evolved = own["evolved"].values()
    firsts = [x["first_trial"] for x in evolved if x["first_trial"] is not None]
    found = sum(x["found"] for x in evolved)
    return {
        "technique": name,
        "seeds": len(evolved),
        "found": found,
        "first_trial": float(np.median(firsts)) if firsts else None,
        "fixed": compare("fixed"),
        "rules": compare("rules"),
        "pass": bool(evolved) and found == len(evolved),
    }


COLUMNS = (
    Column("technique", "technique"),
    Column("seeds", "seeds"),
    Column("found", "found"),
    Column("first in trial", "first_trial", ".0f"),
    Column("fixed", "fixed", ".3f"),
    Column("rules", "rules", ".3f"),
)
OPTIONS = {
    "--folder": {"type": Path, "default": Path("build/found_again"), "help": "of the finished runs"},
    "--seeds": {"type": parse_seeds, "default": (0, 5), "metavar": "[FIRST:]END"},
    "--trials": {"type": int, "default": 256},
    "--spaces": {"default": " ".join(SPACES), "help": f"some of: {' '.join(SPACES)}"},
    "--target": {"default": "a100"},
    "--only": ONLY,
}


def measure(arguments: Arguments) -> dict[str, Any]:
    """Run what is missing and print the table."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    lines: list[Line] = []
    for name in select_names(TECHNIQUES, arguments.only):
        log = RunLog(name_file(arguments.folder, name, "jsonl"), KEYS)
        with RecordStore(log.path.with_suffix(".db")) as store:
            for seed in range(*arguments.seeds):
                for space in arguments.spaces.split():
                    asked = {"technique": name, "space": space, "seed": seed, "trials": arguments.trials}
                    asked |= {"target": arguments.target, "code": digest_code()}
                    make = partial(
                        run_once, TECHNIQUES[name], space, arguments.target, store, arguments.trials, seed
                    )
                    lines.append(log.find_or_make(asked, make, str))
    rows = [summarize(name, lines) for name in select_names(TECHNIQUES, arguments.only)]
    print(f"{arguments.trials} trials, simulated {arguments.target}, objective latency")
    print(format_lines(COLUMNS, rows))
    return {"lines": rows}


main = make_main(__doc__, measure, {"found": "in every seed"}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
