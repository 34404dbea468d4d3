"""A worker on a scripted driver, in a process that is started like any worker."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from ekc.devices.cuda.worker import serve_requests
from ekc.processes.child import exit_with_parent
from tests.scripted.cuda.driver import ScriptedDriver

if __name__ == "__main__":
    index, messages, lifeline = map(int, sys.argv[1:])
    exit_with_parent(lifeline)
    serve_requests(Connection(messages), ScriptedDriver, index)
