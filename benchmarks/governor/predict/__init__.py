"""Predictions of a job's time and energy over the SM clock before any clock is tried: boosted trees."""

from benchmarks.governor.predict.model import BoostedModel, TrainingRow
from benchmarks.governor.predict.train import build_rows, leave_one_out, train_model, train_simulated_model

__all__ = [
    "BoostedModel",
    "TrainingRow",
    "build_rows",
    "leave_one_out",
    "train_model",
    "train_simulated_model",
]
