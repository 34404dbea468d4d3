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

from ekc.forks import hold_forks


@cache
def get_prediction_pool() -> ThreadPoolExecutor:
    """Started when first used, for each prediction is over in milliseconds. What they are given must not wait
    for them."""
    return ThreadPoolExecutor(2, "ekc-predict")


class _BlasLimit:
    """How many hold BLAS to one thread, and what lets go of it: None where BLAS has its threads."""

    def __init__(self) -> None:
        self.lock, self.user_count = Lock(), 0
        self.limiter: Any = None


_BLAS_LIMIT = _BlasLimit()


def _reset_after_fork() -> None:
    """A child has none of the threads, neither ours nor those that hold BLAS. What lets go of BLAS is kept:
    it knows how many threads BLAS had; the child finds one or, with OpenBLAS, as many as there are cores."""
    get_prediction_pool.cache_clear()
    _BLAS_LIMIT.user_count = 0


os.register_at_fork(after_in_child=_reset_after_fork)


@cache
def _get_blas_controller() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Matrices this small gain nothing from threads, which spin while they wait and cost a busy machine
    twenty times the work; and sums come out the same however many cores there are. The setting is that of the
    whole process, so the last of those that hold it at one time lets go."""
    with hold_forks(), _BLAS_LIMIT.lock:
        if not _BLAS_LIMIT.user_count:
            limiter = _get_blas_controller().limit(limits=1, user_api="blas")
            _BLAS_LIMIT.limiter = _BLAS_LIMIT.limiter or limiter
        _BLAS_LIMIT.user_count += 1
    try:
        yield
    finally:
        with hold_forks(), _BLAS_LIMIT.lock:
            _BLAS_LIMIT.user_count -= 1
            if not _BLAS_LIMIT.user_count:
                _BLAS_LIMIT.limiter.restore_original_limits()
                _BLAS_LIMIT.limiter = None
