"""Governors of other authors, rebuilt from their descriptions."""

from benchmarks.governor.baselines.gpoeo import run_gpoeo
from benchmarks.governor.baselines.odpp import run_odpp
from benchmarks.governor.baselines.zeus import run_zeus_sweep

__all__ = ["run_gpoeo", "run_odpp", "run_zeus_sweep"]
