"""What a tuning run survives: Ctrl-C, a failing device, kernels that do not compile, wrong results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ekc
from ekc import devices
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.base import Timing
from ekc.devices.simulated import SimulatedDevice
from ekc.devices.specs import get
from ekc.errors import CompileError, DeviceError, NothingLegal
from ekc.ir.agreement import Agreement, agreement
from ekc.ir.program import Program
from ekc.search import candidate, finals
from tests.search.runs import TRIALS, rows, tune, winner


class Counting(SimulatedDevice):
    """A simulated a100 that does something of its own at its n-th timing."""

    def __init__(self, act: Callable[[int], None]) -> None:
        super().__init__(get("a100"))
        self.act, self.calls = act, 0

    def time(self, kernel: CompiledKernel, *, draw: int = 0) -> Timing:
        self.calls += 1
        self.act(self.calls)
        return super().time(kernel, draw=draw)


def on(monkeypatch: pytest.MonkeyPatch, device: SimulatedDevice) -> None:
    monkeypatch.setattr(devices, "open", lambda target="auto": device)


@pytest.mark.parametrize("at", [3, 6, TRIALS + 1, TRIALS + 4])
def test_ctrl_c_ends_with_the_best_so_far(at: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the first rounds, the last, and the finals."""

    def act(call: int) -> None:
        if call == at:
            raise KeyboardInterrupt

    whole = tune(seed=5)
    with monkeypatch.context() as patch:
        on(patch, Counting(act))
        result = tune(seed=5, records=tmp_path / "r.db")
    assert result.stopped == "interrupted"
    assert result.best.ok
    assert result.best.latency_s
    assert "max error" in result.best.checked
    timed = [t.latency_s for t in result.trials if t.latency_s]
    assert result.fastest.latency_s == min(timed)
    assert len(timed) == min(at - 2, TRIALS)
    assert winner(tune(seed=5, records=tmp_path / "r.db")) == winner(whole)


def test_ctrl_c_before_any_trial_worked_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(call: int) -> None:
        raise KeyboardInterrupt

    on(monkeypatch, Counting(act))
    with pytest.raises(KeyboardInterrupt):
        tune()


def test_a_device_that_fails_now_and_then_costs_those_trials_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def act(call: int) -> None:
        if call % 3 == 2:
            raise DeviceError("the card is busy")

    with monkeypatch.context() as patch:
        on(patch, Counting(act))
        result = tune(records=tmp_path / "r.db")
    failed = [t for t in result.trials if not t.ok]
    assert 3 <= len(failed) < TRIALS
    assert {t.status for t in failed} == {"device: the card is busy"}
    assert result.best.ok
    assert result.best.metered
    with ekc.search.records.RecordStore(tmp_path / "r.db", create=False) as store:
        filed = {row.key.schedule_digest for row in store.rows(kind="failure")}
    assert filed >= {t.schedule.digest for t in failed}
    # A device may do tomorrow what it did not do today.
    assert all(t.ok for t in tune(records=tmp_path / "r.db").trials)


def test_what_does_not_compile_is_filed_once_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The compile is broken for every third schedule, where the executor calls it."""
    real, calls = candidate.compile_schedule, []

    def broken(schedule: ekc.Schedule, *rest: Any) -> CompiledKernel:
        calls.append(schedule.digest)
        if int(schedule.digest, 16) % 3 == 0:
            raise CompileError("kernel.cu(7): error: expected a ;")
        return real(schedule, *rest)

    monkeypatch.setattr(candidate, "compile_schedule", broken)
    result = tune(records=tmp_path / "r.db", seed=2)
    failed = [t for t in result.trials if not t.ok]
    assert failed
    assert all(t.status == "compile: kernel.cu(7): error: expected a ;" for t in failed)
    assert {t.schedule.digest for t in failed} == {
        t.schedule.digest for t in result.trials if int(t.schedule.digest, 16) % 3 == 0
    }
    assert result.best.ok
    filed = rows(tmp_path / "r.db")
    calls.clear()
    again = tune(records=tmp_path / "r.db", seed=2)
    assert rows(tmp_path / "r.db") == filed
    assert winner(again) == winner(result)
    assert calls == [], "what is on file is not compiled again"


def _sums_too_little(program: Program) -> Program:
    """The same program with one iteration of every reduction loop."""
    nests = [
        replace(n, loops=tuple(replace(x, extent=1) if x.reduction else x for x in n.loops))
        for n in program.nests
    ]
    return replace(program, nests=tuple(nests))


def test_a_schedule_that_computes_something_else_never_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look's two fastest stop short in their sums; so they are found out in the finals."""
    honest = tune(ekc.matmul(64, 64, 64))
    liars = {honest.best.schedule.digest, honest.fastest.schedule.digest}
    texts = {str(t.schedule) for t in honest.trials if t.schedule.digest in liars}

    def compared(program: Program, arrays: Any) -> Agreement:
        lying = str(program) in texts
        return agreement(_sums_too_little(program) if lying else program, arrays)

    monkeypatch.setattr(finals, "agreement", compared)
    result = tune(ekc.matmul(64, 64, 64))
    assert result.best.schedule.digest not in liars
    assert result.fastest.schedule.digest not in liars
    wrong = [t for t in result.trials if t.schedule.digest in liars]
    assert wrong
    assert all(t.status.startswith("wrong result: ") for t in wrong)
    assert not {t.schedule.digest for t in result.pareto} & liars


def test_where_nothing_is_legal_the_reasons_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimulatedDevice(get("a100"))
    device.limits = replace(device.limits, registers_per_thread=24)
    on(monkeypatch, device)
    with pytest.raises(NothingLegal, match=r"no schedule works; reasons: registers \(\d+\)") as problem:
        tune(trials=8)
    assert "\n" not in str(problem.value)
