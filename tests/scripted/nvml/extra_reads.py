"""A reading that `process/pynvml.py` leaves out: rising instantaneous power."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest


def _get_real_pynvml() -> Any:
    return sys.modules["pynvml"].real  # type: ignore[attr-defined]


def script_instant_power(monkeypatch: pytest.MonkeyPatch, watts: float) -> None:
    """Field 186 answers, each time with 1 W more."""
    real, count = _get_real_pynvml(), itertools.count()

    def fields(handle: int, wanted: list[int]) -> Any:
        values = (real.c_nvmlFieldValue_t * len(wanted))()
        for slot, field in enumerate(wanted):
            values[slot].fieldId = field
            values[slot].nvmlReturn = real.NVML_SUCCESS
            values[slot].value.uiVal = int(1000 * (watts + next(count)))
        return values

    monkeypatch.setattr(sys.modules["pynvml"], "nvmlDeviceGetFieldValues", fields)
