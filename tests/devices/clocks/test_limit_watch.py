"""Limits that others set while a lease is held are noticed, not set again, and kept at the end."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from ekc.devices.clocks import lease, leased_actuator
from ekc.devices.clocks.lease_file import write_lease
from ekc.devices.clocks.leased_actuator import READINGS_ABOVE, READINGS_BELOW, ClockWatch
from ekc.devices.clocks.limits import LimitReading, LimitTaken, OfferedSettings, Settings
from ekc.devices.clocks.restore import restore_all
from tests.devices.clocks.helpers import make_keeper, make_lease, read_lease
from tests.scripted.nvml.boards import ScriptedBoards

BUSY = LimitReading(280.0, 350.0, None, None, is_busy=True, is_throttled=False)
TIMEOUT_S = 20.0


def feed(watch: ClockWatch, clocks: list[float], reading: LimitReading = BUSY, start_s: float = 100) -> str:
    """The sign in the last of some readings, one each half second; the ones before must show none."""
    shown = [watch.add_reading(mhz, reading, start_s + 0.5 * place) for place, mhz in enumerate(clocks)]
    assert not any(shown[:-1])
    return shown[-1]


def test_clock_above_our_limit_is_anothers() -> None:
    watch = ClockWatch()
    watch.note_limit(1200, 0)
    assert not feed(watch, [1200, 1215, 1980, 1200, 1200])
    assert "1980 MHz, above the limit of 1200 MHz" in feed(watch, [1200, *[1980] * READINGS_ABOVE])
    watch = ClockWatch()
    assert not feed(watch, [1980] * 20)


def test_readings_right_after_a_change_of_ours_do_not_count() -> None:
    watch = ClockWatch()
    watch.note_limit(1200, 100.0)
    assert not feed(watch, [1980, 1980, 1200], start_s=100.0)


def test_steady_low_clock_without_a_reason_is_anothers() -> None:
    watch = ClockWatch()
    assert not feed(watch, [1980] * 4)
    assert "stays at 1500 MHz, below 1980 MHz" in feed(watch, [1500] * READINGS_BELOW)
    watch.note_limit(1200, 0)
    assert not feed(watch, [1200] * 10)
    assert "stays at 1140 MHz, below 1200 MHz" in feed(watch, [1140] * READINGS_BELOW)


@pytest.mark.parametrize(
    ("clocks", "reading"),
    [
        ([1500] * 20, replace(BUSY, is_throttled=True)),
        ([210] * 20, replace(BUSY, is_busy=False)),
        ([1500, 1600] * 10, BUSY),
        ([1900] * 20, BUSY),
        ([1500] * (READINGS_BELOW - 1) + [1980], BUSY),
    ],
    ids=["throttled", "idle", "unsteady", "as a warm card", "for a moment"],
)
def test_other_low_clocks_are_not(clocks: list[float], reading: LimitReading) -> None:
    watch = ClockWatch()
    assert not feed(watch, [1980] * 4)
    assert not feed(watch, clocks, reading)


def test_our_own_limit_that_binds_less_than_others_is_no_sign() -> None:
    """A cap or the work may keep the clock below our limit; it was never at the limit."""
    watch = ClockWatch()
    assert not feed(watch, [1980] * 4)
    watch.note_limit(1500, 0)
    assert not feed(watch, [1440] * 20)


@pytest.fixture
def quick_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten readings a second, as the scripted board needs no time to settle."""
    monkeypatch.setattr(lease, "WATCH_INTERVAL_S", 0.1)
    monkeypatch.setattr(leased_actuator, "SETTLE_S", 0.2)
    monkeypatch.setattr(leased_actuator, "SUSPICION_POLL_S", 0.05)


def wait_until_taken(boards: ScriptedBoards, messages: list[str]) -> None:
    assert boards.wait_for(lambda _: messages, TIMEOUT_S) < TIMEOUT_S


def see_busy_board(boards: ScriptedBoards, keeper: object) -> None:
    """Wait until the watch has seen the busy board at its full clock."""
    watch = keeper.actuators[0]._watches["sm_mhz"]
    assert boards.wait_for(lambda _: watch.highest_mhz > 1900, TIMEOUT_S) < TIMEOUT_S


@pytest.mark.usefixtures("quick_watch")
def test_cap_of_others_is_kept(here: ScriptedBoards) -> None:
    messages: list[str] = []
    with make_keeper(here, on_message=messages.append) as keeper:
        (actuator,) = keeper.actuators
        actuator.apply(Settings(sm_mhz=900, power_w=150.0))
        here.set_state(0, limit_mw=200_000)
        wait_until_taken(here, messages)
        assert "others have set the power cap: it is 200 W, and not 150 W" in messages[0]
        assert actuator.taken_limits() == {"power_w"}
        assert actuator.list_offered().power_w == ()
        assert actuator.list_offered().sm_mhz
        assert read_lease(here).touched == ("sm_mhz",)
        with pytest.raises(LimitTaken, match="others have set the power cap"):
            actuator.apply(Settings(sm_mhz=600, power_w=150.0))
        assert here.read_limits() == ([300, 600], None, 200_000)
        here.set_state(0, limit_mw=220_000)
    assert here.read_limits() == (None, None, 220_000)
    assert len(messages) == 1


@pytest.mark.usefixtures("quick_watch")
def test_cap_of_others_before_any_of_ours_is_not_replaced(here: ScriptedBoards) -> None:
    """Set a moment before ours, not seen by the watch yet."""
    with make_keeper(here) as keeper:
        here.set_state(0, limit_mw=200_000)
        with pytest.raises(LimitTaken):
            keeper.actuators[0].apply(Settings(power_w=150.0))
        assert here.read_limits() == (None, None, 200_000)
    assert here.read_limits() == (None, None, 200_000)


@pytest.mark.usefixtures("quick_watch")
@pytest.mark.parametrize("lock", [None, [300, 1800], [300, 600]], ids=["reset", "raised", "lowered"])
def test_clock_of_others_is_kept(here: ScriptedBoards, lock: list[int] | None) -> None:
    messages: list[str] = []
    with make_keeper(here, on_message=messages.append) as keeper:
        (actuator,) = keeper.actuators
        see_busy_board(here, keeper)
        actuator.apply(Settings(sm_mhz=1200, memory_mhz=5001))
        here.set_state(0, sm_lock=lock)
        wait_until_taken(here, messages)
        assert "others have set the SM clock" in messages[0]
        assert actuator.list_offered() == OfferedSettings()
        actuator.apply(Settings())
        assert here.read_limits() == (lock, None, 280_000)
    assert here.read_limits() == (lock, None, 280_000)


@pytest.mark.usefixtures("quick_watch")
def test_clock_of_others_set_just_before_ours_is_not_replaced(here: ScriptedBoards) -> None:
    with make_keeper(here) as keeper:
        (actuator,) = keeper.actuators
        see_busy_board(here, keeper)
        here.set_state(0, sm_lock=[300, 600])
        watch = actuator._watches["sm_mhz"]
        assert here.wait_for(lambda _: watch.is_suspicious, TIMEOUT_S) < TIMEOUT_S
        with pytest.raises(LimitTaken):
            actuator.apply(Settings(sm_mhz=1200))
        assert here.read_limits() == ([300, 600], None, 280_000)


@pytest.mark.usefixtures("quick_watch")
def test_throttled_board_is_governed_on(here: ScriptedBoards) -> None:
    messages: list[str] = []
    with make_keeper(here, on_message=messages.append) as keeper:
        (actuator,) = keeper.actuators
        see_busy_board(here, keeper)
        here.update_board(0, reasons=0x4)
        here.set_state(0, sm_lock=[300, 1500])  # In place of the driver, which lowers the clock.
        watch = actuator._watches["sm_mhz"]
        for _ in range(2 * READINGS_BELOW):
            actuator.watch()
            time.sleep(0.05)
        assert not watch.is_suspicious
        actuator.apply(Settings(sm_mhz=1200))
    assert messages == []
    assert here.read_limits()[0] is None


@pytest.mark.usefixtures("quick_watch")
def test_guard_that_restored_is_not_taken_for_another(here: ScriptedBoards) -> None:
    """The lease is over then; whoever ended it has set the limits."""
    messages: list[str] = []
    with make_keeper(here, on_message=messages.append) as keeper:
        (actuator,) = keeper.actuators
        actuator.apply(Settings(sm_mhz=900, power_w=150.0))
        assert restore_as_another(here)
        for _ in range(2 * READINGS_ABOVE):
            actuator.watch()
        assert here.wait_for(lambda b: b.read_limits() == ([300, 900], None, 150_000), TIMEOUT_S) < TIMEOUT_S
    assert all("others" not in line for line in messages)
    assert here.are_limits_back()


@pytest.mark.usefixtures("quick_watch")
def test_guard_that_restores_a_late_governor_is_not_taken_for_another(
    here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease lasts for a moment longer than the settings."""
    messages: list[str] = []
    with make_keeper(here, on_message=messages.append) as keeper:
        (actuator,) = keeper.actuators
        actuator.apply(Settings(sm_mhz=900, power_w=150.0))
        keeper._late_s = time.monotonic()
        here.set_state(0, sm_lock=None, limit_mw=280_000)
        end_s = time.monotonic() + leased_actuator.SETTLE_S
        while time.monotonic() < end_s:
            actuator.watch()
            time.sleep(0.1)
        assert actuator.taken_limits() == set()
        keeper._late_s = 0.0
        wait_until_taken(here, messages)
    assert "others have set" in messages[0]


def restore_as_another(boards: ScriptedBoards) -> bool:
    """End the lease as the guard of a stopped governor does."""
    from ekc.devices.clocks.restore import end_lease

    return bool(end_lease(read_lease(boards)))


@pytest.mark.usefixtures("quick_watch")
def test_cap_that_others_set_after_a_kill_is_kept(here: ScriptedBoards) -> None:
    here.set_state(0, sm_lock=[300, 900], limit_mw=200_000)
    write_lease(make_lease(here.get_uuid()))
    (result,) = restore_all()
    assert str(result) == (
        "a label: previous settings are back, but the cap of 200 W, which someone else set, is kept"
    )
    assert here.read_limits() == (None, None, 200_000)
