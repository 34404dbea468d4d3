"""An access cut into cells of one size, so that accesses of several widths can be laid side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.emulator.decoding.shelf import Site
from ekc.emulator.memory import Index, Probe


def cells(site: Site, probe: Probe, offset: int, grain: int) -> Index:
    """The numbers of the cells that an access touches: a row for each lane."""
    first = probe.index(grain) + offset // grain
    return first[:, None] + np.arange(site.size // grain)


def contents(site: Site, probe: Probe, values: tuple[Any, ...], grain: int) -> Any:
    """What a store puts into its cells, as unsigned words: a row for each lane."""
    lanes = probe.address.shape
    columns = [np.ascontiguousarray(np.broadcast_to(v, lanes)).view(f"u{grain}") for v in values]
    return np.concatenate([c.reshape(lanes[0], -1) for c in columns], axis=1)
