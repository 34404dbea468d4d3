"""`python -m ekc` is the command `ekc`."""

import sys

from ekc.cli import main

sys.exit(main())
