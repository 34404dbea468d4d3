"""Kernels: compiled schedules that can be called."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import ekc.ir.operators as o
from ekc.errors import InvalidInput, ScheduleError
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.kernel import Kernel, compile


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path))


@pytest.fixture
def kernel() -> Kernel:
    s = Schedule(o.matmul(12, 9, 7)).bind("i", "block.x").bind("j", "thread.x").cache_write("C")
    return compile(s)


def test_kernel_shows_what_it_was_compiled_to(kernel: Kernel) -> None:
    assert kernel.cuda_source.startswith("// matmul(")
    assert ".target sm_80" in kernel.ptx
    assert kernel.cubin.startswith(b"\x7fELF")
    assert kernel.resources[0].registers > 0
    assert kernel.launches[0].grid == (12, 1, 1)
    assert kernel.arch == "sm_80"


def test_call_takes_and_gives_numpy(kernel: Kernel) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((12, 7), np.float32), rng.standard_normal((7, 9), np.float32)
    c = kernel(a, b)
    assert c.dtype == np.float32
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)


def test_executed_by_names_the_machine(kernel: Kernel) -> None:
    assert kernel.executed_by == "ekc.emulator: the compiled PTX, on the CPU"
    assert "run by ekc.emulator" in repr(kernel)
    assert "matmul(A[12, 7] float32, B[7, 9] float32), sm_80" in repr(kernel)


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [((12, 8), "float32", r"A has shape \(12, 8\), needed \(12, 7\)"), ((12, 7), "float64", "A is float64")],
)
def test_unsuitable_arrays_are_refused(
    kernel: Kernel, shape: tuple[int, ...], dtype: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        kernel(np.zeros(shape, dtype), np.zeros((7, 9), np.float32))
    with pytest.raises(InvalidInput, match="takes 2 arrays"):
        kernel(np.zeros((12, 7), np.float32))


def test_unknown_arch_and_a_broken_limit_are_refused() -> None:
    s = Schedule(o.matmul(12, 9, 7)).bind("i", "block.x").bind("j", "thread.x")
    with pytest.raises(InvalidInput, match="arch 'sm_81' is unknown"):
        compile(s, arch="sm_81")
    with pytest.raises(InvalidInput, match="arch: 80 is not the name of a target; the nearest is 'sm_80'"):
        compile(s, arch=80)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="threads per block"):
        compile(s, limits=LaunchLimits(threads_per_block=8))


def test_slow_call_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ekc.runtime.kernel.execute", run)
    arrays = [np.zeros((1024, 1024), np.float32)] * 2
    alone = compile(Schedule(o.matmul(1024, 1024, 1024)))
    with (
        pytest.warns(UserWarning, match=r"matmul: .* \(1 together\) in 2 days or so; bind loops"),
        pytest.raises(KeyboardInterrupt),
    ):
        alone(*arrays)


def test_short_call_gives_no_warning(kernel: Kernel) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel(np.zeros((12, 7), np.float32), np.zeros((7, 9), np.float32))
