"""`ekc.torch.register` with PyTorch itself: on the CPU, under a trace, and on a GPU where there is one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

import ekc
from ekc.errors import InvalidInput
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.runtime.kernel import Kernel
from tests.scripted.cuda.node import ScriptedNode

torch = pytest.importorskip("torch", reason="PyTorch is not installed; .ci/run installs a build for the CPU")

OP = ekc.matmul(8, 12, 4)
_NUMBERS = count()


def register(kernel: Kernel) -> tuple[str, Any]:
    """An operator under a name of its own."""
    import ekc.torch

    name = f"ekc_test::gemm{next(_NUMBERS)}"
    return name, ekc.torch.register(kernel, name)


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return ekc.compile(make_naive_schedule(OP))


@pytest.fixture
def gemm(kernel: Kernel) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ekc_test::")
        yield register(kernel)[1]


@pytest.fixture
def a() -> Any:
    return torch.randn(8, 4)


@pytest.fixture
def b() -> Any:
    return torch.randn(4, 12)


def test_operator_on_the_cpu_warns_once(kernel: Kernel, a: Any, b: Any) -> None:
    for _ in range(2):  # Once for each operator, not for each process.
        name, gemm = register(kernel)
        with pytest.warns(UserWarning, match=f"^{name}: tensors on the CPU are computed by ekc.emulator: "):
            found = gemm(a, b)
        assert (found.device.type, found.dtype) == ("cpu", torch.float32)
        torch.testing.assert_close(found, a @ b)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(gemm(a + 1, b), (a + 1) @ b)


def test_warning_names_the_gpu_that_computes(a: Any, b: Any) -> None:
    _, gemm = register(ekc.compile(make_naive_schedule(OP), device=ScriptedNode().open()))
    with pytest.warns(UserWarning, match=r"computed by Scripted A100 \(cuda:0\): the machine code itself"):
        found = gemm(a, b)
    torch.testing.assert_close(found, a @ b)


@pytest.mark.filterwarnings("ignore:ekc_test")
@pytest.mark.parametrize(
    ("name", "given", "made"),
    [
        ("bfloat16", torch.bfloat16, torch.bfloat16),
        ("float16", torch.float16, torch.float16),
        ("tf32", torch.float32, torch.float32),
        ("int8", torch.int8, torch.int32),
    ],
)
def test_operator_takes_other_types(name: str, given: Any, made: Any) -> None:
    _, gemm = register(ekc.compile(make_naive_schedule(ekc.matmul(4, 4, 4, dtype=name))))
    x, y = (torch.randint(-3, 4, (4, 4)).to(given) for _ in range(2))
    torch.testing.assert_close(gemm(x, y), (x.double() @ y.double()).to(made), rtol=0, atol=0)
    assert gemm(x.to("meta"), y.to("meta")).dtype == made
    torch.library.opcheck(gemm, (x, y), test_utils=("test_schema", "test_faketensor"))


def test_operator_takes_views(gemm: Any, b: Any) -> None:
    conjugated = torch.randn(8, 4, dtype=torch.complex64).conj().imag
    for x in (torch.randn(4, 8).T, torch.randn(4).expand(8, 4), torch.randn(9, 4)[1:], conjugated):
        torch.testing.assert_close(gemm(x, b), x @ b)


def test_opcheck_passes(gemm: Any, a: Any, b: Any) -> None:
    assert str(gemm._opoverload._schema).endswith("(Tensor A, Tensor B) -> Tensor")
    torch.library.opcheck(gemm, (a, b))
    torch.library.opcheck(gemm, (a.T.contiguous().T, b))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_sees_one_operator(gemm: Any, a: Any, b: Any, backend: str) -> None:
    compiled = torch.compile(lambda x, y: gemm(x + 1, y) * 2, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(a, b), (a + 1) @ b * 2)


class Module(torch.nn.Module):
    """One product."""

    def __init__(self, gemm: Any) -> None:
        super().__init__()
        self.gemm = gemm

    def forward(self, x: Any, y: Any) -> Any:
        return self.gemm(x, y).relu()


@pytest.mark.parametrize("strict", [False, True])
def test_export_keeps_it(gemm: Any, a: Any, b: Any, strict: bool) -> None:
    program = torch.export.export(Module(gemm), (a, b), strict=strict)
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert called == [gemm._opoverload, torch.ops.aten.relu.default]
    torch.testing.assert_close(program.module()(a, b), (a @ b).relu())


def test_export_for_other_extents_is_refused(gemm: Any, a: Any, b: Any) -> None:
    rows = torch.export.Dim("rows")
    with pytest.raises(torch._dynamo.exc.UserError, match=r"specialized it to be a constant \(8\)"):
        torch.export.export(Module(gemm), (a, b), dynamic_shapes=({0: rows}, None))


def test_registered_gradient_is_used(gemm: Any, a: Any, b: Any) -> None:
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        gemm(a.requires_grad_(), b).sum().backward()

    def backward(ctx: Any, grad: Any) -> Any:
        x, y = ctx.saved_tensors
        return grad @ y.T, x.T @ grad

    gemm.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    b.requires_grad_()
    gemm(a, b).square().sum().backward()
    found = a.grad.clone(), b.grad.clone()
    a.grad = b.grad = None
    (a @ b).square().sum().backward()
    torch.testing.assert_close(found, (a.grad, b.grad))


def test_fake_tensors_give_shape_type_and_device(gemm: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        for device in ("cpu", "cuda"):
            found = gemm(torch.empty(8, 4, device=device), torch.empty(4, 12, device=device))
            assert (tuple(found.shape), found.dtype, found.device.type) == ((8, 12), torch.float32, device)
        with pytest.raises(InvalidInput, match="B is on cuda:0, the first input on cpu: move one of them"):
            gemm(torch.empty(8, 4), torch.empty(4, 12, device="cuda"))
        with pytest.raises(InvalidInput, match=r"A has shape \(4, 12\), needed \(8, 4\)"):
            gemm(torch.empty(4, 12), torch.empty(4, 12))
        with pytest.raises(InvalidInput, match=r"A is torch\.float64, needed torch\.float32"):
            gemm(torch.empty(8, 4, dtype=torch.float64), torch.empty(4, 12))
    meta = torch.empty(8, 4, device="meta"), torch.empty(4, 12, device="meta")
    assert gemm(*meta).device.type == "meta"


def test_unsuitable_tensors_are_refused_in_one_line(gemm: Any, a: Any, b: Any) -> None:
    for x, message in (
        (a.to_sparse(), r"A is torch\.sparse_coo, needed torch\.strided"),
        (a.double(), r"A is torch\.float64, needed float32; try A\.to\(torch\.float32\)"),
        (a.T, r"A has shape \(4, 8\), needed \(8, 4\)"),
        (a.to("meta"), "B is on cpu, the first input on meta: move one of them"),
    ):
        with pytest.raises(InvalidInput, match=message) as caught:
            gemm(x, b)
        assert "\n" not in str(caught.value)


def test_kernel_without_inputs_is_refused() -> None:
    op = ekc.compute("ones", output="C", axes={"i": 4}, inputs={}, body=lambda i: 1.0)
    kernel = ekc.compile(make_naive_schedule(op))
    assert kernel().tolist() == [1.0] * 4
    with pytest.raises(InvalidInput, match=r"^ones: no inputs, by which PyTorch chooses a device"):
        register(kernel)


@pytest.mark.parametrize(
    "name", ["gemm", 3, None, "", "mine::", "a::b::c", "1a::x", "mine::x y", "mine::x\n"]
)
def test_name_of_another_form_is_refused(name: Any, kernel: Kernel) -> None:
    import ekc.torch

    with pytest.raises(InvalidInput) as caught:
        ekc.torch.register(kernel, name)
    assert str(caught.value) == (f'name: {name!r} is not of the form "namespace::operator"; try "mine::gemm"')


@pytest.mark.parametrize("other", [None, "mine::x", make_naive_schedule(OP)])
def test_other_object_than_a_kernel_is_refused(other: Any) -> None:
    import ekc.torch

    with pytest.raises(
        InvalidInput, match=r"^kernel: .* is no kernel; write register\(ekc.compile\(schedule\), "
    ) as caught:
        ekc.torch.register(other, "mine::x")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(', "namespace::operator")')


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU")
def test_operator_runs_on_a_gpu(gemm: Any, a: Any, b: Any) -> None:
    a, b = a.cuda(), b.cuda()
    torch.testing.assert_close(gemm(a, b), a @ b)
    torch.library.opcheck(gemm, (a, b))
    with pytest.raises(InvalidInput, match="B is not on a GPU, others are"):
        gemm(a, b.cpu())
