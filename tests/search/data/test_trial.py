"""Trials as one line and as tables of a notebook, and the sequence that holds them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

import ekc
from ekc.devices.statistics import Interval
from ekc.display import MAX_LINE_CHARS
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.data.trial import MAX_ROWS, Trial, Trials

SCHEDULE = make_naive_schedule(ekc.matvec(16, 16))


def make_trial(latency_us: float | None = 5.0, status: str = "ok", simulated: bool = True) -> Trial:
    if latency_us is None:
        return Trial(SCHEDULE, "lanes", status)
    return Trial(
        *(SCHEDULE, "lanes", status, latency_us * 1e-6),
        latency_interval_s=Interval(latency_us * 0.99e-6, latency_us * 1.01e-6),
        power_w=100.0,
        energy_j=latency_us * 1e-4,
        metered=True,
        simulated=simulated,
    )


def test_line_of_a_trial_has_its_figures_and_says_simulated() -> None:
    assert repr(make_trial()) == "<Trial 5 us, 0.5 mJ metered, simulated, lanes>"
    assert repr(make_trial(simulated=False)) == "<Trial 5 us, 0.5 mJ metered, lanes>"
    failed = make_trial(None, "compile: too many\nregisters")
    assert repr(failed) == "<Trial compile: too many registers, lanes>"


@given(st.text(max_size=400), st.text(max_size=400), st.booleans())
def test_line_of_a_trial_is_short_for_any_texts(status: str, structure: str, is_ok: bool) -> None:
    trial = replace(make_trial(status="ok" if is_ok else status), structure=structure)
    line = repr(trial)
    assert len(line) <= MAX_LINE_CHARS
    assert len(line.splitlines()) == 1
    assert "simulated" in line


def test_table_of_a_trial_shows_figures_intervals_and_steps() -> None:
    html = make_trial()._repr_html_()
    for text in ("5", "(4.95 to 5.05 us)", "simulated", "energy [mJ], metered", ".bind(", "not executed"):
        assert text in html, text
    assert "measured" in make_trial(simulated=False)._repr_html_()


def test_trials_are_a_tuple_also_after_slicing_pickling_and_sorting() -> None:
    plain = tuple(make_trial(float(n)) for n in range(1, 30))
    trials = Trials(plain)
    assert isinstance(trials, Sequence)
    assert trials == plain
    assert hash(trials) == hash(plain)
    assert trials[3] == plain[3]
    assert trials[::2] == plain[::2]
    assert isinstance(trials[::2], Trials)
    copy = pickle.loads(pickle.dumps(trials))
    assert copy == trials
    assert isinstance(copy, Trials)
    assert sorted(trials, key=lambda t: -(t.latency_s or 0.0))[0] == plain[-1]


def test_trials_show_themselves_in_one_line_and_a_table_of_the_fastest() -> None:
    trials = Trials([make_trial(None, "compile: <no>"), *(make_trial(float(n)) for n in range(30, 0, -1))])
    assert repr(trials) == "<Trials 31 trials (simulated), 30 metered, 1 failed>"
    html = trials._repr_html_()
    assert html.count("<tr>") == MAX_ROWS + 1
    assert "the 10 fastest of 31" in html
    assert html.index(">30<") < html.index(">29<"), "the index of the fastest comes first"
    failed = trials[:1]._repr_html_()
    assert "compile: &lt;no&gt;" in failed
    assert "fastest of" not in failed
    assert repr(Trials()) == "<Trials 0 trials, 0 metered, 0 failed>"
