"""The clock governor: least energy for a running training job, within a slowdown budget, by its clocks."""

from ekc.governor.period import Period, detect_period

__all__ = ["Period", "detect_period"]
