"""A worker whose kernel never ends: it answers nothing, and is held by its lifeline alone."""

from __future__ import annotations

import sys
import time

from ekc.devices.cuda.lifeline import die_with

if __name__ == "__main__":
    die_with(int(sys.argv[3]))
    time.sleep(3600)
