"""The face of ekc for a shell. `main` is what the command `ekc` runs."""

from __future__ import annotations

from ekc.cli.main import main

__all__ = ["main"]
