"""Governors of other authors, rebuilt from their descriptions, and an oracle."""

from benchmarks.governor.baselines.gpoeo import run_gpoeo
from benchmarks.governor.baselines.odpp import run_odpp
from benchmarks.governor.baselines.oracle import OracleResult, find_oracle_clocks
from benchmarks.governor.baselines.zeus import run_zeus_sweep

__all__ = ["OracleResult", "find_oracle_clocks", "run_gpoeo", "run_odpp", "run_zeus_sweep"]
