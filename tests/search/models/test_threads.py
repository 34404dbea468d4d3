"""BLAS held to one thread while several ask for it."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from ekc.search.cost_model.gaussian_process import one_blas_thread


def blas_threads() -> set[int]:
    """Of NumPy's BLAS: XGBoost loads SciPy, whose own nobody asks for anything here."""
    np.ones((2, 2)) @ np.ones((2, 2))
    pools = (p for p in threadpool_info() if p["user_api"] == "blas" and "numpy" in p["filepath"])
    return {pool["num_threads"] for pool in pools}


@pytest.mark.parametrize("first_out", [0, 1])
def test_blas_has_its_threads_again_when_the_last_lets_go(first_out: int) -> None:
    """In whatever order they go: the one that came second saw a single thread."""
    with threadpool_limits(2, user_api="blas"):
        stacks = [ExitStack(), ExitStack()]
        for stack in stacks:
            stack.enter_context(one_blas_thread())
        assert blas_threads() == {1}
        stacks[first_out].close()
        assert blas_threads() == {1}
        stacks[1 - first_out].close()
        assert blas_threads() == {2}
