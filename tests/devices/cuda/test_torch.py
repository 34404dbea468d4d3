"""`ekc.torch`: what PyTorch is told, on a stand-in that notes it; and PyTorch itself, where there is one."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import ekc
from ekc.search.space.naive import naive

OP = ekc.matmul(8, 12, 4)
WITHOUT = """
import sys
sys.modules["torch"] = None
import ekc, ekc.devices.kernel, ekc.devices.cuda.calls, ekc.devices.cuda.frameworks
"""


class Registered:
    """What the stand-in's custom_op returns."""

    def __init__(self, run: Callable[..., Any], told: dict[str, Any]) -> None:
        self.run, self.told, self.fake = run, told, None

    def register_fake(self, fake: Callable[..., Any]) -> None:
        self.fake = fake


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`ekc.torch` on a stand-in."""
    torch = ModuleType("torch")
    torch.Tensor, torch.float32 = object, "torch.float32"  # type: ignore[attr-defined]
    torch.library = SimpleNamespace(  # type: ignore[attr-defined]
        custom_op=lambda name, run, **told: Registered(run, told | {"name": name})
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delitem(sys.modules, "ekc.torch", raising=False)
    yield importlib.import_module("ekc.torch")
    sys.modules.pop("ekc.torch", None)


def test_what_pytorch_is_told(scripted: ModuleType) -> None:
    made = scripted.register(ekc.compile(naive(OP)), "mine::gemm")
    assert made.told == {
        "name": "mine::gemm",
        "mutates_args": (),
        "device_types": "cuda",
        "schema": "(Tensor A, Tensor B) -> Tensor",
    }
    like = SimpleNamespace(new_empty=lambda shape, dtype: (shape, dtype))
    assert made.fake(like, like) == ((8, 12), "torch.float32")


def test_nothing_needs_pytorch() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)


def test_in_pytorch_itself() -> None:
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    import ekc.torch

    made = ekc.torch.register(ekc.compile(naive(OP)), "ekc_test::gemm")
    with FakeTensorMode(allow_non_fake_inputs=True):
        a, b = torch.empty(8, 4, device="cuda"), torch.empty(4, 12, device="cuda")
        for called in (made, torch.ops.ekc_test.gemm):
            c = called(a, b)
            assert (tuple(c.shape), c.dtype, c.device.type) == ((8, 12), torch.float32, "cuda")
    with pytest.raises(NotImplementedError):
        made(torch.zeros(8, 4), torch.zeros(4, 12))
    if torch.cuda.is_available():
        a, b = torch.randn(8, 4, device="cuda"), torch.randn(4, 12, device="cuda")
        torch.testing.assert_close(made(a, b), a @ b)
        torch.library.opcheck(made, (a, b))
