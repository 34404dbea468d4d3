"""A record file measured under other conditions: its content is named, and taken where asked for."""

from __future__ import annotations

import shutil
import sqlite3
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ekc
from ekc import devices
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import describe_toolchain
from ekc.errors import InvalidInput, ScheduleError
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.database import query as choosing
from ekc.search.database.conditions import describe_unused
from ekc.search.database.database import RecordStore, to_canonical_json
from ekc.search.database.measured_set import find_schedule
from ekc.search.explain.by_feature import explain_learned
from tests.search.helpers import add_rows, change_rows, tune

OP, OTHER = ekc.matmul(16, 8, 24), ekc.matvec(8, 40)
HERE = devices.open("a100")
HERE_NVRTC = f"NVRTC {describe_toolchain()}"
OLD_GENERATOR = f"{describe_toolchain().split(',')[0]}, generator 1"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("here") / "r.db"
    tune(OP, trials=3, records=file)
    return file


def move(records: Path, folder: Path, **changed: Any) -> Path:
    """The file as another run would have left it, under other conditions."""
    file = Path(shutil.copy(records, folder / "moved.db"))
    return change_rows(file, ", ".join(f"{name} = ?" for name in changed), *changed.values())


def metered(records: Path) -> int:
    with RecordStore(records, create=False) as store:
        return len({row.key.schedule_digest for row in store.read_rows(kind="metering")})


def refusal(file: Path, op: ekc.Operator = OP, target: str = "a100") -> str:
    with pytest.raises(InvalidInput) as caught:
        ekc.best(op, file, target)
    assert "\n" not in str(caught.value)
    return str(caught.value)


CHANGES = {
    "NVRTC": ({"nvrtc": "13.0, generator 3"}, "with NVRTC 13.0, generator 3", HERE_NVRTC),
    "generator": ({"nvrtc": OLD_GENERATOR}, f"with NVRTC {OLD_GENERATOR}", HERE_NVRTC),
    "driver": ({"driver": "simulator 1"}, "with simulator 1", HERE.driver),
    "clocks": ({"clock_regime": "fixed 900 MHz"}, "with clocks fixed 900 MHz", f"clocks {HERE.clock_regime}"),
    "data": ({"data_policy": "ones"}, "with data ones", f"data {HERE.data_policy}"),
    "device": ({"device": "rtx3090"}, "on rtx3090 (simulated)", ""),
    "GPU": ({"device": "NVIDIA A100", "simulated": 0}, "on NVIDIA A100", ""),
    "both": (
        *(
            {"device": "h100", "nvrtc": "12.9, generator 2"},
            "on h100 (simulated), NVRTC 12.9, generator 2",
            "",
        ),
    ),
}


@pytest.mark.parametrize(("changed", "there", "here"), CHANGES.values(), ids=CHANGES)
def test_best_names_other_conditions_and_any_toolchain_compiles_and_marks_the_best(
    changed: dict[str, Any],
    there: str,
    here: str,
    records: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = move(records, tmp_path, **changed)
    made = f" was made with {here}" if here else ""
    assert refusal(file) == (
        f"matmul on a100 (simulated): no metered schedule in {file}{made}; "
        f"it holds {metered(records)} {there}; --any-toolchain (any_toolchain=True) takes the best of the "
        "nearest, ekc tune --records measures here"
    )
    compiled: list[tuple[str, str]] = []
    compile_schedule = choosing.compile_schedule

    def compile_and_note(schedule: ekc.Schedule, arch: str, limits: LaunchLimits) -> CompiledKernel:
        compiled.append((schedule.digest, arch))
        return compile_schedule(schedule, arch, limits)

    monkeypatch.setattr(choosing, "compile_schedule", compile_and_note)
    known = ekc.best(OP, records, "a100", any_toolchain=True)
    assert known.measured_elsewhere == ""
    assert compiled == []
    found = ekc.best(OP, file, "a100", any_toolchain=True)
    assert compiled == [(known.schedule.digest, "sm_80")]
    for part in there.removeprefix("with ").removeprefix("on ").split(", "):
        assert part in found.measured_elsewhere
    assert found.checked == "", "another kernel was executed"
    assert replace(found, measured_elsewhere="", checked=known.checked) == known
    assert found.to_json()["measured_elsewhere"] == found.measured_elsewhere


def test_any_toolchain_takes_nearest_then_newest(records: Path, tmp_path: Path) -> None:
    file = move(records, tmp_path, device="h100")
    for changed in (
        {"nvrtc": "13.0, generator 3", "clock_regime": "fixed 900 MHz"},
        {"nvrtc": "12.8, generator 3"},
        {"nvrtc": "13.0, generator 3"},
        {"device": "rtx4090"},
    ):
        add_rows(records, file, **changed)
        found = ekc.best(OP, file, "a100", any_toolchain=True).measured_elsewhere
    compiler, regime = "NVRTC 13.0, generator 3", HERE.clock_regime
    assert found.startswith(f"a100 (simulated), {compiler}, {HERE.driver}, clocks {regime}")
    count = metered(records)
    assert (
        f"it holds {count} with {compiler}, {count} with NVRTC 12.8, generator 3 and more under 3 other "
        "conditions;"
    ) in refusal(file)
    assert f"was made with NVRTC {describe_toolchain()}, clocks {HERE.clock_regime};" in refusal(file)


def test_any_toolchain_refuses_schedule_beyond_limits(records: Path, tmp_path: Path) -> None:
    """96 KiB of shared memory, where a block has 64; with the figures of another schedule."""
    wide = (
        ekc.Schedule(ekc.matmul(64, 64, 384))
        .split("i", (64,))
        .split("j", (64,))
        .reorder("i.0", "j.0", "i.1", "j.1", "k")
        .bind("i.0", "block.x")
        .bind("j.0", "block.y")
        .bind("j.1", "thread.x")
        .cache_write("C")
        .cache_read("A", "shared")
    )
    own = {"operator": to_canonical_json(wide.op.to_json()), "schedule_digest": wide.digest}
    with RecordStore(records, create=False) as old, RecordStore(tmp_path / "r.db") as new:
        for row in old.read_rows():
            new.add(replace(row, key=replace(row.key, **own), schedule=wide.to_json()))
    assert ekc.best(wide.op, tmp_path / "r.db", "h100", any_toolchain=True).schedule == wide
    with pytest.raises(ScheduleError, match="shared memory: 98304 bytes, at most 65536"):
        ekc.best(wide.op, tmp_path / "r.db", "rtx2080ti", any_toolchain=True)


def test_best_names_other_operators_and_unmetered_schedules(records: Path, tmp_path: Path) -> None:
    end = f"; it holds those of {str(OP).splitlines()[0]}; run ekc tune with --records"
    assert refusal(records, OTHER) == f"matvec on a100 (simulated): no metered schedule in {records}{end}"
    timed = tmp_path / "timed.db"
    shutil.copyfile(records, timed)
    with sqlite3.connect(timed) as connection:
        connection.execute("delete from trials where kind != 'timing'")
        (count,) = connection.execute("select count(distinct schedule_digest) from trials").fetchone()
    connection.close()
    held = "; it holds schedules that were timed and not metered:"
    assert f"{held} {count} under the conditions here; run ekc tune" in refusal(timed)
    assert f"{held} {count} on a100 (simulated); run ekc tune" in refusal(timed, target="h100")
    assert "; nothing was metered in it; run ekc tune" in refusal(timed, OTHER)


def test_find_schedule_finds_best_under_other_conditions(records: Path, tmp_path: Path) -> None:
    file = move(records, tmp_path, nvrtc="13.0, generator 3")
    known = ekc.best(OP, records, "a100").schedule
    with pytest.raises(InvalidInput, match=r"it holds \d+ with NVRTC 13.0, generator 3"):
        find_schedule("best", file, HERE)
    assert find_schedule("best", file, HERE, any_toolchain=True) == known
    h100 = devices.open("h100")
    with pytest.raises(InvalidInput, match=r"nothing was metered on h100 .*: \d+ on a100 \(simulated\)"):
        find_schedule("best", records, h100)
    assert find_schedule("best", records, h100, any_toolchain=True) == known


def test_explain_learned_names_other_conditions(records: Path, tmp_path: Path) -> None:
    file = move(records, tmp_path, nvrtc="13.0, generator 3")
    pair = make_naive_schedule(OP), ekc.best(OP, records, "a100").schedule
    with pytest.raises(InvalidInput, match=r"; it also holds \d+ with NVRTC 13.0, generator 3, which cannot"):
        explain_learned(*pair, HERE, file)
    with pytest.raises(InvalidInput, match=r"or record more$"):
        explain_learned(*pair, HERE, records)


def test_run_warns_of_schedules_under_other_conditions(records: Path, tmp_path: Path) -> None:
    file = move(records, tmp_path, nvrtc="13.0, generator 3")
    line = (
        rf"records: {file} holds schedules of matmul that were timed on a100 \(simulated\): \d+ with "
        rf"NVRTC 13.0, generator 3, and none with NVRTC {describe_toolchain()}; they are not used, "
        "and all is measured here"
    )
    with pytest.warns(RuntimeWarning, match=line):
        tune(OP, trials=1, records=file)
    with RecordStore(file, create=False) as store:
        assert describe_unused(store.count_schedules(), HERE) == "", "so the next run says nothing"


def test_schedules_of_other_devices_are_no_reason_to_warn(records: Path, tmp_path: Path) -> None:
    """One file for several devices is ordinary."""
    file = move(records, tmp_path, device="rtx3090")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert tune(OP, trials=1, records=file).trial_count == 1
