"""`ekc.torch.check` finds the first layer that is wrong, and results that are wrong for another reason."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ekc
from ekc.errors import InvalidInput, KernelFault
from ekc.ir.dtypes import parse_dtype
from ekc.ir.schedule.naive import make_naive_schedule

torch = pytest.importorskip("torch", reason="PyTorch is not installed; .ci/run installs a build for the CPU")

from ekc.torch.module_graph import read_module  # noqa: E402
from tests.pytorch.naive_kernels import compile_naively  # noqa: E402


class Chain(torch.nn.Module):
    """Three linear layers, the second with a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (torch.nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Any) -> Any:
        return self.third(torch.relu(self.second(self.first(x))))


@pytest.fixture(autouse=True)
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ekc.torch: ")
        yield


@pytest.fixture(scope="module")
def chain() -> tuple[Any, Any, Any]:
    """A module, the same with naive kernels, and an input."""
    torch.manual_seed(0)
    module, x = Chain().eval(), torch.randn(4, 6)
    return module, compile_naively(module, read_module(module, x)), x


def test_right_kernels_are_right(chain: Any) -> None:
    module, fast, x = chain
    checked = ekc.torch.check(module, fast, x)
    assert [one.name for one in checked.layers] == ["first", "second", "third"]
    assert checked.ok
    assert checked.first_wrong is None
    assert all(0 < one.error < one.tolerance < 1e-4 for one in checked.layers)
    assert str(checked).startswith("3 kernels checked\nlayer")
    assert str(checked).count("right") == 4


def test_first_wrong_layer_is_named_with_its_error(chain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, fast, x = chain
    call = next(one for one in fast.ekc_report.layers if one.name == "second")
    wrong = ekc.matmul(4, 6, 6).epilogue(lambda c, bias: ekc.silu(c + bias), bias=(6,))
    assert [t.shape for t in wrong.inputs] == [t.shape for t in call.op.inputs]
    from ekc.torch.operators import register_layer

    operator = register_layer(ekc.compile(make_naive_schedule(wrong)))
    monkeypatch.setitem(fast.operators, call.op.digest, operator)
    with torch.no_grad():
        y = module.second(module.first(x))
        error = (torch.nn.functional.silu(y) - torch.relu(y)).abs().max().item()
    with pytest.raises(
        KernelFault, match=r"^Chain: second \(matmul_epilogue\): error (\S+), tolerance "
    ) as caught:
        ekc.torch.check(module, fast, x)
    found = float(str(caught.value).split("error ")[1].split(",")[0])
    assert found == pytest.approx(error, rel=1e-2)


def test_wrong_weights_are_wrong_results(chain: Any) -> None:
    """Each kernel is right for the weights that it has, which are not the module's."""
    _, fast, x = chain
    other = Chain().eval()
    with pytest.raises(KernelFault, match=r"^Chain: linear\S*: error 0\.\d+, tolerance \d"):
        ekc.torch.check(other, fast, x)


def test_arguments_are_checked(chain: Any) -> None:
    module, fast, x = chain
    with pytest.raises(InvalidInput, match=r"^fast: needed a module that ekc\.torch\.compile returned"):
        ekc.torch.check(module, module, x)
    with pytest.raises(InvalidInput, match=r"^x has shape \(4, 7\), compiled for \(4, 6\)"):
        ekc.torch.check(module, fast, torch.zeros(4, 7))


@pytest.mark.parametrize(
    ("found", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([np.inf, -np.inf, np.nan], [np.inf, -np.inf, np.nan], 0.0),
        ([np.inf, 0.0], [1.0, 0.0], np.inf),
        ([np.nan], [1.0], np.inf),
        ([np.inf], [1e6], 0.0),
        ([65504.0], [1e6], np.inf),
    ],
)
def test_infinities_and_nan_equal_themselves(found: Any, expected: Any, error: float) -> None:
    from ekc.torch.layer_check import _measure_error

    a, b = (np.asarray(x, np.float64) for x in (found, expected))
    assert _measure_error(a, b, parse_dtype("float16"), np.zeros(a.shape)) == error


def test_a_choice_excuses_its_own_element_alone() -> None:
    from ekc.torch.layer_check import _measure_error

    found, expected = np.array([1.0, 2.0]), np.array([0.0, 0.0])
    assert _measure_error(found, expected, parse_dtype("float32"), np.array([0.0, 3.0])) == 1.0


def test_verdicts_of_a_table(chain: Any) -> None:
    module, fast, x = chain
    checked = ekc.torch.check(module, fast, x)
    wrong = replace(checked, layers=(replace(checked.layers[0], error=1.0), *checked.layers[1:]))
    assert not wrong.ok
    assert wrong.first_wrong == wrong.layers[0]
    assert str(wrong).count("wrong") == 1


class Masked(torch.nn.Module):
    """A constant mask of truth values."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(5, 7).tril().bool())

    def forward(self, x: Any) -> Any:
        return x.masked_fill(self.mask, 0.0)


def test_constant_masks_are_no_numbers() -> None:
    module, x = Masked().eval(), torch.randn(2, 5, 7)
    assert ekc.torch.check(module, compile_naively(module, read_module(module, x)), x).ok
