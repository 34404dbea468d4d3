"""A worker's end of its lifeline: a pipe that its parent holds open as long as it lives."""

from __future__ import annotations

import os
import threading
from contextlib import suppress


def exit_with_parent(lifeline: int) -> None:
    """End this process when the parent is gone, even while a kernel hangs: its end of the pipe closes."""

    def watch() -> None:
        with suppress(OSError):
            os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
