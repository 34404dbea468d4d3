"""Two threads for what lets others run meanwhile: trees, and NumPy on large arrays. And one for BLAS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

from threadpoolctl import ThreadpoolController


@cache
def predictors() -> ThreadPoolExecutor:
    """Started when first used, for each prediction is over in milliseconds. What they are given must not wait
    for them."""
    return ThreadPoolExecutor(2, "ekc-predict")


if hasattr(os, "register_at_fork"):
    # A forked child has none of the threads.
    os.register_at_fork(after_in_child=predictors.cache_clear)


class _Limit:
    """How many hold BLAS to one thread, and what lets go of it."""

    def __init__(self) -> None:
        self.lock, self.holders = Lock(), 0
        self.limiter: Any = None


_LIMIT = _Limit()


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Matrices this small gain nothing from threads, which spin while they wait and cost a busy machine
    twenty times the work; and sums come out the same however many cores there are. The setting is that of the
    whole process, so the last of those that hold it at one time lets go."""
    with _LIMIT.lock:
        if not _LIMIT.holders:
            _LIMIT.limiter = _controller().limit(limits=1, user_api="blas")
        _LIMIT.holders += 1
    try:
        yield
    finally:
        with _LIMIT.lock:
            _LIMIT.holders -= 1
            if not _LIMIT.holders:
                _LIMIT.limiter.restore_original_limits()
