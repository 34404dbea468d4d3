"""`python -m ekc.devices.lease` is the guard; a `Keeper` starts it, people do not."""

from __future__ import annotations

import sys

from ekc.devices.lease.guard import main

sys.exit(main(sys.argv[1:]))
