"""The rivals: called through a scripted PyTorch, right or refused, timed without the host's time."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import pytorch, versus
from benchmarks.gpu.contenders import measure_in_turn
from benchmarks.gpu.folder import Folder
from benchmarks.gpu.items import Item, make_conv, make_matmul, make_matvec
from benchmarks.gpu.kit import Budget
from ekc import devices
from ekc.devices.cuda.messages import TimingRules
from ekc.devices.cuda.timing import MAX_GRAPH_CALLS, SAMPLE_DURATION_S, WARM_UP_DURATION_S
from ekc.devices.cuda.worker import BATCH_DURATION_S
from ekc.devices.device import POWER_CAP
from ekc.devices.simulated.device import VirtualBoard
from ekc.devices.simulated.operating_point import SteadyState
from ekc.devices.simulated.specs import A100
from ekc.errors import DeviceError
from tests.benchmarks.gpu import scripted_torch
from tests.benchmarks.gpu.scripted_torch import CALL_S, NAME, UUID, module
from tests.benchmarks.helpers import expect


def _make_kit(monkeypatch: pytest.MonkeyPatch, torch: Any) -> Any:
    """A kit whose GPU is that of a scripted PyTorch."""
    monkeypatch.setitem(sys.modules, "torch", torch)
    device = devices.open("a100")
    monkeypatch.setattr(device, "name", NAME)
    return SimpleNamespace(device=device, gpu=0)


def _rivals(
    monkeypatch: pytest.MonkeyPatch, dtype: str = "float32", off: float = 0.0, triton: bool = False
) -> tuple[Any, Any, Any]:
    torch = module(off)
    item = replace(make_matmul(64, 48, 80, dtype), triton=triton)
    return torch, *pytorch.find_rivals(_make_kit(monkeypatch, torch), item, expect(item))


@pytest.mark.parametrize("dtype", ["float32", "tf32", "float16", "bfloat16"])
def test_library_is_timed_by_events_around_a_graph(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch, (cublas,), absent = _rivals(monkeypatch, dtype)
    assert cublas.name == "cuBLAS of CUDA 0.0, PyTorch 0.scripted"
    assert not absent
    timing = cublas.time(0)
    assert timing.latency_s == pytest.approx(CALL_S)
    assert timing.samples == len(timing.samples_s) == TimingRules().first_check_samples
    assert timing.method == f"graph replay, {round(SAMPLE_DURATION_S / CALL_S)} calls a sample"
    assert not timing.conditions.simulated
    precision = "tf32" if dtype == "tf32" else "ieee"
    assert torch.backends.cuda.matmul.fp32_precision == torch.backends.cudnn.conv.fp32_precision == precision
    assert torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction is False
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction is False
    assert torch.backends.cudnn.benchmark_limit == 0, "of all plans"


def test_triton_has_items_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    _, contenders, absent = _rivals(monkeypatch, triton=True)
    assert not contenders
    assert absent == {"Triton": "DeviceError: Triton is not installed"}


@pytest.mark.parametrize(("dtype", "suffix"), [("float32", ""), ("float16", " (as a GEMM)")])
def test_float16_matvec_is_named_a_gemm(dtype: str, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    item = make_matvec(64, 48, dtype)
    (cublas,), _ = pytorch.find_rivals(_make_kit(monkeypatch, module()), item, expect(item))
    assert cublas.name == f"cuBLAS of CUDA 0.0{suffix}, PyTorch 0.scripted"


def test_first_item_excludes_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch, clock = module(), [0.0]
    began: list[tuple[str, float]] = []

    def slow(index: int) -> None:
        clock[0] += 30.0

    torch.cuda.set_device = slow  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)

    def compare(kit: Any, item: Item) -> None:
        began.append((item.row, clock[0]))
        clock[0] += 20.0

    monkeypatch.setattr(versus, "_compare", compare)
    device = SimpleNamespace(simulated=False, clock_regime="free")
    folder = Folder(tmp_path, {"device": "x"})
    kit: Any = SimpleNamespace(
        folder=folder, device=device, dry=False, set_clocks=False, target="cuda:0", gpu=0
    )
    versus.run(kit, Budget(100.0, lambda: clock[0]))
    assert [at for _, at in began] == [30.0, 50.0, 70.0], "by a first one of 50 s there would be one alone"


def test_library_warms_up_as_long_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    torch, (cublas,), _ = _rivals(monkeypatch)
    clock = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    clock[0].record()
    cublas.time(0)
    clock[1].record()
    graphs_around = 4 * SAMPLE_DURATION_S
    warm_up_s = WARM_UP_DURATION_S + TimingRules().first_check_samples * SAMPLE_DURATION_S
    assert clock[0].elapsed_time(clock[1]) / 1e3 == pytest.approx(warm_up_s, abs=graphs_around)


def test_library_graph_has_at_most_our_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted_torch, "CALL_S", 2e-6)
    _, (cublas,), _ = _rivals(monkeypatch)
    replayed: list[int] = []
    replay = scripted_torch.Graph.replay
    monkeypatch.setattr(
        scripted_torch.Graph, "replay", lambda graph: (replayed.append(graph.calls), replay(graph))
    )
    cublas.time(0)
    assert set(replayed) == {MAX_GRAPH_CALLS}
    assert len(replayed) > TimingRules().min_samples * round(SAMPLE_DURATION_S / 2e-6 / MAX_GRAPH_CALLS), (
        "as many of them as ours"
    )


@pytest.mark.parametrize("dtype", ["float32", "tf32", "float16"])
def test_rival_with_narrower_factors_is_refused(dtype: str) -> None:
    item = make_matmul(64, 64, 1024, dtype)
    expected = expect(item)
    factors = [array.astype(np.float32) for array in expected.arrays]
    pytorch.check_result("exact", (factors[0] @ factors[1]).astype(expected.arrays[0].dtype), item, expected)
    for narrower in (_rounded_to_tf32, lambda array: array.astype(np.float16).astype(np.float32)):
        a, b = (narrower(array) for array in factors)
        got = (a @ b).astype(expected.arrays[0].dtype)
        if dtype == "float32":
            with pytest.raises(DeviceError, match="narrow is off by"):
                pytorch.check_result("narrow", got, item, expected)
        else:
            pytorch.check_result("narrow", got, item, expected)


def _rounded_to_tf32(array: Any) -> Any:
    bits = array.view(np.uint32)
    return ((bits + (1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)


def test_pytorch_fault_keeps_our_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = module()

    def faulty(index: int) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    torch.cuda.set_device = faulty
    item = make_matmul(8, 8, 8, "float32")
    contenders, absent = pytorch.find_rivals(_make_kit(monkeypatch, torch), item, expect(item))
    assert not contenders
    assert "illegal memory access" in absent["cuBLAS"]


def test_wrong_rival_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _, contenders, absent = _rivals(monkeypatch, off=0.5)
    assert not contenders
    assert "is off by 0.5" in absent["cuBLAS"]


def test_library_runs_while_it_is_metered(monkeypatch: pytest.MonkeyPatch) -> None:
    _, (cublas,), _ = _rivals(monkeypatch)
    cublas.start(None)
    time.sleep(0.05)
    calls = cublas.stop()
    assert calls.count % round(BATCH_DURATION_S / CALL_S) == 0
    assert calls.count > 0
    assert calls.seconds == pytest.approx(calls.count * CALL_S)


def test_library_slices_have_the_conditions_of_the_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    _, (cublas,), _ = _rivals(monkeypatch)
    capped = SteadyState(CALL_S, 1275.0, 150.0, (POWER_CAP,))
    rng = np.random.default_rng(0)
    monkeypatch.setattr(pytorch, "GpuSensors", lambda uuid: None)
    monkeypatch.setattr(pytorch, "NvmlBoard", lambda sensors, caller: VirtualBoard(A100, 1275.0, capped, rng))
    taken = cublas.run(0, 1.0)
    assert taken.throttle == (POWER_CAP,)
    assert taken.clock_mhz == pytest.approx(1275.0)
    assert taken.temperature_c > 0


@pytest.mark.parametrize(
    ("simulated", "set_clocks", "target", "reason"),
    [
        (True, False, "h200", "a100 (simulated) has no GPU"),
        (False, True, "cuda:0", "ours runs at a fixed 1275 MHz, and a library would at a free clock"),
        (False, False, "cuda:0@cold", "ours finds a cold L2, and a library a warm one"),
    ],
)
def test_other_conditions_are_not_compared(
    simulated: bool, set_clocks: bool, target: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", module())
    device = devices.open("a100")
    monkeypatch.setattr(device, "simulated", simulated)
    kit: Any = SimpleNamespace(device=device, gpu=0, dry=False, set_clocks=set_clocks, target=target)
    item = make_matmul(64, 48, 80, "float32")
    contenders, absent = versus.find_rivals(kit, item, expect(item))
    assert not contenders
    assert set(absent.values()) == {reason}


def test_failed_import_of_pytorch_keeps_our_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    kit: Any = SimpleNamespace(device=devices.open("a100"), gpu=0)
    item = make_matmul(8, 8, 8, "float32")
    contenders, absent = pytorch.find_rivals(kit, item, expect(item))
    assert not contenders
    assert absent["cuBLAS"].startswith("PyTorch is installed and does not work (import of torch halted")


def test_failing_library_keeps_our_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(turn: int) -> Any:
        raise RuntimeError("CUDA out of memory")

    _, (cublas,), _ = _rivals(monkeypatch)
    other = SimpleNamespace(name="other", time=no_memory)
    figures = measure_in_turn([cublas, other], 3, 0, 1.0)
    assert len(figures[cublas.name]["latency_s"]) == 3
    assert figures["other"] == {
        "latency_s": [],
        "energy_j": [],
        "problem": "RuntimeError: CUDA out of memory",
    }


def test_older_pytorch_is_set_by_its_own_switches() -> None:
    matmul_, cudnn = SimpleNamespace(allow_tf32=True), SimpleNamespace(allow_tf32=True)
    pytorch.allow_tf32(SimpleNamespace(cuda=SimpleNamespace(matmul=matmul_), cudnn=cudnn), False)
    assert matmul_.allow_tf32 is cudnn.allow_tf32 is False


def test_missing_library_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    device = devices.open("a100")
    kit: Any = SimpleNamespace(device=device, gpu=0)
    item = make_conv(1, 4, 8, 4, 3, 1, "float32")
    expected = expect(item)
    torch = module()
    monkeypatch.setitem(sys.modules, "torch", torch)
    _, absent = pytorch.find_rivals(kit, item, expected)
    assert absent["cuDNN"] == "PyTorch's GPU 0 is a Scripted GPU, not a a100"
    torch.cuda.is_available = lambda: False  # type: ignore[attr-defined]
    assert pytorch.find_rivals(kit, item, expected) == (
        [],
        {"cuDNN": "PyTorch 0.scripted sees no GPU"},
    )
    assert pytorch.read_gpu_uuid(torch) == f"GPU-{UUID}"
