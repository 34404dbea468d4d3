"""What is counted of a Program: a float, or a float64 vector over a population. Products of extents are taken
here, where whole numbers would overflow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

PopulationValue = Any
"""A float, or a float64 vector over a population."""


def to_float64(value: Any) -> PopulationValue:
    """An extent, or one of each member, as a figure."""
    return np.asanyarray(value, dtype=np.float64)


def multiply_extents(values: Iterable[Any]) -> PopulationValue:
    """Of extents; 1 where there are none."""
    total: PopulationValue = 1.0
    for v in values:
        total = total * to_float64(v)
    return total
