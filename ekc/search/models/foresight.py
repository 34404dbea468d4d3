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
class Judged:
    """One metered kernel. Energies in joules per call."""

    believed_j: float
    """What the run went by: the model, or under quarantine the line."""
    spread: float
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
class Foresight:
    """Expectations of timed kernels. Arrays run over `candidates`."""

    candidates: Sequence[Candidate]
    mean: Array
    """Log joules per call."""
    spread: Array
    model: Array
    """`mean` by the model, believed or not; NaN while there is none."""
    line: Array
    """`mean` by the line."""
    constant_w: float
    rows: NDArray[np.float32]

    @classmethod
    def of(cls, candidates: Sequence[Candidate], power: PowerModel) -> Foresight:
        """What `power` says of them now."""
        seconds = np.log([c.latency_s for c in candidates])
        mean, spread = power.expect_of(candidates)
        model, line = (power.expect_of(candidates, model=which)[0] for which in (True, False))
        model = model if power.ready else np.full(len(model), np.nan)
        rows = np.stack([c.row for c in candidates])
        return cls(candidates, mean + seconds, spread, model + seconds, line + seconds, power.median, rows)

    def judged(self, metered: Sequence[int]) -> list[Judged]:
        """The expectations of kernels that were metered since, beside the figures."""
        return [
            Judged(
                believed_j=float(np.exp(self.mean[i])),
                spread=float(self.spread[i]),
                model_j=float(np.exp(self.model[i])),
                line_j=float(np.exp(self.line[i])),
                constant_j=self.constant_w * self.candidates[i].latency_s,
                latency_s=self.candidates[i].latency_s,
                measured_j=self.candidates[i].energy_j,
            )
            for i in metered
        ]
