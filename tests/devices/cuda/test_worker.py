"""Faults of every kind at every call of the driver: each costs its own row, which gives the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest

import ekc
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from ekc.devices.cuda.driver import Driver
from ekc.devices.device import Metering, Timing
from ekc.ir.schedule.schedule import Schedule
from ekc.search.data.candidate import Candidate
from ekc.search.data.selection import SelectionRule
from ekc.search.database.database import RecordKind, RecordStore
from ekc.search.loop.finals import Finals
from ekc.search.loop.measure import MeasurementFailure, Measurer
from tests.scripted.cuda.faulty_driver import REASONS, Plan, faulty_hand
from tests.scripted.cuda.node import ScriptedNode

OP = ekc.matmul(4, 8, 4)
ROWS = Schedule(OP).bind("i", "block.x").bind("j", "thread.x").cache_write("C")
COLUMNS = Schedule(OP).bind("j", "block.x").bind("i", "thread.x").cache_write("C")
SCHEDULES = (ROWS, COLUMNS, ROWS.unroll("k"))
IN_PROCESS = {"allocate_async", "free_async", "wait_for_stream", "find_owner_gpu", "pop_context"}
"""Calls for arrays on the caller's stream, which a worker does not make; see test_call.py."""
DESCRIBING = {"get_version", "count_gpus", "get_name", "get_uuid", "get_memory_bytes", "get_attribute"}
AT_START = DESCRIBING | {"push_context", "create_stream", "create_event"}
"""Called when a worker starts: these tests let one start."""
METHODS = sorted(n for n in vars(Driver) if not n.startswith("_") and n not in IN_PROCESS)


@pytest.fixture(scope="module", autouse=True)
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, CompiledKernel]]:
    """The kernels of the test, in a compile cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EKC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield {s.digest: compile_schedule(s) for s in SCHEDULES}


def run(plan: Plan, kernels: dict[str, CompiledKernel], store: RecordStore) -> list[Candidate]:
    """A small run: every schedule timed, checked, metered. The second one meets the fault."""
    short = plan.method in ("begin_capture", "end_capture", "launch_graph", "destroy_graph")
    script = {"launch_s": 1.9e-5 if short else 5e-3}
    target = "cuda:0@cold" if plan.method == "fill" else "cuda:0"
    device = ScriptedNode().open(target, lambda index: faulty_hand(plan, index, **script))
    bench = Measurer(device, store)
    finals = Finals(OP, bench, lambda schedule: kernels[schedule.digest], SelectionRule("latency", 0.05))
    done = []
    for number, schedule in enumerate(SCHEDULES):
        if number == 1:
            if plan.method in AT_START:
                device.close()
            plan.armed.value = plan.place == "time"
        c = Candidate(schedule, "test", None, 1.0, 1.0, 0.0, 0)  # type: ignore[arg-type]
        kernel = partial(kernels.__getitem__, schedule.digest)
        outcome: Timing | Metering | MeasurementFailure = bench.time(schedule, kernel)
        if isinstance(outcome, Timing):
            c.timings.append(outcome)
            plan.armed.value |= number == 1 and plan.place == "check"
            finals.check(c)
        if c.ok:
            plan.armed.value |= number == 1 and plan.place == "meter"
            outcome = bench.meter(schedule, kernel, 0.2)
        if isinstance(outcome, MeasurementFailure):
            c.status = outcome.status
        plan.armed.value = 0
        done.append(c)
    device.close()
    return done


def list_cases(methods: Sequence[str]) -> list[Any]:
    """Every kind of fault at every call; most kinds are slow at all calls but "launch"."""
    return [
        pytest.param(method, kind, marks=() if method == "launch" or kind == "error" else pytest.mark.slow)
        for method in methods
        for kind in REASONS
    ]


@pytest.mark.parametrize(("method", "kind"), list_cases(METHODS))
def test_fault_during_timing_costs_its_own_row(
    method: str, kind: str, kernels: dict[str, CompiledKernel]
) -> None:
    struck(Plan(method, kind), kernels)


@pytest.mark.parametrize(
    ("method", "kind"), list_cases(["launch", "record_event", "wait_for_event", "elapsed_s"])
)
def test_fault_during_metering_costs_its_own_row(
    method: str, kind: str, kernels: dict[str, CompiledKernel]
) -> None:
    struck(Plan(method, kind, "meter"), kernels)


@pytest.mark.parametrize(("method", "kind"), list_cases(["allocate", "upload", "launch", "download", "free"]))
def test_fault_during_a_check_costs_its_own_row(
    method: str, kind: str, kernels: dict[str, CompiledKernel]
) -> None:
    struck(Plan(method, kind, "check"), kernels)


def struck(plan: Plan, kernels: dict[str, CompiledKernel]) -> None:
    """Run, and check that the fault cost no more than its row."""
    with RecordStore(None) as store:
        before, hit, after = run(plan, kernels, store)
        kinds: tuple[RecordKind, ...] = ("timing", "failure", "check", "metering")
        rows = {k: {r.key.schedule_digest: r for r in store.read_rows(kind=k)} for k in kinds}
    assert plan.fired.value, f"{plan.method} was never called"
    for healthy in (before, after):
        assert healthy.ok
        assert healthy.checked.startswith("executed on Scripted A100")
        assert healthy.schedule.digest in rows["timing"]
        assert healthy.schedule.digest in rows["check"]
        assert healthy.schedule.digest in rows["metering"]
    assert hit.status.startswith("device: ")
    assert REASONS[plan.kind] in hit.status
    assert rows["failure"].keys() == {hit.schedule.digest}
    assert rows["failure"][hit.schedule.digest].status == hit.status
    assert "\n" not in hit.status


def test_faults_of_all_kinds_at_all_driver_calls_are_tested() -> None:
    assert len(METHODS) * len(REASONS) >= 30
    assert vars(Driver).keys() >= IN_PROCESS | AT_START
