"""A worker whose kernel never ends: it does not reply, and ends only with its parent."""

from __future__ import annotations

import sys
import time

from ekc.processes.child import exit_with_parent

if __name__ == "__main__":
    exit_with_parent(int(sys.argv[3]))
    time.sleep(3600)
