"""`python -m ekc.governor.lease` is the guard; a `Keeper` starts it, people do not."""

from __future__ import annotations

import sys

from ekc.governor.lease.guard import main

sys.exit(main(sys.argv[1:]))
