"""Faults during a tuning run: Ctrl-C, a failing device, kernels that do not compile, wrong results."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import ekc
from ekc import devices
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import Timing
from ekc.devices.simulated.device import SimulatedDevice
from ekc.devices.simulated.specs import find_spec
from ekc.errors import CompileError, DeviceError, NothingLegal
from ekc.runtime.verify import Verdict
from ekc.search.database.database import RecordStore
from ekc.search.loop import compile_job, finals
from ekc.search.tuning_result import TuningResult
from tests.runtime import faults
from tests.runtime.faults import spoiled
from tests.search.conftest import SharedRun
from tests.search.helpers import TRIALS, change_rows, rows, tune, winner


def on_timing(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Call a function before the n-th timing of simulated devices."""
    calls, time = count(1), SimulatedDevice.time

    def act_and_time(device: SimulatedDevice, kernel: CompiledKernel, **options: Any) -> Timing:
        act(next(calls))
        return time(device, kernel, **options)

    monkeypatch.setattr(SimulatedDevice, "time", act_and_time)


@pytest.fixture(scope="module")
def undisturbed() -> TuningResult:
    """A run without Ctrl-C."""
    return tune(seed=5)


@pytest.mark.parametrize(
    "at",
    [
        3,
        pytest.param(6, marks=pytest.mark.exhaustive),
        TRIALS + 1,
        pytest.param(TRIALS + 4, marks=pytest.mark.exhaustive),
    ],
)
def test_ctrl_c_ends_run_with_best_so_far(
    at: int, undisturbed: TuningResult, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the first rounds, the last, and the finals."""

    def act(call: int) -> None:
        if call == at:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        on_timing(patch, act)
        result = tune(seed=5, records=tmp_path / "r.db")
    assert result.stopped == "interrupted"
    assert result.best.ok
    assert result.best.latency_s
    assert "max error" in result.best.checked
    timed = [t.latency_s for t in result.trials if t.latency_s]
    assert result.fastest.latency_s == min(timed)
    assert len(timed) == min(at - 2, TRIALS)
    assert winner(tune(seed=5, records=tmp_path / "r.db")) == winner(undisturbed)


def test_ctrl_c_before_first_trial_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(call: int) -> None:
        raise KeyboardInterrupt

    on_timing(monkeypatch, act)
    with pytest.raises(KeyboardInterrupt):
        tune()


def test_failing_device_costs_single_trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def act(call: int) -> None:
        if call % 3 == 2:
            raise DeviceError("the card is busy")

    with monkeypatch.context() as patch:
        on_timing(patch, act)
        result = tune(records=tmp_path / "r.db")
    failed = [t for t in result.trials if not t.ok]
    assert 3 <= len(failed) < TRIALS
    assert {t.status for t in failed} == {"device: the card is busy"}
    assert result.best.ok
    assert result.best.metered
    with RecordStore(tmp_path / "r.db", create=False) as store:
        filed = {row.key.schedule_digest for row in store.read_rows(kind="failure")}
    assert filed >= {t.schedule.digest for t in failed}
    # A device may do tomorrow what it did not do today.
    assert all(t.ok for t in tune(records=tmp_path / "r.db").trials)


def test_compile_failures_are_stored_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The compile is broken for every third schedule, where the executor calls it."""
    real, calls = compile_job.compile_schedule, []

    def broken(schedule: ekc.Schedule, *rest: Any) -> CompiledKernel:
        calls.append(schedule.digest)
        if int(schedule.digest, 16) % 3 == 0:
            raise CompileError("kernel.cu(7): error: expected a ;")
        return real(schedule, *rest)

    monkeypatch.setattr(compile_job, "compile_schedule", broken)
    result = tune(records=tmp_path / "r.db", seed=2, trials=24)
    failed = [t for t in result.trials if not t.ok]
    assert failed
    assert all(t.status == "compile: kernel.cu(7): error: expected a ;" for t in failed)
    assert {t.schedule.digest for t in failed} == {
        t.schedule.digest for t in result.trials if int(t.schedule.digest, 16) % 3 == 0
    }
    assert result.best.ok
    filed = rows(tmp_path / "r.db")
    calls.clear()
    again = tune(records=tmp_path / "r.db", seed=2, trials=24)
    assert rows(tmp_path / "r.db") == filed
    assert winner(again) == winner(result)
    # The device says of best and fastest how sure their saving is, from the kernels themselves.
    stated = {again.best.schedule.digest, again.fastest.schedule.digest}
    assert set(calls) <= stated, "what is on file is not compiled again"


MM = ekc.matmul(64, 64, 64)
FAULTS = [(faults.squared, "wrong result"), (faults.far_store, "unsafe kernel")]


@pytest.mark.parametrize(("fault", "words"), FAULTS, ids=["clean but wrong", "stray store"])
def test_faulty_kernel_never_wins(
    fault: Callable[[str], str],
    words: str,
    matmul_run: SharedRun,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The first look's two fastest are compiled to something else; the finals execute them and find out."""
    honest, _ = matmul_run
    liars = {honest.best.schedule.digest, honest.fastest.schedule.digest}
    real = compile_job.compile_schedule

    def compiled(schedule: ekc.Schedule, *rest: Any) -> CompiledKernel:
        kernel = real(schedule, *rest)
        return spoiled(kernel, fault) if schedule.digest in liars else kernel

    monkeypatch.setattr(compile_job, "compile_schedule", compiled)
    result = tune(MM, records=tmp_path / "r.db")
    assert result.best.schedule.digest not in liars
    assert result.fastest.schedule.digest not in liars
    wrong = [t for t in result.trials if t.schedule.digest in liars]
    assert wrong
    assert all(t.status.startswith(f"{words}: compiled PTX executed") for t in wrong)
    assert not {t.schedule.digest for t in result.pareto} & liars
    on_file = ekc.best(MM, records=tmp_path / "r.db", target="a100")
    assert on_file.schedule.digest == result.best.schedule.digest
    assert on_file.checked == result.best.checked


def test_unexecutable_kernel_does_not_win_and_is_not_stored(
    matmul_run: SharedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, strange = finals.verify, matmul_run[0].best.schedule.digest

    def verify(schedule: ekc.Schedule, *rest: Any) -> Verdict:
        kernel, expected = rest
        odd = schedule.digest == strange
        return real(schedule, spoiled(kernel, faults.unknown_word) if odd else kernel, expected)

    monkeypatch.setattr(finals, "verify", verify)
    result = tune(MM, records=tmp_path / "r.db")
    assert result.best.schedule.digest != strange
    (odd,) = (t for t in result.trials if t.schedule.digest == strange)
    assert odd.status.startswith("unchecked: ")
    assert "frob.rn.f32" in odd.status
    with RecordStore(tmp_path / "r.db", create=False) as store:
        assert strange not in {row.key.schedule_digest for row in store.read_rows(kind="check")}


OTHER_VERDICTS = {
    "of the schedule alone": ("status = 'schedule evaluated in NumPy: max error 1e-05', payload = '{}'", ""),
    "of another ekc": ("ekc_version = '0.0.1'", "compiled PTX executed on the CPU"),
}


@pytest.mark.parametrize(("change", "shown"), OTHER_VERDICTS.values(), ids=OTHER_VERDICTS)
def test_verdict_of_another_kernel_does_not_count(
    change: str, shown: str, matmul_run: SharedRun, tmp_path: Path
) -> None:
    """Files of before kernels were executed hold verdicts on schedules; another ekc emits other kernels."""
    result, file = matmul_run[0], Path(shutil.copy(matmul_run[1], tmp_path))
    change_rows(file, f"{change} where kind = 'check'")
    assert ekc.best(MM, records=file, target="a100").checked[: len(shown) or None] == shown
    before = rows(file)
    again = tune(MM, records=file)
    assert winner(again) == winner(result)
    assert again.best.checked == result.best.checked
    assert rows(file) > before
    assert ekc.best(MM, records=file, target="a100").checked == result.best.checked


def test_run_without_legal_schedule_counts_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimulatedDevice(find_spec("a100"))
    device.limits = replace(device.limits, registers_per_thread=24)
    monkeypatch.setattr(devices, "open", lambda target="auto": device)
    with pytest.raises(NothingLegal, match=r"no schedule works; reasons: registers \(\d+\)") as problem:
        tune(trials=8)
    assert "\n" not in str(problem.value)
