"""The clock governor: least energy for a running training job, within a slowdown budget, by its clocks."""

from ekc.governor.loop import govern
from ekc.governor.period import Period, detect_period
from ekc.governor.policy import Policy

__all__ = ["Period", "Policy", "detect_period", "govern"]
