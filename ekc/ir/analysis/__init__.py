"""Static analysis of launches: operations, memory traffic, coalescing, guards, occupancy; for populations
too."""

from __future__ import annotations
