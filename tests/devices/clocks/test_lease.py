"""The leased actuator: bounds, the lease that is written before a limit is set, and restored limits."""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies
from hypothesis.strategies import SearchStrategy

from ekc.devices.clocks import lease as leases
from ekc.devices.clocks import lease_file
from ekc.devices.clocks.lease import LeasedActuator, restore_all
from ekc.devices.clocks.limits import (
    LIMITS,
    ActuatorReference,
    Limit,
    LimitReading,
    NvmlLimits,
    OfferedSettings,
    Settings,
)
from ekc.devices.clocks.restore import end_lease
from ekc.errors import ActuatorError, InvalidInput, RecordError
from tests.devices.clocks.helpers import make_keeper, read_lease
from tests.devices.recording.full_disk import no_room_beyond
from tests.scripted.nvml.boards import ScriptedBoards


@contextmanager
def lease_gpu(boards: ScriptedBoards, before: Settings | None = None) -> Iterator[LeasedActuator]:
    """The leased actuator of the first board."""
    with make_keeper(boards, before) as keeper:
        yield keeper.actuators[0]


def test_apply_none_restores_and_never_loosens(here: ScriptedBoards) -> None:
    here.set_state(0, sm_lock=[300, 1500])
    with lease_gpu(here, Settings(sm_mhz=1500)) as actuator:
        offered = actuator.list_offered()
        assert offered.sm_mhz[-1] == 1500
        assert offered.power_w[-1] == 280.0
        assert offered.memory_mhz == (405, 5001, 9251)
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
    with lease_gpu(here) as actuator:
        actuator.apply(Settings(sm_mhz=900))
        here.set_state(0, memory_lock=[405, 5001], limit_mw=200_000)  # An administrator, meanwhile.
    assert here.read_limits() == (None, [405, 5001], 200_000)


def test_lease_is_written_before_a_limit_is_set(here: ScriptedBoards) -> None:
    with lease_gpu(here) as actuator:
        lease = read_lease(here)
        assert lease == actuator.lease
        assert lease.touched == ()
        here.update_script(fail={"nvmlDeviceSetGpuLockedClocks": 999})
        with pytest.raises(ActuatorError, match="the SM clock"):
            actuator.apply(Settings(sm_mhz=900))
        lease = read_lease(here)
        assert lease.touched == ("sm_mhz",)
        assert lease.previous == Settings(power_w=280.0)
    assert not lease_file.make_lease_path(here.get_uuid()).exists()


def test_limit_in_force_is_not_set_again(here: ScriptedBoards) -> None:
    with lease_gpu(here) as actuator:
        actuator.apply(Settings())
        assert not here.read_calls()
        actuator.apply(Settings(sm_mhz=900))
        actuator.apply(Settings(sm_mhz=900))
        assert len(here.read_calls()) == 1


def test_failed_limit_is_restored_too(here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    with lease_gpu(here) as actuator:
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
    with lease_gpu(here) as actuator:
        for _ in range(2):
            with (
                no_room_beyond(0),
                pytest.raises(RecordError, match=r"cannot write the lease .*; nothing was set"),
            ):
                actuator.apply(Settings(sm_mhz=900))
        assert not here.read_calls()
        actuator.apply(Settings(sm_mhz=900))
        lease = read_lease(here)
        assert lease.touched == ("sm_mhz",)


@pytest.mark.parametrize("suffix", [".lock", ".governor"])
def test_lock_file_that_cannot_be_opened_keeps_nothing_from_going_back(
    here: ScriptedBoards, suffix: str
) -> None:
    lock = lease_file.make_lease_path(here.get_uuid()).with_suffix(suffix)
    lock.mkdir()
    with lease_gpu(here) as actuator:
        actuator.apply(Settings(sm_mhz=900))
        assert here.read_limits()[0] == [300, 900]
    assert here.is_restored()


def test_close_twice_is_like_once(here: ScriptedBoards) -> None:
    keeper = make_keeper(here)
    keeper.actuators[0].apply(Settings(sm_mhz=900))
    assert keeper.close() == []
    calls = len(here.read_calls())
    assert keeper.close() == []
    assert len(here.read_calls()) == calls


def test_lost_lease_is_renewed_with_the_last_settings(
    here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat renews the lease while the loop sets other limits."""
    with make_keeper(here) as keeper:
        (actuator,) = keeper.actuators
        actuator.apply(Settings(sm_mhz=900))
        new_guard = keeper._restart_guard

        def meanwhile() -> None:
            new_guard()
            actuator.apply(Settings(sm_mhz=1200))

        monkeypatch.setattr(keeper, "_restart_guard", meanwhile)
        end_lease(actuator.lease, NvmlLimits(here.get_uuid()))
        assert here.wait_for(lambda b: b.read_limits()[0] == [300, 1200], 10) < 10
        time.sleep(2 * leases.HEARTBEAT_INTERVAL_S)
        assert here.read_limits()[0] == [300, 1200]
        assert actuator.settings() == Settings(sm_mhz=1200)


def test_unrestorable_limit_is_reported_and_stays_leased(here: ScriptedBoards) -> None:
    events: list[str] = []
    began = time.monotonic()
    with make_keeper(here, on_message=events.append) as keeper:
        keeper.actuators[0].apply(Settings(sm_mhz=900, memory_mhz=5001))
        here.update_script(fail={"nvmlDeviceResetGpuLockedClocks": 999})
    assert time.monotonic() - began < 10  # The end of a job must not be delayed.
    assert len(events) == 1
    assert "ekc govern --restore" in events[0]
    assert here.read_limits() == ([300, 900], None, 280_000)
    here.update_script(fail={})
    assert here.wait_for(lambda b: not b.has_lease(), 10) < 10  # The guard kept trying.
    assert here.read_limits() == (None, None, 280_000)


def test_broken_guard_sets_nothing(here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "")  # The guard has no scripted GPU and no real one.
    with pytest.raises(ActuatorError, match="guard process did not start"):
        make_keeper(here)
    assert not here.has_lease()
    assert not here.read_calls()


def test_missing_guard_process_sets_nothing(here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ActuatorError, match=r"did not start \(No such file or directory\), so nothing"):
        make_keeper(here)
    assert not here.has_lease()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1, "id": 3}', "no json"])
def test_bad_lease_file_is_reported(here: ScriptedBoards, text: str) -> None:
    lease_file.make_lease_path(here.get_uuid()).write_text(text)
    with pytest.raises(RecordError, match="is no lease"):
        read_lease(here)
    (restored,) = restore_all()
    assert restored.problem is not None
    with pytest.raises(RecordError):
        make_keeper(here)


def test_lease_of_another_version_is_reported(here: ScriptedBoards) -> None:
    lease_file.make_lease_path(here.get_uuid()).write_text(json.dumps({"version": 99}))
    with pytest.raises(RecordError, match="another version"):
        read_lease(here)


def test_lease_from_before_a_reboot_is_only_erased(here: ScriptedBoards) -> None:
    with lease_gpu(here) as actuator:
        actuator.apply(Settings(sm_mhz=900, power_w=200.0))
        left = actuator.lease
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
    with lease_gpu(here) as actuator:
        left = actuator.lease
    lease_file.write_lease(left)
    assert [str(x) for x in restore_all()] == [f"{left.label}: nothing had been set"]
    assert not here.read_calls()


def test_folder_writable_by_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKC_RUN_DIR", str(tmp_path / "open"))
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(InvalidInput, match="not safe"):
        lease_file.prepare_lease_folder()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EKC_RUN_DIR", str(tmp_path / "file"))
    with pytest.raises(InvalidInput, match="EKC_RUN_DIR"):
        lease_file.prepare_lease_folder()


GEARS = OfferedSettings((600, 900, 1200, 1500), (405, 5001, 9251), (100.0, 200.0, 300.0))


class InMemoryLimits:
    """Limits in memory, with a driver that can refuse."""

    label = "a card in memory"

    def __init__(self, before: Settings) -> None:
        self.reference = ActuatorReference("memory", f"GPU-{uuid.uuid4()}")
        self.limits = before
        self.is_refusing = False
        self.limits_history: list[Settings] = []

    def list_offered(self) -> OfferedSettings:
        return GEARS

    def settings(self) -> Settings:
        return Settings(power_w=self.limits.power_w)

    def read_board(self) -> LimitReading:
        return LimitReading(None, None, None, None, False, True)

    def check_permission(self) -> None: ...

    def set_limit(self, limit: Limit, value: float | None) -> None:
        if self.is_refusing:
            raise ActuatorError("refused")
        self.limits = replace(self.limits, **{limit: value})
        self.limits_history.append(self.limits)


def _limit_settings() -> SearchStrategy[Settings]:
    choices = (strategies.sampled_from([None, *getattr(GEARS, limit)]) for limit in LIMITS)
    return strategies.builds(Settings, *choices)


def _lease_moves() -> SearchStrategy[list[tuple[str, Settings]]]:
    kinds = strategies.sampled_from(["apply", "refused", "guard steps in"])
    return strategies.lists(strategies.tuples(kinds, _limit_settings()), max_size=12)


@pytest.fixture(autouse=True, scope="module")
def _lease_folder(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EKC_RUN_DIR", str(tmp_path_factory.mktemp("leases")))
        yield


@given(before=_limit_settings(), moves=_lease_moves())
@settings(max_examples=150, deadline=None)
def test_all_limits_are_restored(before: Settings, moves: list[tuple[str, Settings]]) -> None:
    card = InMemoryLimits(before)

    def renew() -> None:
        leased.retake()
        leased.reapply()

    leased = LeasedActuator(card, before, renew)
    for kind, wanted in moves:
        card.is_refusing = kind == "refused"
        if kind == "guard steps in":
            end_lease(leased.lease, card)
            assert card.limits == before
        try:
            leased.apply(wanted)
        except ActuatorError:
            continue
        assert leased.settings() == wanted
        for limit in LIMITS:
            asked, was = getattr(wanted, limit), getattr(before, limit)
            in_force = getattr(card.limits, limit)
            assert in_force == (was if asked is None else asked if was is None else min(asked, was))
    card.is_refusing = False
    leased.end()
    assert card.limits == before
    assert not lease_file.make_lease_path(card.reference.gpu).exists()
    for limits in card.limits_history:
        for limit in LIMITS:
            was = getattr(before, limit)
            assert was is None or getattr(limits, limit) <= was
