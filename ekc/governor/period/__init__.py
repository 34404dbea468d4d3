"""The iteration period of a training job, from what the sensors of its GPU show.

As in GPOEO (arXiv 2201.01684) the signals are summed with chosen signs, candidates are proposed and the one
wins whose adjacent periods are most alike; how each of these is done differs, see docs/governor.md.
"""

from ekc.governor.period.detect import Period, Verdict, detect_period
from ekc.governor.period.online import PeriodRecording, find_period

__all__ = ["Period", "PeriodRecording", "Verdict", "detect_period", "find_period"]
