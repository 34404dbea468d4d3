"""`ekc.tune` on scripted GPUs, from the target to the winner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ekc
from ekc import devices
from ekc.search.records import RecordStore
from tests.devices.cuda.scripted import ScriptedNode

OP = ekc.matmul(16, 16, 16)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cuda-cache"))


def tune(node: ScriptedNode, monkeypatch: pytest.MonkeyPatch, **options: Any) -> ekc.TuningResult:
    monkeypatch.setattr(devices, "open", lambda target: node.open(target, launch_s=5e-3))
    options = {"target": "cuda:0", "trials": 12, "progress": False} | options
    return ekc.tune(OP, **options)


def test_a_run_ends_with_a_kernel_that_was_checked_and_metered_on_the_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = tune(ScriptedNode(), monkeypatch, records=tmp_path / "r.db")
    assert result.device.label == "Scripted A100 (cuda:0)"
    assert not result.device.simulated
    assert result.best.metered
    assert result.best.checked.startswith("executed on Scripted A100 (cuda:0), ")
    assert "compiled PTX executed on the CPU" in result.best.checked
    assert "simulated" not in result.summary()
    with RecordStore(tmp_path / "r.db", create=False) as store:
        timings, meterings = list(store.rows(kind="timing")), list(store.rows(kind="metering"))
        assert len(timings) > 12
        conditions = [row.payload["conditions"] for row in (*timings, *meterings)]
        (check, *_) = store.rows(kind="check")
    for found in conditions:
        assert not found["simulated"]
        assert found["clock_mhz"] == 1410
        assert found["l2"] == "warm"
        assert found["power_cap_w"] == 400.0
        assert found["gpu"] == "00000000-0000-0000-0000-000000000000"
    assert check.payload["executed_by"].startswith("Scripted A100 (cuda:0)")
