"""Schedule of checks of a choice, and readings that other work disturbs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ekc.governor.change_detection import (
    CONFIRM_S,
    EARLY_CHECK_S,
    FIRST_CHECK_S,
    MAX_CHECK_GAP_S,
    MAX_DOUBTS,
    CheckSchedule,
    is_disturbed,
)
from ekc.governor.protocols import Settings
from ekc.governor.readings import JobReading, PhaseReadings, ProgressRate


def test_check_gap_doubles_while_checks_agree() -> None:
    checks = CheckSchedule(100.0, FIRST_CHECK_S)
    assert not checks.is_due(100.0 + EARLY_CHECK_S + 1, suspected=False)
    assert not checks.is_due(100.0 + EARLY_CHECK_S - 1, suspected=True)
    assert checks.is_due(100.0 + EARLY_CHECK_S + 1, suspected=True)
    assert checks.is_due(100.0 + FIRST_CHECK_S + 1, suspected=False)
    for _ in range(6):
        checks.record_agreement(1000.0)
    assert checks.gap_s == MAX_CHECK_GAP_S
    assert not checks.is_due(1000.0 + MAX_CHECK_GAP_S, suspected=False)


def test_doubts_are_checked_soon_and_become_a_change() -> None:
    checks = CheckSchedule(0.0, MAX_CHECK_GAP_S)
    at_s = 2000.0
    for _ in range(MAX_DOUBTS - 1):
        assert not checks.record_doubt(at_s)
        assert not checks.is_due(at_s + CONFIRM_S, suspected=False)
        assert checks.is_due(at_s + CONFIRM_S + 1, suspected=False)
    checks.record_agreement(at_s)
    assert not checks.is_due(at_s + CONFIRM_S + 1, suspected=False)
    for _ in range(MAX_DOUBTS - 1):
        assert not checks.record_doubt(at_s)
    assert checks.record_doubt(at_s)


@pytest.mark.parametrize(
    ("moved", "limits", "disturbed"),
    [
        (1.0, Settings(sm_mhz=1500), False),
        # In proportion to the clock.
        (0.79, Settings(sm_mhz=1500), False),
        (0.33, Settings(sm_mhz=1500), True),
        (1.3, Settings(sm_mhz=1500), True),
        (1.3, Settings(power_w=250.0), True),
        # The clock under a cap is not known beforehand, and at another memory clock bytes are not comparable.
        (0.33, Settings(power_w=250.0), False),
        (0.33, Settings(sm_mhz=1500, memory_mhz=810), False),
    ],
)
def test_first_reading_under_a_limit_is_compared_with_the_default(
    moved: float, limits: Settings, disturbed: bool
) -> None:
    """An evaluation was once taken as the first reading of the choice, and the job then seemed to change
    every few minutes."""
    pace = ProgressRate(moved=50.0, moved_error=0.005)
    default = JobReading(Settings(), 0.0, 12.0, 300.0, pace, 100.0, 50.0, 1900.0)
    reading = replace(default, settings=limits, watts=250.0, pace=replace(pace, moved=50.0 * moved))
    assert is_disturbed(PhaseReadings([default]), reading) == disturbed
