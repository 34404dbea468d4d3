"""Readings that `process/pynvml.py` leaves out: rising instantaneous power, and the counters of Hopper
(GPM)."""

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


class ScriptedGpm:
    """Counters with constant values; records the use of their samples."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, values: dict[str, float]) -> None:
        self.real, self.values = _get_real_pynvml(), values
        self.sampled_ids: list[int] = []
        self.allocated_ids: set[int] = set()
        self.is_refused = False
        module = sys.modules["pynvml"]
        for name in ("QueryDeviceSupport", "SampleAlloc", "SampleFree", "SampleGet", "MetricsGet"):
            monkeypatch.setattr(module, f"nvmlGpm{name}", getattr(self, name), raising=False)
        monkeypatch.setattr(module, "c_nvmlGpmMetricsGet_t", self.real.c_nvmlGpmMetricsGet_t, raising=False)

    def QueryDeviceSupport(self, handle: int) -> Any:
        support = self.real.c_nvmlGpmSupport_t()
        support.isSupportedDevice = 1
        return support

    def SampleAlloc(self) -> Any:
        sample = self.real.c_nvmlGpmSample_t()
        self.allocated_ids.add(id(sample))
        return sample

    def SampleFree(self, sample: Any) -> None:
        self.allocated_ids.remove(id(sample))

    def SampleGet(self, handle: int, sample: Any) -> Any:
        if self.is_refused:
            raise self.real.NVMLError(self.real.NVML_ERROR_NO_PERMISSION)
        self.sampled_ids.append(id(sample))
        return sample

    def MetricsGet(self, wanted: Any) -> Any:
        assert wanted.version == self.real.NVML_GPM_METRICS_GET_VERSION
        for slot in range(wanted.numMetrics):
            metric = wanted.metrics[slot]
            names = [n for n in self.values if getattr(self.real, n) == metric.metricId]
            metric.nvmlReturn = self.real.NVML_SUCCESS if names else self.real.NVML_ERROR_NOT_SUPPORTED
            metric.value = self.values[names[0]] if names else 0.0
        return wanted
