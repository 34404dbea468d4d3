import math

from ekc.governor.event_records import PeriodFound


def test_line_of_a_period_has_no_length_where_none_is_tracked() -> None:
    assert (
        PeriodFound(0.0, "multiple", 1.25, "period")
        .format_line()
        .startswith("iterations: multiple of 1.25 s;")
    )
    for verdict in ("periodic", "multiple", "aperiodic"):
        line = PeriodFound(0.0, verdict, math.nan, "throughput").format_line()
        assert line == f"iterations: {verdict}; progress by throughput"
