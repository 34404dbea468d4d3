"""The command line of ekc. The command `ekc` runs `main`."""

import sys

try:
    from ekc.cli.main import main
except KeyboardInterrupt:
    # Ctrl-C while modules are imported, before `main` can report it.
    sys.stderr.write("ekc: interrupted\n")
    sys.exit(130)

__all__ = ["main"]
