"""Names that users, examples and checks rely on: each is there, with the parameters that calls name."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import ekc

PARAMETERS = {
    "matmul": "m n k dtype transpose_a transpose_b acc_dtype out_dtype",
    "batch_matmul": "b m n k dtype",
    "matvec": "m k dtype",
    "conv2d": "n c h w out_channels kernel stride padding dilation groups layout dtype",
    "einsum": "subscripts shapes dtype acc_dtype out_dtype",
    "softmax": "shape axis dtype acc_dtype out_dtype",
    "layer_norm": "shape dtype acc_dtype out_dtype",
    "rms_norm": "shape dtype acc_dtype out_dtype",
    "reduce": "shape axes combine dtype acc_dtype out_dtype",
    "compute": "name axes inputs body reduce dtype acc_dtype out_dtype",
    "tune": "op target trials objective max_slowdown clocks seed records time_budget_s start executor"
    " progress",
    "tune_model": "model target trials objective max_slowdown clocks seed records time_budget_s executor"
    " progress effort trials_per_layer callback",
    "models.from_layers": "path",
    "best": "op records target",
    "compile": "schedule arch",
    "codegen.nvrtc.compile": "arch",
    "emulator.launch": "grid block args dynamic_shared",
    "governor.detect_period": "samples sampling_hz",
    "Schedule": "op steps",
}
"""Function or class -> parameters that a caller may name."""

ATTRIBUTES = {
    "Operator": "inputs outputs reference epilogue",
    "TuningResult": "best fastest baseline pareto trials trial_count metered_count roofline_share device"
    " seconds summary export compile",
    "ModelResult": "layers plan summary to_json export report totals",
    "Trial": "schedule latency_s power_w energy_j latency_interval_s energy_interval_j clock_mhz metered"
    " status",
    "runtime.Kernel": "cuda_source ptx cubin resources launches __call__",
    "devices.device.Device": "name simulated",
    "Schedule": "split bind program steps to_json from_json __str__",
    "governor.Period": "seconds error verdict",
}
"""Class -> attributes that its objects have."""


def find_name(path: str) -> Any:
    """`ekc.` and the path, attribute after attribute, as a user writes it."""
    found: Any = ekc
    for part in path.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("path", PARAMETERS)
def test_function_takes_named_parameters(path: str) -> None:
    missing = set(PARAMETERS[path].split()) - set(inspect.signature(find_name(path)).parameters)
    assert not missing


@pytest.mark.parametrize("path", ATTRIBUTES)
def test_class_has_attributes(path: str) -> None:
    cls = find_name(path)
    annotated = {name for base in cls.__mro__ for name in inspect.get_annotations(base)}
    assert not set(ATTRIBUTES[path].split()) - annotated - set(dir(cls))


def test_defaults_of_tune() -> None:
    defaults = {n: p.default for n, p in inspect.signature(ekc.tune).parameters.items()}
    expected = {"target": "auto", "objective": "energy", "max_slowdown": 0.05, "clocks": "fixed", "seed": 0}
    expected |= {"records": None, "time_budget_s": None, "start": (), "executor": None, "progress": True}
    assert {name: defaults[name] for name in expected} == expected


def test_schedule_round_trip_and_kernel_call() -> None:
    op = ekc.matmul(4, 4, 4)
    schedule = ekc.Schedule(op).split("i", (2,)).bind("i.0", "block.x")
    assert ekc.Schedule.from_json(schedule.to_json()) == schedule
    kernel = ekc.compile(schedule, arch="sm_80")
    assert isinstance(kernel, ekc.runtime.Kernel)
    a = np.eye(4, dtype=np.float32)
    np.testing.assert_array_equal(kernel(a, a), op.reference(a, a))


def test_emulator_report_of_compiled_source() -> None:
    source = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
    compiled = ekc.codegen.nvrtc.compile(source, arch="sm_80")
    assert all(hasattr(compiled, name) for name in ("ptx", "cubin", "resources", "log"))
    x = np.arange(4, dtype=np.float32)
    report = ekc.emulator.launch(
        compiled.ptx, "twice", grid=(1, 1, 1), block=(4, 1, 1), args=[x], dynamic_shared=0
    )
    assert not report.findings
    assert report.counters
    assert x.tolist() == [0, 2, 4, 6]
