"""Reports from the events of a control loop."""

from __future__ import annotations

from ekc.governor.event_records import Applied, Checked, Chosen, Shifted, Skipped
from ekc.governor.live.job_report import GovernorLog, build_report
from ekc.governor.loop import _ControlLoop
from ekc.governor.protocols import Settings
from ekc.governor.request import Policy
from ekc.governor.simulation.simulated_run import SimulatedRun
from tests.governor.helpers import make_iterations, make_job


def test_report_does_not_mix_phases() -> None:
    first, second = Settings(sm_mhz=1500), Settings(sm_mhz=1200)
    book = GovernorLog("GPU 0", False)
    book.events += [
        Applied(10.0, first, "the choice"),
        Chosen(12.0, first, 0.04, 0.10, 3, 60.0, 9e3),
        Checked(200.0, 0.03, 0.01, 0.11),
        Shifted(300.0, "large", 0.5),
    ]
    assert (build_report(book).slowdown, build_report(book).checks) == (0.03, 1)
    book.events += [Applied(380.0, second, "the choice"), Chosen(382.0, second, 0.02, 0.2, 3, 60.0, 9e3)]
    found = build_report(book)
    assert (found.slowdown, found.saving, found.half_width, found.checks) == (0.02, 0.2, None, 0)
    book.events += [
        Checked(500.0, 0.01, 0.01, 0.21),
        Shifted(600.0, "known", 0.0),
        Applied(600.0, first, "the choice for a phase seen before"),
    ]
    found = build_report(book)
    assert found.choice == "SM up to 1500 MHz"
    assert (found.slowdown, found.saving, found.checks) == (0.04, 0.10, 0)
    assert found.shifts == 1
    book.events.append(Checked(700.0, 0.035, 0.01, 0.09))
    assert (build_report(book).slowdown, build_report(book).checks) == (0.035, 1)
    book.events.append(Applied(800.0, Settings(), "the default again"))
    assert build_report(book).choice == "SM up to 1500 MHz"
    book.events.append(Applied(810.0, Settings(), "the check moved the choice"))
    assert build_report(book).choice == "limits as before"


def test_report_names_the_last_limits() -> None:
    """A default that was in force already once made no event, and the report named an earlier clock."""
    other = make_iterations(600, 1, (1, 4), (0.3, 0.8))
    run, book = SimulatedRun(make_job([make_iterations(600), other])), GovernorLog("GPU 0", True)
    governor = _ControlLoop(run, run, Policy(), book.events.append)
    governor._start_s = run.now()
    first = governor._learn_phase("large", None)
    clock = build_report(book).choice
    assert clock.startswith("SM up to")
    first.choice = Settings()  # As a check may have it, whose word is lost when another phase comes between.
    assert governor._learn_phase("large", None) is first
    assert run.settings() == Settings()
    assert build_report(book).choice == "limits as before"
    run.record(620 - run.now())
    governor._policy = Policy(remaining_s=run.now() + 20)
    assert governor._learn_phase("large", None) is not first
    assert isinstance(book.events[-1], Skipped)
    found = build_report(book)
    assert (found.choice, found.slowdown, found.saving) == (None, None, None)
