"""Schedule of checks of a choice."""

from __future__ import annotations

from ekc.governor.change_detection import CONFIRM_S
from ekc.governor.phase_match import EARLY_CHECK_S, FIRST_CHECK_S, MAX_CHECK_GAP_S, MAX_DOUBTS, CheckSchedule


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
