"""What counters let expect of a job before any clock was tried: boosted trees, trained on simulated jobs."""

from ekc.governor.predict.model import BoostedModel, TrainingRow
from ekc.governor.predict.train import build_rows, leave_one_out, train_model, train_simulated_model

__all__ = [
    "BoostedModel",
    "TrainingRow",
    "build_rows",
    "leave_one_out",
    "train_model",
    "train_simulated_model",
]
