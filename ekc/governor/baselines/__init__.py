"""What `ekc govern` is held against: other people's governors, rebuilt from their descriptions."""

from ekc.governor.baselines.gpoeo import run_gpoeo
from ekc.governor.baselines.odpp import run_odpp
from ekc.governor.baselines.oracle import OracleResult, find_oracle_clocks
from ekc.governor.baselines.zeus import run_zeus_sweep

__all__ = ["OracleResult", "find_oracle_clocks", "run_gpoeo", "run_odpp", "run_zeus_sweep"]
