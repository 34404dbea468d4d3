"""Detection of a training job's iteration period from the sensors of its GPU.

As in GPOEO (arXiv 2201.01684) signals are summed with chosen signs, candidate periods are proposed, and the
one whose adjacent periods are most alike is chosen. Each of these steps is done in another way; see
docs/explanation/governor.md.
"""

from ekc.governor.period.detect import Period, PeriodRecording, Verdict, detect_period, find_period

__all__ = ["Period", "PeriodRecording", "Verdict", "detect_period", "find_period"]
