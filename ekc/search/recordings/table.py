"""Tables of measurements made by others: decisions, one figure a row, and what trying a row cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.errors import InvalidInput


@dataclass(frozen=True, eq=False)
class MeasurementTable:
    """Measurements by others: `settings[n, d]` of the decisions `names`, and one figure per row."""

    decision_names: tuple[str, ...]
    settings: NDArray[np.float64]
    figures: NDArray[np.float64]
    """What is to be made small; NaN where the configuration failed."""
    trial_costs_s: NDArray[np.float64]
    """What trying a row cost: compiling and benchmarking."""
    unit: str = ""
    """Of the figures, where it is known."""

    @property
    def best_figure(self) -> float:
        """The least figure of the table."""
        return float(np.nanmin(self.figures))


def make_table(
    columns: Mapping[str, Sequence[str]], decisions: Sequence[str], figure: str, costs_ms: Sequence[str] = ()
) -> MeasurementTable:
    """A Table out of text columns; decisions with one value are left out, figures that are no number failed.

    costs_ms: columns of milliseconds that trying a row took, added up. Raises `InvalidInput` for a column
    that is missing, a setting that is no number, equal rows, or a table without a figure.
    """
    for name in (*decisions, figure, *costs_ms):
        if name not in columns:
            raise InvalidInput(f"table: no column {name!r}; it has {', '.join(columns)}")
    settings = np.stack([_parse_settings(name, columns[name]) for name in decisions], axis=1)
    vary = [i for i in range(len(decisions)) if len(np.unique(settings[:, i])) > 1]
    figures = np.array([parse_figure(text) for text in columns[figure]])
    if not np.isfinite(figures).any():
        raise InvalidInput(
            f"table: column {figure!r} has no figure above 0; at least one row must have worked"
        )
    settings = settings[:, vary]
    if len(np.unique(settings, axis=0)) < len(settings):
        raise InvalidInput(f"table: two rows have the same {', '.join(decisions)}; keep one of them")
    costs = [[parse_figure(text) for text in columns[name]] for name in costs_ms]
    seconds = np.nansum(np.array(costs), axis=0) / 1e3 if costs else np.zeros(len(figures))
    return MeasurementTable(tuple(decisions[i] for i in vary), settings, figures, seconds)


def _parse_settings(name: str, texts: Sequence[str]) -> NDArray[np.float64]:
    try:
        return np.array([float(t) for t in texts])
    except ValueError as problem:
        raise InvalidInput(f"table: column {name!r} holds a setting that is no number: {problem}") from None


def parse_figure(text: str) -> float:
    """A figure above 0, or NaN: recordings write failures as empty, as a word or as a huge constant."""
    try:
        value = float(text)
    except ValueError:
        return float("nan")
    return value if 0 < value < 1e20 else float("nan")
