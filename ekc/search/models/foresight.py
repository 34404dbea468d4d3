"""What is expected of kernels before they are metered, kept to be held against what the meter says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.search.candidate import Candidate
from ekc.search.models.power import PowerModel

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PredictionRecord:
    """One metered kernel. Energies in joules per call."""

    believed_j: float
    """What the run went by: the model, or under quarantine the line."""
    std: float
    """How unsure the run was of the log of that."""
    model_j: float
    """What the model said, believed or not; NaN while there was none."""
    line_j: float
    """What the line said."""
    constant_j: float
    """Latency x the median power so far."""
    latency_s: float
    measured_j: float


@dataclass(frozen=True)
class PredictionBatch:
    """Expectations of timed kernels. Arrays run over `candidates`."""

    candidates: Sequence[Candidate]
    mean: Array
    """Log joules per call."""
    std: Array
    model_mean: Array
    """`mean` by the model, believed or not; NaN while there is none."""
    line_mean: Array
    """`mean` by the line."""
    constant_power_w: float
    feature_rows: NDArray[np.float32]

    @classmethod
    def from_power_model(cls, candidates: Sequence[Candidate], power_model: PowerModel) -> PredictionBatch:
        """What `power` says of them now."""
        seconds = np.log([c.latency_s for c in candidates])
        mean, spread = power_model.predict_timed(candidates)
        model, line = (power_model.predict_timed(candidates, use_model=which)[0] for which in (True, False))
        model = model if power_model.is_ready else np.full(len(model), np.nan)
        rows = np.stack([c.features for c in candidates])
        return cls(
            candidates,
            mean + seconds,
            spread,
            model + seconds,
            line + seconds,
            power_model.median_power_w,
            rows,
        )

    def make_records(self, metered: Sequence[int]) -> list[PredictionRecord]:
        """The expectations of kernels that were metered since, beside the figures."""
        return [
            PredictionRecord(
                believed_j=float(np.exp(self.mean[i])),
                std=float(self.std[i]),
                model_j=float(np.exp(self.model_mean[i])),
                line_j=float(np.exp(self.line_mean[i])),
                constant_j=self.constant_power_w * self.candidates[i].latency_s,
                latency_s=self.candidates[i].latency_s,
                measured_j=self.candidates[i].energy_j,
            )
            for i in metered
        ]
