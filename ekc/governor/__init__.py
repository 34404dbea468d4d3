"""The clock governor: sets GPU clocks for least energy of a running training job within a slowdown budget."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ekc.governor.governor import Governor
    from ekc.governor.loop import govern
    from ekc.governor.period import Period, detect_period
    from ekc.governor.request import Policy

_HOME = {
    "Governor": "ekc.governor.governor",
    "Period": "ekc.governor.period",
    "Policy": "ekc.governor.request",
    "detect_period": "ekc.governor.period",
    "govern": "ekc.governor.loop",
}
__all__ = ["Governor", "Period", "Policy", "detect_period", "govern"]


def __getattr__(name: str) -> Any:
    """Import a name on first use: the guard of a lease needs no NumPy."""
    if name not in _HOME:
        raise AttributeError(f"module 'ekc.governor' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
