"""The events of a run: to a callback, to a logger, and what a callback can do to the run."""

from __future__ import annotations

import dataclasses
import json
import logging
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ekc
from ekc.devices.recording import read_recording
from ekc.errors import InvalidInput, NothingLegal
from ekc.search.data.events import EVENTS, STAGES
from ekc.search.data.result import INTERRUPTED
from tests.devices.recording.helpers import OP, record
from tests.search.runs import TRIALS, rows, tune, winner


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


def test_a_callback_hears_the_whole_run(caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    with caplog.at_level(logging.DEBUG, "ekc.tune"):
        result = tune(callback=heard)
    assert winner(result) == winner(tune()), "listening changes nothing"
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


def test_the_best_so_far_is_never_slower_than_allowed() -> None:
    heard = Heard()
    tune(callback=heard, max_slowdown=0.01)
    for event in heard.named("trial"):
        assert event.best is not None
        assert event.fastest is not None
        assert event.best.latency_s <= 1.01 * event.fastest.latency_s  # type: ignore[operator]


@pytest.mark.parametrize(("at", "answer"), [("start", True), ("trial", np.bool_(True))])
def test_a_callback_that_returns_true_ends_the_run_with_the_best_so_far(at: str, answer: object) -> None:
    heard = Heard(at, answer)
    result = tune(callback=heard)
    assert result.stopped == "stopped by the callback"
    assert result.trial_count == 1
    assert "stopped by the callback" in result.summary()
    assert result.best.checked
    assert (heard[-1].name, heard[-1].text) == ("end", "stopped by the callback")


async def wait(_: ekc.TuningEvent) -> bool:
    return True


def generate(_: ekc.TuningEvent) -> Iterator[bool]:
    yield True


async def generate_slowly(_: ekc.TuningEvent) -> AsyncIterator[bool]:
    yield True


class Waiting:
    async def __call__(self, _: ekc.TuningEvent) -> bool:
        return True


@pytest.mark.parametrize(
    "callback", [wait, generate, generate_slowly, Waiting(), partial(wait), Waiting().__call__]
)
def test_a_callback_of_which_a_call_runs_nothing_is_refused(callback: Any) -> None:
    with pytest.raises(
        InvalidInput, match=r"^callback: .* is async or a generator, .*; give a plain function"
    ):
        tune(callback=callback)


@pytest.mark.parametrize("answer", [1, "stop", np.int64(1), np.bool_(False), np.ones(1, bool)])
def test_no_other_value_ends_a_run(answer: object) -> None:
    assert tune(callback=Heard("trial", answer), trials=3).stopped == ""


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), InvalidInput("mine"), StopIteration("mine")])
def test_what_a_callback_raises_reaches_the_caller_and_measurements_stay(
    error: Exception, tmp_path: Path
) -> None:
    file, heard = tmp_path / "t.db", Heard("check", error)
    with pytest.raises(type(error), match=r"^mine$"):
        tune(callback=heard, records=file, trials=4)
    assert heard[-1].name == "check", "it is not called about the end that it caused"
    kept = rows(file)
    assert kept > 4
    tune(records=file, trials=4)
    with sqlite3.connect(file) as connection:
        (twice,) = connection.execute(
            "select count(*) - count(distinct schedule_digest) from trials where kind = 'timing' and draw = 0"
        ).fetchone()
    assert twice == 0, "the second run measured none of them again"


def test_ctrl_c_in_a_callback_is_ctrl_c() -> None:
    heard = Heard("metering", KeyboardInterrupt())
    assert tune(callback=heard).stopped == INTERRUPTED
    assert (heard[-1].name, heard[-1].text) == ("end", INTERRUPTED)


def test_a_run_without_result_ends_in_an_error_event(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    monkeypatch.setattr("ekc.search.loop.finals.Finals.pick_finalists", lambda *_: [])
    with pytest.raises(NothingLegal) as raised:
        tune(callback=heard, trials=2)
    assert (heard[-1].name, heard[-1].text) == ("error", str(raised.value))


def test_a_replay_and_a_run_over_clocks_tell_their_events_too(tmp_path: Path) -> None:
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
