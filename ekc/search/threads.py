"""Two threads for what lets others run meanwhile: trees, and NumPy on large arrays."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache


@cache
def predictors() -> ThreadPoolExecutor:
    """Started when first used, for each prediction is over in milliseconds. What they are given must not wait
    for them."""
    return ThreadPoolExecutor(2, "ekc-predict")


if hasattr(os, "register_at_fork"):
    # A forked child has none of the threads.
    os.register_at_fork(after_in_child=predictors.cache_clear)
