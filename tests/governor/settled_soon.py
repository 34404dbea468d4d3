"""The command `ekc` with a short wait for processes that have not reached their GPUs yet."""

import sys

from ekc.cli import main
from ekc.governor.live import gpus

gpus.SETTLE_S = 1.0
sys.exit(main())
