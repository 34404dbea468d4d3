"""Limits that others set while a job is governed: their readings are discarded, and they stay."""

from __future__ import annotations

import subprocess

import pytest

from ekc.governor.event_records import Applied, Chosen, LimitsTaken, Measured
from ekc.governor.protocols import Limit, LimitTaken, OfferedSettings, Settings
from ekc.governor.simulation.simulated_run import SimulatedRun
from tests.governor.helpers import (
    end_job,
    govern_run,
    make_iterations,
    make_job,
    python_command,
    run_at_default,
    select_events,
    start_governing,
)
from tests.scripted.nvml.boards import ScriptedBoards

SLEEP = python_command("import time; print('ready', flush=True); time.sleep(60)")


class TakenRun(SimulatedRun):
    """A run in which others set a limit at some time."""

    limit: Limit = "sm_mhz"
    taken_s = 120.0

    def taken_limits(self) -> frozenset[Limit]:
        return frozenset({self.limit} if self.now() > self.taken_s else ())

    def list_offered(self) -> OfferedSettings:
        found = super().list_offered()
        if not self.taken_limits():
            return found
        return (
            OfferedSettings() if self.limit == "sm_mhz" else OfferedSettings(found.sm_mhz, found.memory_mhz)
        )

    def apply(self, settings: Settings) -> None:
        super().apply(settings)
        if any(getattr(settings, x) is not None for x in self.taken_limits()):
            raise LimitTaken("others have set it")


def find_first_candidate_s() -> float:
    events = govern_run(TakenRun(make_job([make_iterations(900)])))
    (first, *_) = [e for e in select_events(events, Applied) if e.settings != Settings()]
    return first.at_s


def test_reading_under_limits_of_others_is_discarded() -> None:
    """In the middle of the first candidate's reading."""
    run = TakenRun(make_job([make_iterations(900)]))
    run.taken_s = find_first_candidate_s() + 4
    events = govern_run(run)
    (taken,) = select_events(events, LimitsTaken)
    assert taken.limits == ("sm_mhz",)
    assert "others have set the SM clock: readings until now are discarded" in taken.format_line()
    assert not [e for e in select_events(events, Measured) if e.purpose != "default"]
    assert not select_events(events, Chosen)
    later = [e.settings for e in select_events(events, Applied) if e.at_s > taken.at_s]
    assert set(later) == {Settings()}
    assert not run.is_running()


def test_search_begins_anew_where_others_set_the_cap() -> None:
    run = TakenRun(make_job([make_iterations(1500)]))
    run.limit, run.taken_s = "power_w", find_first_candidate_s() + 4
    events = govern_run(run)
    (taken,) = select_events(events, LimitsTaken)
    (chosen, *_) = select_events(events, Chosen)
    assert chosen.at_s > taken.at_s
    before = [e for e in select_events(events, Measured) if e.at_s < taken.at_s]
    assert [e.purpose for e in before] == ["default"]
    assert run.true_j < run_at_default(make_job([make_iterations(1500)])).true_j


@pytest.mark.slow
def test_limits_of_others_survive_a_governed_job(one: ScriptedBoards) -> None:
    """An administrator sets a cap and then a clock, while `ekc govern` measures the default."""
    process = start_governing(one, *SLEEP)
    one.set_state(0, limit_mw=200_000)
    read_line(process, "others have set the power cap: it is 200 W, and not 280 W")
    # The end of the first recording: by then the watch has seen the busy board at its full clock.
    events = one.folder / "events"
    assert one.wait_for(lambda _: "LimitsTaken" in events.read_text(), 60) < 60
    one.set_state(0, sm_lock=[300, 900])
    read_line(process, "others have set the SM clock: it stays at 900 MHz")
    end_job(process)
    assert one.read_limits() == ([300, 900], None, 200_000)
    assert not one.has_lease()


def read_line(process: subprocess.Popen[str], words: str) -> None:
    """Read what `ekc govern` says, up to a line with these words; the job's end ends the wait."""
    assert any(words in line for line in process.stderr)
