"""Which rows of a schedule count."""

from __future__ import annotations

import pytest

from ekc.search.database.figures import Outcome, select_counting
from ekc.search.database.rows import RecordKind

FAILURE, WRONG, OK = "compile: too many registers", "wrong result: 1 of 64", "checked: block 0"


def list_outcomes(events: str) -> list[Outcome[str]]:
    """Outcomes in this order: a timing "t", its repeat "T" in the finals, meterings over 1 s and 5 s "m" and
    "M", a failure "f", a good check "c" and a wrong one "w". The value is the letter and its place."""
    kinds: dict[str, tuple[RecordKind, int, float | None, str]] = {
        "t": ("timing", 0, None, "ok"),
        "T": ("timing", 1, None, "ok"),
        "m": ("metering", 0, 1.0, "ok"),
        "M": ("metering", 0, 5.0, "ok"),
        "f": ("failure", 0, None, FAILURE),
        "c": ("check", 0, None, OK),
        "w": ("check", 0, None, WRONG),
    }
    return [Outcome(number, *kinds[one], f"{one}{number}") for number, one in enumerate(events, 1)]


@pytest.mark.parametrize(
    ("events", "status"),
    [("", "ok"), ("f", FAILURE), ("tf", FAILURE), ("ft", "ok"), ("fm", "ok"), ("tmfM", "ok"),
     ("w", WRONG), ("wt", WRONG), ("wc", "ok"), ("cw", WRONG), ("wtf", FAILURE), ("fw", WRONG)],
)  # fmt: skip
def test_status_is_the_last_failure_without_a_later_measurement(events: str, status: str) -> None:
    assert select_counting(list_outcomes(events)).status == status


@pytest.mark.parametrize(
    ("events", "timings", "meterings"),
    [("t", "t1", ""), ("tt", "t2", ""), ("tTm", "T2", "m3"), ("TtmM", "T1", "M4"), ("MmtM", "t3", "M4")],
)
def test_finals_and_longest_window_replace_the_others(events: str, timings: str, meterings: str) -> None:
    found = select_counting(list_outcomes(events))
    assert (" ".join(found.timings), " ".join(found.meterings)) == (timings, meterings)
    assert found.is_finalist == ("T" in events)
