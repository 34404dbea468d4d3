"""Measured rows that the layers of a model learn from besides their own.

The prior makes similar errors for similar schedules of any layer: it does not model bank conflicts, for
example. So the layers share logs of figure over prior. Each is relative to the median of its layer, since a
factor that all schedules of a layer have in common does not carry over, and does not change their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.search.cost_model.xgboost_model import select_training_rows
from ekc.search.data.defaults import PEERS

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ResidualRows:
    """Measured rows of one layer."""

    rows: Array
    """[rows, features]."""
    residuals: Array
    """[rows]: log of figure over prior, relative to the median of the layer."""


@dataclass
class PeerRows:
    """The measured rows of all layers of a model; each layer publishes its own."""

    _by_layer: list[ResidualRows | None] = field(default_factory=list)
    version: int = 0
    """Number of changes so far."""

    def join(self) -> int:
        """Add a layer, and return its place."""
        self._by_layer.append(None)
        return len(self._by_layer) - 1

    def publish(self, place: int, rows: ResidualRows) -> None:
        """Replace the rows of a layer."""
        self._by_layer[place] = rows
        self.version += 1

    def collect(self, place: int) -> list[ResidualRows]:
        """Collect rows of other layers: of the `max_peers` nearest to the layer, or of the last ones while
        that has no rows. Of each layer, those of the least residuals and some of the rest."""
        others = [x for i, x in enumerate(self._by_layer) if i != place and x is not None and len(x.rows)]
        if len(others) > PEERS.max_peers:
            others = _find_nearest(others, self._by_layer[place])
        share = PEERS.max_rows // max(len(others), 1)
        kept = [select_training_rows(x.residuals, share) for x in others]
        return [ResidualRows(x.rows[k], x.residuals[k]) for x, k in zip(others, kept, strict=True)]


def _find_nearest(others: list[ResidualRows], own: ResidualRows | None) -> list[ResidualRows]:
    """Find the `max_peers` layers whose mean features are nearest to those of a layer."""
    if own is None or not len(own.rows):
        return others[-PEERS.max_peers :]
    means = np.stack([x.rows.mean(axis=0) for x in others])
    spread = means.std(axis=0)
    distance = np.square((means - own.rows.mean(axis=0)) / np.where(spread > 0, spread, 1.0)).sum(axis=1)
    return [others[i] for i in np.argsort(distance, kind="stable")[: PEERS.max_peers]]
