"""What counters let expect of a job before any clock was tried: boosted trees, trained on simulated jobs."""

from ekc.governor.predict.model import Boosted, Row
from ekc.governor.predict.train import leave_one_out, rows_of, simulated, trained

__all__ = ["Boosted", "Row", "leave_one_out", "rows_of", "simulated", "trained"]
