"""`python -m ekc` is the command `ekc`."""

from __future__ import annotations

import sys

from ekc.cli import main

sys.exit(main())
