"""What the rounds make small: the objective, dearer for what is too slow to win."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

import ekc
from ekc import devices
from ekc.search.measuring import Bench
from ekc.search.options import Wish
from ekc.search.records import RecordStore
from ekc.search.space import Space
from ekc.search.task import TOO_SLOW, ScheduleTask


def _kernel(latency_s: float, ok: bool = True) -> Any:
    return SimpleNamespace(latency_s=latency_s, power_w=100.0, ok=ok, metered=False)


def test_what_is_too_slow_to_win_counts_as_dearer() -> None:
    device = devices.open("a100")
    with RecordStore(None) as store, ThreadPoolExecutor(1) as workers:
        wish = Wish(8, "energy", 0.05, False, 0, None)
        space = Space(ekc.matvec(64, 64), device.limits)
        task = ScheduleTask(space, Bench(device, store), workers, wish, lambda done, text: None)
        fastest, near, slow = _kernel(10e-6), _kernel(10.5e-6), _kernel(20e-6)
        task.candidates = [fastest, near, slow]
        assert task.score(near) == pytest.approx(10.5e-4)
        assert task.score(slow) == pytest.approx(20e-4 * (20 / 10.5) ** TOO_SLOW)
        # One that failed after it was timed is nothing that the others are too slow for.
        task.candidates = [_kernel(1e-6, ok=False), slow]
        assert task.score(slow) == pytest.approx(20e-4)
