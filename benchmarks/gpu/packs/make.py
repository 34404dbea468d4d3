"""Making a pack: the schedules that the rule draws, compiled in a process per core, with their predictions.

Where predictions of the same conditions are on file, their schedules are compiled, and nothing is drawn. The
searches of the rule find other schedules on another machine: they follow the last digits of floats, which
depend on the processor, and machine code, of which NVRTC gives one of several for some texts. A kernel is
compiled until it has the machine code on file, at most `MOST_COMPILES` times.

All that is done goes at once into a work file (SQLite) beside the pack, so that a run that was killed goes on
where it stopped. The work file belongs to one device, rule, seed and compiler.
"""

from __future__ import annotations

import json
import pickle
import sqlite3
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.items import Item
from benchmarks.gpu.packs import rule
from benchmarks.gpu.packs.file import (
    PackedKernel,
    PackHead,
    compute_code_digest,
    pack_kernel,
    read_steps,
    write_pack,
)
from benchmarks.gpu.packs.predictions import (
    OperatorPredictions,
    Prediction,
    Predictions,
    collect_predictions,
    open_models,
    predict,
)
from benchmarks.gpu.packs.rule import Drawn
from ekc.codegen import generate, nvrtc
from ekc.codegen.compiled import CompiledKernel, digest_kernel
from ekc.codegen.generate import compile_schedule
from ekc.devices.simulated.device import SimulatedDevice
from ekc.devices.simulated.launch_counts import collect_facts
from ekc.errors import EkcError, RecordError
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.processes.pool import WorkerProcesses, count_cores
from ekc.version import __version__

JOB_LIMIT_S = 7200.0
"""Seconds after which a job is given up; a search takes some minutes of a core."""
MOST_COMPILES = 60
"""Compiles of a text in search of the machine code on file."""
SHOWN_EVERY = 50
"""Kernels between two lines of progress."""


@dataclass(frozen=True)
class Compiled:
    """Outcome of one schedule: a kernel with its prediction, or why there is none."""

    kernel: PackedKernel | None
    prediction: Prediction | None
    text: str
    """Digest of the CUDA text: two schedules may have the same."""
    failure: str = ""


@dataclass(frozen=True)
class Plan:
    """A pack to be made."""

    device: str
    items: tuple[Item, ...]
    count: int
    """Kernels of each operator."""
    seed: int

    @property
    def conditions(self) -> dict[str, Any]:
        """All that the kernels and the predictions depend on, but for the processor's rounding of floats."""
        capped, _ = open_models(self.device)
        return {
            "device": capped.label,
            "simulator": capped.driver,
            "clock": capped.clock_regime,
            "arch": capped.arch,
            "nvrtc": nvrtc.version(),
            "generator": generate.GENERATOR,
            "ekc": __version__,
            "rule": rule.describe_rule(self.seed, self.count),
        }


class WorkFile:
    """Finished jobs by key. Raises `RecordError` for a file of other conditions or none of ours."""

    def __init__(self, path: Path, conditions: Mapping[str, Any]) -> None:
        self.path = path
        try:
            self._database = sqlite3.connect(path)
            self._database.execute("create table if not exists jobs (key text primary key, value blob)")
            text = json.dumps(conditions, sort_keys=True)
            then = self.find("conditions")
            if then is None:
                self.add("conditions", text)
            elif then != text:
                raise RecordError(
                    f"{path} was begun under other conditions ({then}): delete it or name another --out"
                )
        except sqlite3.Error as problem:
            raise RecordError(f"{path} cannot be used: {problem}") from None

    def find(self, key: str) -> Any:
        """The value of a key; None where there is none."""
        row = self._database.execute("select value from jobs where key = ?", (key,)).fetchone()
        return None if row is None else pickle.loads(zlib.decompress(row[0]))

    def add(self, key: str, value: Any) -> None:
        """Keep a value; it is in the file afterwards."""
        packed = zlib.compress(pickle.dumps(value), 1)
        with self._database:
            self._database.execute("insert or replace into jobs values (?, ?)", (key, packed))

    def close(self) -> None:
        """Close the file."""
        self._database.close()


Lists = Mapping[str, Sequence[Drawn]]
"""Schedules of an operator that may be taken, by stratum."""


def make_pack(plan: Plan, path: Path, filed: Predictions | None = None) -> tuple[OperatorPredictions, ...]:
    """Make the pack, of the schedules of `filed` if its conditions are those of the plan, and return the
    predictions. Raises `EkcError`."""
    work = WorkFile(path.with_name(path.name + ".work"), plan.conditions)
    try:
        with _open_pool() as pool:
            if filed is not None and filed.conditions == plan.conditions:
                lists = [list_filed(item.op, filed.find(item.name)) for item in plan.items]
            else:
                lists = _draw_all(plan, work, pool)
            chosen = [
                _compile_chosen(plan, item, mine, work, pool)
                for item, mine in zip(plan.items, lists, strict=True)
            ]
    finally:
        work.close()
    kernels = [[one.kernel for one in mine if one.kernel] for mine in chosen]
    facts = plan.conditions
    head = PackHead(
        device=plan.device,
        arch=facts["arch"],
        nvrtc=facts["nvrtc"],
        generator=facts["generator"],
        ekc_version=facts["ekc"],
        rule=facts["rule"],
        operators=tuple({"name": item.name, "operator": item.op.to_json()} for item in plan.items),
    )
    write_pack(path, head, kernels)
    return tuple(
        collect_predictions(item.name, packed, [one.prediction for one in mine if one.prediction])
        for item, packed, mine in zip(plan.items, kernels, chosen, strict=True)
    )


@contextmanager
def _open_pool() -> Iterator[WorkerProcesses]:
    """A process per core; an error or Ctrl-C ends them in the middle of their jobs."""
    pool = WorkerProcesses(count_cores(), timeout_s=JOB_LIMIT_S)
    try:
        yield pool
    except BaseException:
        pool.stop()
        raise
    pool.shutdown()


def list_filed(op: Operator, filed: OperatorPredictions) -> Lists:
    """The schedules on file, by stratum. Raises `EkcError` for one that this ekc does not read."""
    lists: dict[str, list[Drawn]] = {name: [] for name in rule.STRATA}
    strata = [name for name in rule.STRATA for _ in range(filed.strata.get(name, 0))]
    rows = zip(filed.schedules, filed.steps, filed.structures, strata, filed.codes, strict=True)
    for digest, steps, structure, stratum, code in rows:
        schedule = read_steps(op, steps, digest)
        lists[stratum].append(Drawn(schedule.to_json(), structure, stratum, code))
    return lists


def _draw_all(plan: Plan, work: WorkFile, pool: Executor) -> list[Lists]:
    """Schedules that the rule draws for each operator, by stratum."""
    counts = rule.count_strata(plan.count)
    jobs: dict[str, Callable[[], rule.Draw]] = {}
    for item in plan.items:
        for turn, objective in enumerate((rule.LATENCY, rule.ENERGY)):
            arguments = item.op, plan.device, objective, plan.seed + turn, counts[objective]
            jobs[f"{item.name}/{objective}"] = partial(rule.search, *arguments)
    for item in plan.items:
        arguments = item.op, plan.device, plan.seed, plan.count
        jobs[f"{item.name}/{rule.RANDOM}"] = partial(rule.draw_random, *arguments)
    done = _run_kept(jobs, work, pool)
    near = {}
    for item in plan.items:
        parents = [done[f"{item.name}/{objective}"].best for objective in (rule.LATENCY, rule.ENERGY)]
        arguments = item.op, plan.device, parents[0] + parents[1], plan.seed, counts[rule.NEAR]
        near[f"{item.name}/{rule.NEAR}"] = partial(rule.draw_near, *arguments)
    done |= _run_kept(near, work, pool)
    return [
        {rule.NAIVE: (rule.draw_naive(item.op),)}
        | {stratum: done[f"{item.name}/{stratum}"].drawn for stratum in rule.STRATA[1:]}
        for item in plan.items
    ]


def _run_kept(
    jobs: Mapping[str, Callable[[], rule.Draw]], work: WorkFile, pool: Executor
) -> dict[str, rule.Draw]:
    """Schedules that the jobs draw, by key: read from the work file, or drawn now and written there."""
    done: dict[str, rule.Draw] = {}
    futures: dict[Future[rule.Draw], str] = {}
    for key, job in jobs.items():
        kept = work.find(key)
        if kept is not None:
            done[key] = kept
        else:
            futures[pool.submit(job)] = key
    for future in as_completed(futures):
        key = futures[future]
        try:
            done[key] = future.result()
        except BrokenExecutor as problem:
            raise EkcError(f"{key}: {problem}; run the command again") from None
        work.add(key, done[key])
        print(f"{key}: drawn", file=sys.stderr)
    return done


def compile_drawn(drawn: Drawn, device: str) -> Compiled:
    """Compile a schedule and predict its figures; a job of a worker process."""
    capped, _ = open_models(device)
    schedule = Schedule.from_json(drawn.schedule)
    try:
        kernel = _compile_as_filed(schedule, drawn.code, capped)
        quantities = analyse_program(schedule.program, capped.limits)
        kernel = replace(kernel, facts=collect_facts(kernel))
        prediction = predict(device, quantities, kernel)
    except EkcError as problem:
        return Compiled(None, None, "", f"{type(problem).__name__}: {problem}")
    figures = {name: float(value[0]) for name, value in quantities.items()}
    packed = pack_kernel(schedule, drawn.structure, drawn.stratum, figures, kernel)
    return Compiled(packed, prediction, digest_kernel(kernel))


def _compile_as_filed(schedule: Schedule, code: str, device: SimulatedDevice) -> CompiledKernel:
    """The kernel whose machine code is on file; the last one compiled, if it does not come."""
    kernel = compile_schedule(schedule, device.arch, device.limits)
    for _ in range(MOST_COMPILES - 1):
        if not code or compute_code_digest(kernel.cubin).startswith(code):
            break
        # The compile cache would give the same code again.
        output = nvrtc.compile(kernel.cuda_source, device.arch)
        resources = tuple(output.resources[launch.name] for launch in kernel.launches)
        kernel = replace(kernel, ptx=output.ptx, cubin=output.cubin, log=output.log, resources=resources)
    return kernel


def _compile_chosen(plan: Plan, item: Item, lists: Lists, work: WorkFile, pool: Executor) -> list[Compiled]:
    """Compile until each stratum has its number, or its list is used up."""
    counts, done = rule.count_strata(plan.count), {}
    for mine in lists.values():
        for drawn in mine:
            kept = work.find(_key(drawn))
            if kept is not None:
                done[drawn.schedule] = kept
    while True:
        chosen, missing = choose_kernels(lists, counts, done)
        if not missing:
            print(f"{item.name}: {len(chosen)} kernels of {len(done)} schedules", file=sys.stderr)
            return chosen
        futures: dict[Future[Compiled], Drawn] = {
            pool.submit(compile_drawn, drawn, plan.device): drawn for drawn in missing
        }
        for number, future in enumerate(as_completed(futures), 1):
            drawn = futures[future]
            try:
                done[drawn.schedule] = future.result()
            except BrokenExecutor as problem:
                # The process died over this schedule: it would die again.
                done[drawn.schedule] = Compiled(None, None, "", str(problem))
            work.add(_key(drawn), done[drawn.schedule])
            if number % SHOWN_EVERY == 0:
                print(f"{item.name}: {number} of {len(missing)} compiled", file=sys.stderr)


def choose_kernels(
    lists: Lists, counts: Mapping[str, int], done: Mapping[str, Compiled]
) -> tuple[list[Compiled], list[Drawn]]:
    """The kernels that the rule takes of what is compiled, in its order, and the schedules that it needs
    compiled to go on. What other strata lack is drawn at random. `done` is by schedule as JSON."""
    chosen: list[Compiled] = []
    missing: list[Drawn] = []
    seen: set[str] = set()
    for stratum, mine in lists.items():
        begun = len(chosen) + len(missing)
        end = sum(counts.values()) if stratum == rule.RANDOM else begun + counts[stratum]
        for drawn in mine:
            if len(chosen) + len(missing) == end:
                break
            if drawn.schedule in seen:
                continue
            seen.add(drawn.schedule)
            compiled = done.get(drawn.schedule)
            if compiled is None:
                missing.append(drawn)
            elif compiled.kernel is not None and compiled.text not in seen:
                seen.add(compiled.text)
                kernel = replace(compiled.kernel, structure=drawn.structure, stratum=stratum)
                chosen.append(replace(compiled, kernel=kernel))
    return chosen, missing


def _key(drawn: Drawn) -> str:
    return f"kernel/{drawn.schedule}"
