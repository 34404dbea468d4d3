"""Kernels called on tensors of PyTorch itself, on the CPU. `.ci/run` installs a build for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ekc
from ekc.devices.cuda import call as calls
from ekc.errors import InvalidInput
from ekc.ir.comparison.compare import make_random_input_arrays
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.runtime.kernel import Kernel
from tests.scripted.cuda.arrays import OnGpu
from tests.scripted.cuda.driver import ScriptedDriver
from tests.scripted.cuda.node import ScriptedNode

torch = pytest.importorskip("torch", reason="PyTorch is not installed; .ci/run installs a build for the CPU")

OP = ekc.matmul(8, 12, 4)
DTYPES = {
    "float32": (torch.float32, torch.float32),
    "tf32": (torch.float32, torch.float32),
    "float16": (torch.float16, torch.float16),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "int8": (torch.int8, torch.int32),
    "int32": (torch.int32, torch.int32),
}
"""By element type, the types of tensors in and out of a product."""


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return ekc.compile(make_naive_schedule(OP))


@pytest.fixture
def a() -> Any:
    return torch.randn(8, 4)


@pytest.fixture
def b() -> Any:
    return torch.randn(4, 12)


def small(dtype: Any, *shape: int) -> Any:
    """Whole numbers from -3 to 3: every type holds their products and sums."""
    return torch.randint(-3, 4, shape).to(dtype)


@pytest.mark.parametrize("name", DTYPES)
def test_tensors_in_a_tensor_out(name: str) -> None:
    op = ekc.matmul(3, 5, 4, dtype=name)
    given, made = DTYPES[name]
    x, y = small(given, 3, 4), small(given, 4, 5)
    right = (x.double() @ y.double()).to(made)
    for found in (ekc.compile(make_naive_schedule(op))(x, y), op.reference(x, y)):
        assert (found.dtype, found.device.type, found.is_contiguous()) == (made, "cpu", True)
        torch.testing.assert_close(found, right, rtol=0, atol=0)


def test_result_of_another_type_than_the_inputs() -> None:
    op = ekc.matmul(3, 5, 4, dtype="float16", out_dtype="bfloat16")
    x, y = small(torch.float16, 3, 4), small(torch.float16, 4, 5)
    torch.testing.assert_close(ekc.compile(make_naive_schedule(op))(x, y), (x @ y).bfloat16())


VIEWS: dict[str, Callable[[], Any]] = {
    "transposed": lambda: torch.randn(4, 8).T,
    "expanded": lambda: torch.randn(4).expand(8, 4),
    "one value": lambda: torch.randn(()).expand(8, 4),
    "sliced": lambda: torch.randn(20, 9)[3:19:2, 1::2],
    "flipped": lambda: torch.randn(8, 4).flip(0),
    "of complex numbers, conjugated": lambda: torch.randn(8, 4, dtype=torch.complex64).conj().imag,
    "read-only": lambda: torch.from_numpy(np.ones((8, 4), np.float32)),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_are_taken(kernel: Kernel, view: str, b: Any) -> None:
    x = VIEWS[view]()
    torch.testing.assert_close(kernel(x, b), x @ b)
    torch.testing.assert_close(OP.reference(x, b), x @ b)


def test_views_of_bfloat16() -> None:
    kernel = ekc.compile(make_naive_schedule(ekc.matmul(4, 4, 4, dtype="bfloat16")))
    x = small(torch.bfloat16, 9, 12)
    for view in (x[::2, ::3][:4], x[0, :4].expand(4, 4), x[1:5, 2:6].T):
        torch.testing.assert_close(kernel(view, view), view @ view)


def test_gradient_is_refused(kernel: Kernel, a: Any, b: Any) -> None:
    weight = torch.nn.Parameter(b)
    for call in (kernel, OP.reference):
        with pytest.raises(InvalidInput, match=r"^B requires a gradient, .*; pass B\.detach\(\), or reg"):
            call(a, weight)
    with pytest.raises(InvalidInput, match=r"^A requires a gradient"):
        torch.func.grad(lambda x: kernel(x, b).sum())(a)
    with torch.no_grad():
        found = kernel(a, weight)
    assert type(found) is torch.Tensor
    assert not found.requires_grad
    torch.testing.assert_close(found, a @ b)
    with torch.inference_mode():
        torch.testing.assert_close(kernel(a, weight), a @ b)


class Own(torch.Tensor):
    """A class that a user derives."""


def test_derived_class_is_taken(kernel: Kernel, a: Any, b: Any) -> None:
    torch.testing.assert_close(kernel(a.as_subclass(Own), b), a @ b)


def test_default_device_does_not_matter(kernel: Kernel, a: Any, b: Any) -> None:
    with torch.device("meta"):
        found = kernel(a, b)
    torch.testing.assert_close(found, a @ b)


def fake(device: str) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(8, 4, device=device)


REFUSED: dict[str, Callable[[], Any]] = {
    r"A is a meta tensor, which holds no numbers; register an operator .*ekc\.torch\.register": lambda: (
        torch.empty(8, 4, device="meta")
    ),
    "A is a FakeTensor, which holds no numbers; register": lambda: fake("cpu"),
    "A is a FakeTensor, which holds no numbers; register an": lambda: fake("cuda"),
    r"A is torch\.sparse_coo, needed torch\.strided; pass A\.to_dense\(\)": lambda: torch.ones(
        8, 4
    ).to_sparse(),
    r"A is torch\.float64, needed float32; try A\.to\(torch\.float32\)": lambda: torch.ones(8, 4).double(),
    r"A is torch\.float8_e5m2, needed float32; try A\.to": lambda: torch.ones(8, 4).to(torch.float8_e5m2),
    r"A has shape \(4, 8\), needed \(8, 4\)": lambda: torch.ones(4, 8),
}


@pytest.mark.parametrize("message", REFUSED)
def test_unsuitable_tensors_are_refused_in_one_line(kernel: Kernel, message: str, b: Any) -> None:
    for call in (kernel, OP.reference):
        with pytest.raises(InvalidInput, match=message) as caught:
            call(REFUSED[message](), b)
        assert "\n" not in str(caught.value)


def test_words_that_may_be_bfloat16_are_viewed() -> None:
    op = ekc.matmul(4, 4, 4, dtype="bfloat16")
    x = torch.ones(4, 4).bfloat16()
    with pytest.raises(InvalidInput, match=r"try A\.view\(torch\.bfloat16\)$"):
        op.reference(x.view(torch.uint16), x)


def test_library_of_the_first_input_makes_the_result(kernel: Kernel, a: Any, b: Any) -> None:
    assert isinstance(kernel(a, b.numpy()), torch.Tensor)
    assert isinstance(kernel(a.numpy(), b), np.ndarray)
    torch.testing.assert_close(kernel(a, b.numpy()), torch.from_numpy(kernel(a.numpy(), b)))


def test_cpu_and_gpu_in_one_call_are_refused(
    kernel: Kernel, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = ScriptedDriver()
    monkeypatch.setattr(calls, "get_driver", lambda: driver)
    x, y = OnGpu(driver, a.numpy()), OnGpu(driver, b.numpy())
    with pytest.raises(InvalidInput, match="B is not on a GPU, others are: move it there"):
        kernel(x, b)
    with pytest.raises(InvalidInput, match="A is not on a GPU, others are: move it there"):
        kernel(a, y)
    for out in (torch.empty(8, 12), np.empty((8, 12), np.float32), torch.empty(8, 12, device="meta")):
        with pytest.raises(InvalidInput, match="out is not on a GPU, the inputs are: move it there"):
            kernel(x, y, out=out)
    with pytest.raises(InvalidInput, match="out and stream are for arrays on a GPU; these are not: leave"):
        kernel(a, b, out=torch.empty(8, 12))


def test_tensors_go_to_the_gpu_that_was_named() -> None:
    op = ekc.matmul(8, 8, 8, dtype="bfloat16")
    x, y = small(torch.bfloat16, 8, 8), small(torch.bfloat16, 8, 8)
    found = ekc.compile(make_naive_schedule(op), device=ScriptedNode().open())(x, y.T)
    torch.testing.assert_close(found, x @ y.T)


def test_result_is_not_memory_of_an_input(kernel: Kernel, a: Any, b: Any) -> None:
    found, before = kernel(a, b), kernel(a, b)
    found.zero_()
    torch.testing.assert_close(kernel(a, b), before)


def test_torch_compile_calls_the_kernel_between_two_graphs(kernel: Kernel, a: Any, b: Any) -> None:
    compiled = torch.compile(lambda x, y: kernel(x + 1, y) * 2, backend="eager")
    torch.testing.assert_close(compiled(a, b), (a + 1) @ b * 2)


def test_export_asks_for_an_operator(kernel: Kernel, a: Any, b: Any) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return kernel(x, y)

    with pytest.raises(InvalidInput, match=r"A is a FakeTensor, .*ekc\.torch\.register"):
        torch.export.export(Module(), (a, b), strict=False)


def test_numpy_gets_numpy_where_pytorch_is_loaded(kernel: Kernel) -> None:
    found = kernel(*make_random_input_arrays(OP))
    assert type(found) is np.ndarray
    assert type(OP.reference(*make_random_input_arrays(OP))) is np.ndarray
