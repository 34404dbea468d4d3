"""The leased actuator: bounds, the lease that is written before a limit is set, and restored limits."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ekc.devices.clocks import lease_file
from ekc.devices.clocks.lease import HEARTBEAT_INTERVAL_S, LeaseKeeper, restore_all
from ekc.devices.clocks.limits import Limit
from ekc.devices.clocks.nvml_limits import NvmlLimits
from ekc.devices.clocks.restore import end_lease
from ekc.errors import ActuatorError, InvalidInput, RecordError
from ekc.governor.protocols import Settings
from tests.devices.recording.full_disk import no_room_beyond
from tests.scripted.nvml.boards import ScriptedBoards


def _make_keeper(
    boards: ScriptedBoards, before: Settings | None = None, tell: list[str] | None = None
) -> LeaseKeeper:
    return LeaseKeeper([NvmlLimits(boards.get_uuid())], before, (tell if tell is not None else []).append)


def test_apply_none_restores_and_never_loosens(here: ScriptedBoards) -> None:
    here.set_state(0, sm_lock=[300, 1500])
    with _make_keeper(here, Settings(sm_mhz=1500)) as keeper:
        (actuator,) = keeper.actuators
        gears = actuator.gears()
        assert gears.sm_mhz[-1] == 1500
        assert gears.power_w[-1] == 280.0
        assert gears.memory_mhz == (405, 5001, 9251)
        actuator.apply(Settings(sm_mhz=1800, power_w=350.0))
        assert here.read_limits() == ([300, 1500], None, 280_000)
        actuator.apply(Settings(sm_mhz=900, memory_mhz=5001))
        assert here.read_limits() == ([300, 900], [405, 5001], 280_000)
        assert actuator.settings() == Settings(sm_mhz=900, memory_mhz=5001)
        actuator.apply(Settings())
        assert here.read_limits() == ([300, 1500], None, 280_000)
        actuator.apply(Settings(sm_mhz=600))
    assert here.read_limits() == ([300, 1500], None, 280_000)


def test_only_changed_limits_are_restored(here: ScriptedBoards) -> None:
    with _make_keeper(here) as keeper:
        keeper.actuators[0].apply(Settings(sm_mhz=900))
        here.set_state(0, memory_lock=[405, 5001], limit_mw=200_000)  # An administrator, meanwhile.
    assert here.read_limits() == (None, [405, 5001], 200_000)


def test_lease_is_written_before_a_limit_is_set(here: ScriptedBoards) -> None:
    with _make_keeper(here) as keeper:
        (actuator,) = keeper.actuators
        found = lease_file.read_lease(lease_file.make_lease_path(here.get_uuid()))
        assert found == actuator.lease
        assert found.touched == ()
        here.update_script(fail={"nvmlDeviceSetGpuLockedClocks": 999})
        with pytest.raises(ActuatorError, match="the SM clock"):
            actuator.apply(Settings(sm_mhz=900))
        found = lease_file.read_lease(lease_file.make_lease_path(here.get_uuid()))
        assert found is not None
        assert found.touched == ("sm_mhz",)
        assert found.previous == Settings(power_w=280.0)
    assert not lease_file.make_lease_path(here.get_uuid()).exists()


def test_limit_in_force_is_not_set_again(here: ScriptedBoards) -> None:
    with _make_keeper(here) as keeper:
        (actuator,) = keeper.actuators
        actuator.apply(Settings())
        assert not here.read_calls()
        actuator.apply(Settings(sm_mhz=900))
        actuator.apply(Settings(sm_mhz=900))
        assert len(here.read_calls()) == 1


def test_failed_limit_is_restored_too(here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    with _make_keeper(here) as keeper:
        (actuator,) = keeper.actuators
        put = NvmlLimits.set_limit

        def late(self: NvmlLimits, limit: Limit, value: float | None) -> None:
            put(self, limit, value)
            raise ActuatorError("zeusd does not answer (timed out)")

        with monkeypatch.context() as patched:
            patched.setattr(NvmlLimits, "set_limit", late)
            with pytest.raises(ActuatorError, match="timed out"):
                actuator.apply(Settings(sm_mhz=900))
        actuator.apply(Settings())
        assert here.read_limits() == (None, None, 280_000)


def test_unwritable_lease_sets_nothing(here: ScriptedBoards) -> None:
    with _make_keeper(here) as keeper:
        (actuator,) = keeper.actuators
        for _ in range(2):
            with (
                no_room_beyond(0),
                pytest.raises(RecordError, match=r"cannot write the lease .*; nothing was set"),
            ):
                actuator.apply(Settings(sm_mhz=900))
        assert not here.read_calls()
        actuator.apply(Settings(sm_mhz=900))
        found = lease_file.read_lease(lease_file.make_lease_path(here.get_uuid()))
        assert found is not None
        assert found.touched == ("sm_mhz",)


def test_missing_lock_sets_nothing(here: ScriptedBoards) -> None:
    with _make_keeper(here) as keeper:
        (actuator,) = keeper.actuators
        lock = lease_file.make_lease_path(here.get_uuid()).with_suffix(".lock")
        lock.mkdir()
        with pytest.raises(RecordError, match=r"cannot open the lock .*\.lock \(Is a directory\)"):
            actuator.apply(Settings(sm_mhz=900))
        assert not here.read_calls()
        lock.rmdir()
        actuator.apply(Settings(sm_mhz=900))
        assert here.read_limits()[0] == [300, 900]


def test_close_twice_is_like_once(here: ScriptedBoards) -> None:
    keeper = _make_keeper(here)
    keeper.actuators[0].apply(Settings(sm_mhz=900))
    assert keeper.close() == []
    calls = len(here.read_calls())
    assert keeper.close() == []
    assert len(here.read_calls()) == calls


def test_lost_lease_is_renewed_with_the_last_settings(
    here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat renews the lease while the loop sets other limits."""
    with _make_keeper(here) as keeper:
        (actuator,) = keeper.actuators
        actuator.apply(Settings(sm_mhz=900))
        new_guard = keeper._restart_guard

        def meanwhile() -> None:
            new_guard()
            actuator.apply(Settings(sm_mhz=1200))

        monkeypatch.setattr(keeper, "_restart_guard", meanwhile)
        end_lease(actuator.lease, NvmlLimits(here.get_uuid()))
        assert here.wait_for(lambda b: b.read_limits()[0] == [300, 1200], 10) < 10
        time.sleep(2 * HEARTBEAT_INTERVAL_S)
        assert here.read_limits()[0] == [300, 1200]
        assert actuator.settings() == Settings(sm_mhz=1200)


def test_unrestorable_limit_is_reported_and_stays_leased(here: ScriptedBoards) -> None:
    events: list[str] = []
    began = time.monotonic()
    with _make_keeper(here, tell=events) as keeper:
        keeper.actuators[0].apply(Settings(sm_mhz=900, memory_mhz=5001))
        here.update_script(fail={"nvmlDeviceResetGpuLockedClocks": 999})
    assert time.monotonic() - began < 10  # The end of a job must not be delayed.
    assert len(events) == 1
    assert "ekc govern --restore" in events[0]
    assert here.read_limits() == ([300, 900], None, 280_000)
    here.update_script(fail={})
    assert here.wait_for(lambda b: not list(b.leases.glob("*.json")), 10) < 10  # The guard kept trying.
    assert here.read_limits() == (None, None, 280_000)


def test_broken_guard_sets_nothing(here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "")  # The guard has no scripted GPU and no real one.
    with pytest.raises(ActuatorError, match="guard process did not start"):
        _make_keeper(here)
    assert not list(here.leases.glob("*.json"))
    assert not here.read_calls()


def test_missing_guard_process_sets_nothing(here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ActuatorError, match=r"did not start \(No such file or directory\), so nothing"):
        _make_keeper(here)
    assert not list(here.leases.glob("*.json"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1, "id": 3}', "no json"])
def test_bad_lease_file_is_reported(here: ScriptedBoards, text: str) -> None:
    lease_file.make_lease_path(here.get_uuid()).write_text(text)
    with pytest.raises(RecordError, match="is no lease"):
        lease_file.read_lease(lease_file.make_lease_path(here.get_uuid()))
    (restored,) = restore_all()
    assert restored.problem is not None
    with pytest.raises(RecordError):
        _make_keeper(here)


def test_lease_of_another_version_is_reported(here: ScriptedBoards) -> None:
    lease_file.make_lease_path(here.get_uuid()).write_text(json.dumps({"version": 99}))
    with pytest.raises(RecordError, match="another version"):
        lease_file.read_lease(lease_file.make_lease_path(here.get_uuid()))


def test_lease_from_before_a_reboot_is_only_erased(here: ScriptedBoards) -> None:
    with _make_keeper(here) as keeper:
        keeper.actuators[0].apply(Settings(sm_mhz=900, power_w=200.0))
        left = keeper.actuators[0].lease
    assert not left.predates_boot
    calls = len(here.read_calls())
    here.set_state(0, limit_mw=150_000)  # An administrator, after the reboot.
    lease_file.write_lease(replace(left, boot="another"))
    assert [str(x) for x in restore_all()] == [
        f"{left.label}: the machine has been started since; nothing put back"
    ]
    assert not lease_file.make_lease_path(here.get_uuid()).exists()
    assert len(here.read_calls()) == calls


def test_lease_without_changes_says_so(here: ScriptedBoards) -> None:
    with _make_keeper(here) as keeper:
        left = keeper.actuators[0].lease
    lease_file.write_lease(left)
    assert [str(x) for x in restore_all()] == [f"{left.label}: nothing had been set"]
    assert not here.read_calls()


def test_folder_writable_by_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKC_RUN_DIR", str(tmp_path / "open"))
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(InvalidInput, match="not safe"):
        lease_file.find_lease_folder()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EKC_RUN_DIR", str(tmp_path / "file"))
    with pytest.raises(InvalidInput, match="EKC_RUN_DIR"):
        lease_file.find_lease_folder()
