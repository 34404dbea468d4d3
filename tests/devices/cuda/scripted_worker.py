"""A worker on a scripted driver, in a process that the parent started as it starts any."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from ekc.devices.cuda.lifeline import die_with
from ekc.devices.cuda.worker import serve
from tests.devices.cuda.scripted_driver import ScriptedDriver

if __name__ == "__main__":
    index, messages, lifeline = map(int, sys.argv[1:])
    die_with(lifeline)
    serve(Connection(messages), ScriptedDriver, index)
