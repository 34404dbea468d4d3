"""An access cut into cells of one size, so that accesses of several widths can be laid side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.emulator.decoding.shelf import Site
from ekc.emulator.memory import AddressProbe, Index


def list_cells(site: Site, probe: AddressProbe, offset: int, cell_bytes: int) -> Index:
    """The numbers of the cells that an access touches: a row for each lane."""
    first = probe.element_indices(cell_bytes) + offset // cell_bytes
    return first[:, None] + np.arange(site.bytes_per_lane // cell_bytes)


def list_cell_contents(site: Site, probe: AddressProbe, values: tuple[Any, ...], cell_bytes: int) -> Any:
    """What a store puts into its cells, as unsigned words: a row for each lane."""
    lanes = probe.address.shape
    columns = [np.ascontiguousarray(np.broadcast_to(v, lanes)).view(f"u{cell_bytes}") for v in values]
    return np.concatenate([c.reshape(lanes[0], -1) for c in columns], axis=1)
