"""Why the best schedule needs another energy than the fastest, by the boosted model: plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ekc.display import format_line
from ekc.tables import format_table

SHOWN_PARTS = 8
"""Parts in the text and in the picture; the others are summed."""


@dataclass(frozen=True)
class FeaturePart:
    """The part of one input of the model in the energy of the best schedule over that of the fastest."""

    name: str
    """Name of a feature (`ekc.features`), of an input from the prior, or "analytic prior"."""
    best: float
    """Its value for the best schedule, in the unit of the feature."""
    fastest: float
    log_part: float
    """Part of the natural log of the ratio of energies; below 0, it makes the best need less."""


@dataclass(frozen=True)
class EnergyExplanation:
    """The prior and the SHAP values of the boosted model, best schedule against fastest."""

    parts: tuple[FeaturePart, ...]
    """The largest first. They add up to `predicted_log_ratio`."""
    predicted_log_ratio: float
    """Natural log of the energy of the best over that of the fastest, by the prior with its correction."""
    measured_log_ratio: float
    """The same, of the metered energies; NaN where one was not metered."""

    def list_shown(self) -> list[tuple[str, float]]:
        """(name, part of the log ratio) of the largest parts, and of all others together."""
        shown = [(part.name, part.log_part) for part in self.parts[:SHOWN_PARTS]]
        rest = sum(part.log_part for part in self.parts[SHOWN_PARTS:])
        return [*shown, ("all other inputs", rest)] if rest else shown

    def summary(self) -> str:
        """Format the parts as a table, in percent of the energy of the fastest."""
        values = {part.name: (f"{part.best:.4g}", f"{part.fastest:.4g}") for part in self.parts}
        rows = [
            [name, *values.get(name, ("", "")), f"{100 * math.expm1(log):+z.1f} %"]
            for name, log in self.list_shown()
        ]
        predicted, measured = (
            "unknown" if math.isnan(log) else f"{100 * math.expm1(log):+z.1f} %"
            for log in (self.predicted_log_ratio, self.measured_log_ratio)
        )
        rows += [["predicted by the model before measuring", "", "", predicted]]
        rows += [["measured", "", "", measured]]
        return format_table(["input of the model", "best", "fastest", "energy"], rows)

    def __repr__(self) -> str:
        return format_line(self, f"{len(self.parts)} parts, log ratio {self.predicted_log_ratio:.4f}")
