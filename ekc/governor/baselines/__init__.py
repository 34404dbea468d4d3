"""What `ekc govern` is held against: other people's governors, rebuilt from their descriptions."""

from ekc.governor.baselines.gpoeo import gpoeo
from ekc.governor.baselines.odpp import odpp
from ekc.governor.baselines.oracle import Best, oracle
from ekc.governor.baselines.zeus import zeus_sweep

__all__ = ["Best", "gpoeo", "odpp", "oracle", "zeus_sweep"]
