"""The command line of ekc. The command `ekc` runs `main`."""

from __future__ import annotations

from ekc.cli.main import main

__all__ = ["main"]
