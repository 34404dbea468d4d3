"""The events of a run: to a callback, to a logger, and what a callback can do to the run."""

from __future__ import annotations

import dataclasses
import json
import logging
import sqlite3
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ekc
from ekc import devices
from ekc.devices.recording import read_recording
from ekc.errors import InvalidInput, NothingLegal
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.data.candidate import Candidate
from ekc.search.data.events import EVENTS, STAGES, EventListener
from ekc.search.data.result import INTERRUPTED
from ekc.search.loop.reporter import Reporter
from ekc.search.tuning_result import TuningResult
from tests.devices.recording.helpers import OP, record
from tests.search.helpers import MV, TRIALS, make_options, rows, tune, winner


class Heard(list[ekc.TuningEvent]):
    """A callback that keeps events, and answers one of them."""

    def __init__(self, at: str = "", answer: object = None) -> None:
        super().__init__()
        self.at, self.answer = at, answer
        self.threads: set[threading.Thread] = set()

    def __call__(self, event: ekc.TuningEvent) -> object:
        self.append(event)
        self.threads.add(threading.current_thread())
        if event.name != self.at:
            return None
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def named(self, name: str) -> list[ekc.TuningEvent]:
        return [e for e in self if e.name == name]


def test_callback_gets_all_events_of_a_run(plain_run: TuningResult, caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    with caplog.at_level(logging.DEBUG, "ekc.tune"):
        result = tune(callback=heard)
    assert winner(result) == winner(plain_run), "listening changes nothing"
    assert {e.name for e in heard} <= set(EVENTS)
    assert {e.stage for e in heard} <= set(STAGES)
    assert heard.threads == {threading.current_thread()}
    assert (heard[0].name, heard[-1].name) == ("start", "end")
    assert [e.tried for e in heard.named("trial")] == list(range(1, TRIALS + 1))
    assert [e.trial.schedule for e in heard.named("trial")] == [t.schedule for t in result.trials]  # type: ignore[union-attr]
    seconds = [e.seconds for e in heard]
    assert seconds == sorted(seconds)
    assert seconds[-1] <= result.seconds + 1
    last = heard[-1]
    assert last.best is not None
    assert (last.best.latency_s, last.best.energy_j) == (result.best.latency_s, result.best.energy_j)
    assert (last.tried, last.metered, last.failed) == (TRIALS, result.metered_count, 0)
    assert len(heard.named("check")) >= 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        last.tried = 0  # type: ignore[misc]

    assert [r.event for r in caplog.records] == list(heard), "the logger takes the same"  # type: ignore[attr-defined]
    assert {r.name for r in caplog.records} == {"ekc.tune"}
    assert {r.levelname for r in caplog.records if r.event.name == "trial"} == {"DEBUG"}  # type: ignore[attr-defined]
    assert {r.levelname for r in caplog.records if r.event.name == "end"} == {"INFO"}  # type: ignore[attr-defined]
    assert f"matvec on a100 (simulated): end: done; {TRIALS}/{TRIALS} trials" in caplog.messages[-1]
    assert not any(logging.getLogger(name).handlers for name in ("ekc", "ekc.tune"))


def test_best_of_events_is_within_slowdown() -> None:
    heard = Heard()
    tune(callback=heard, max_slowdown=0.01)
    for event in heard.named("trial"):
        assert event.best is not None
        assert event.fastest is not None
        assert event.best.latency_s <= 1.01 * event.fastest.latency_s  # type: ignore[operator]


@pytest.mark.parametrize(("at", "answer"), [("start", True), ("trial", np.bool_(True))])
def test_callback_that_returns_true_ends_the_run(at: str, answer: object) -> None:
    heard = Heard(at, answer)
    result = tune(callback=heard)
    assert result.stopped == "stopped by the callback"
    assert result.trial_count == 1
    assert "stopped by the callback" in result.summary()
    assert result.best.checked
    assert (heard[-1].name, heard[-1].text) == ("end", "stopped by the callback")


def make_reporter(*listeners: EventListener) -> Reporter:
    return Reporter(MV, devices.open("a100"), make_options(4), listeners)


def test_seconds_left_follow_the_rate_since_round_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds of preparation do not count: 3 trials in 6 s leave 30 s for 15 more."""
    heard = Heard()
    reporter = Reporter(MV, devices.open("a100"), make_options(18), (heard,))
    trials: list[Candidate] = []
    reporter.candidates = trials
    now = [reporter.options.requested_at_s + 10.0]
    monkeypatch.setattr("ekc.search.loop.reporter.time", SimpleNamespace(monotonic=lambda: now[0]))
    reporter.enter_stage("measure", 1)
    now[0] += 6.0
    failed = Candidate(make_naive_schedule(MV), "naive", np.zeros(0, np.float32), 0, 0, 0, 1, "compile: no")
    trials += [failed] * 3
    reporter.enter_stage("meter", 1)
    reporter.enter_stage("breed", 2)
    assert [e.seconds_left for e in heard] == [None, None, pytest.approx(30.0)]
    assert heard[-1].stage_text == "breeding schedules (round 2, about 30 s left)"
    reporter.options = dataclasses.replace(reporter.options, time_budget_s=20.0)
    reporter.enter_stage("measure", 2)
    assert heard[-1].seconds_left == pytest.approx(4.0)


@pytest.mark.parametrize("answer", [1, "stop", np.int64(1), np.bool_(False), np.ones(1, bool)])
def test_other_values_of_a_callback_end_no_run(answer: object) -> None:
    reporter = make_reporter(Heard("trial", answer))
    reporter.report("trial")
    assert not reporter.is_stop_requested


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), InvalidInput("mine"), StopIteration("mine")])
def test_listener_that_raised_is_not_called_again(error: Exception) -> None:
    failing, other = Heard("check", error), Heard()
    reporter = make_reporter(failing, other)
    with pytest.raises(type(error), match=r"^mine$"):
        reporter.report("check")
    reporter.report("error")
    assert [e.name for e in failing] == ["check"]
    assert [e.name for e in other] == ["error"]


def test_exception_of_callback_reaches_caller_and_measurements_stay(tmp_path: Path) -> None:
    file, heard = tmp_path / "t.db", Heard("check", InvalidInput("mine"))
    with pytest.raises(InvalidInput, match=r"^mine$"):
        tune(callback=heard, records=file, trials=4)
    assert heard[-1].name == "check"
    assert rows(file) > 4
    tune(records=file, trials=4)
    with sqlite3.connect(file) as connection:
        (twice,) = connection.execute(
            "select count(*) - count(distinct schedule_digest) from trials where kind = 'timing' and draw = 0"
        ).fetchone()
    assert twice == 0, "the second run measured none of them again"


def test_ctrl_c_in_callback_interrupts_run() -> None:
    heard = Heard("metering", KeyboardInterrupt())
    assert tune(callback=heard).stopped == INTERRUPTED
    assert (heard[-1].name, heard[-1].text) == ("end", INTERRUPTED)


def test_run_without_result_ends_in_error_event(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    monkeypatch.setattr("ekc.search.loop.finals.Finals.pick_finalists", lambda *_: [])
    with pytest.raises(NothingLegal) as raised:
        tune(callback=heard, trials=2)
    assert (heard[-1].name, heard[-1].text) == ("error", str(raised.value))


def test_replay_and_clock_search_report_events(tmp_path: Path) -> None:
    heard, file = Heard(), record(tmp_path / "r.gz")
    ekc.tune(OP, target=f"recorded:{file}", progress=False, callback=heard, clocks="search")
    assert heard[0].device == f"a100 (simulated), recorded {read_recording(file).origin.created[:10]}"
    assert heard[0].simulated
    assert any("compile: made up for the test" in e.trial.status for e in heard.named("trial") if e.trial)
    assert heard[-1].failed >= 1
    over = Heard()
    tune(trials=2, clocks="search", callback=over)
    assert len({e.trial.clock_mhz for e in over.named("clock") if e.trial}) > 1
    for event in (*heard, *over):
        json.dumps(event.to_json(), allow_nan=False)
