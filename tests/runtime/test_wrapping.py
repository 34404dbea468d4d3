"""int32 wraps modulo 2**32, as in NumPy: in reference, evaluator and executed PTX; verdicts say so."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import ekc
import ekc.ir.operators as o
from ekc.cli import main
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.operator import Operator
from ekc.ir.random_arrays import RandomTensor
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.verify import verify
from tests.codegen import samples
from tests.drawn.checks import run_everywhere

Arrays = list[NDArray[Any]]
LEAST, MOST = -(2**31), 2**31 - 1
WRAPPED = "int32 results left int32 and wrapped modulo 2**32"


def _wrapped(values: Any) -> Any:
    """Python integers, however large, as int32."""
    return ((np.asarray(values, object) + 2**31) % 2**32 - 2**31).astype(np.int32)


def _exact(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(object)


def _product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    return _wrapped(_exact(a) @ _exact(b))


def _each(body: Callable[..., ex.Expr], out: str | None = None) -> Schedule:
    """Elementwise, of two tensors."""
    op = o.compute(
        "each",
        axes={"i": 32},
        inputs={"a": (32,), "b": (32,)},
        body=lambda a, b, i: body(a[i], b[i], i),
        dtype="int32",
        out_dtype=out,
    )
    return Schedule(op).bind("i", "thread.x")


def _threads(op: Operator, **inlined: bool) -> Schedule:
    """A product of 4 x 4 by as many threads, each sum held in a register."""
    s = Schedule(op).bind("i", "thread.y").bind("j", "thread.x").cache_write("C")
    return s.compute_inline("C") if inlined.get("inlined") else s


def _over_lanes() -> Schedule:
    op = o.reduce((2, 96), 1, "sum", dtype="int32")
    s = Schedule(op).split("k1", (32,)).reorder("i0", "k1.1", "k1.0")
    return s.bind("k1.1", "thread.x").cache_write("Y")


def _convolved(x: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
    """Windows of 3 of one image, padded by 1."""
    padded = _exact(np.pad(x[0], ((0, 0), (1, 1))))
    windows = np.stack([padded[:, i : i + 8] for i in range(3)], axis=1)
    return _wrapped(np.einsum("oir,iqrl->ol", _exact(w), windows[:, None]))[None]


MATMUL = o.matmul(4, 4, 64, dtype="int32")
Right = Callable[..., Any]
KERNELS: dict[str, tuple[Callable[[], Schedule], Right]] = {
    "matmul": (lambda: _threads(MATMUL), _product),
    "in two launches": (lambda: Schedule(MATMUL).rfactor("k", 8), _product),
    "by atomics": (lambda: samples.shared_sum(4, 4, 260, dtype="int32", out_dtype="int32"), _product),
    "clamped to int8": (
        lambda: _threads(o.matmul(4, 4, 64, dtype="int32", out_dtype="int8")),
        lambda a, b: np.clip(_product(a, b), -128, 127),
    ),
    "stored as float32": (
        lambda: _threads(o.matmul(4, 4, 64, dtype="int32", out_dtype="float32")),
        lambda a, b: _product(a, b).astype(np.float32),
    ),
    "epilogue": (
        lambda: _threads(
            o.matmul(4, 4, 8, dtype="int32").epilogue(lambda c, d: ex.relu(c * c) - d, d=(4,)), inlined=True
        ),
        lambda a, b, d: _wrapped(_exact(np.maximum(_wrapped(_exact(_product(a, b)) ** 2), 0)) - _exact(d)),
    ),
    "epilogue of int8": (
        lambda: _threads(o.matmul(4, 4, 8, dtype="int8").epilogue(lambda c, d: c * d, d=(4,)), inlined=True),
        lambda a, b, d: _wrapped(_exact(_product(a, b)) * _exact(d)),
    ),
    "einsum": (
        lambda: Schedule(o.einsum("bij,bj->bi", (2, 3, 20), (2, 20), dtype="int32")),
        lambda a, b: _wrapped(np.einsum("bij,bj->bi", _exact(a), _exact(b))),
    ),
    "reduce over lanes": (_over_lanes, lambda x: _wrapped(_exact(x).sum(axis=1))),
    "reduce on the spot": (
        lambda: Schedule(o.reduce((3, 70), 1, "sum", dtype="int32")),
        lambda x: _wrapped(_exact(x).sum(axis=1)),
    ),
    "convolution": (
        lambda: Schedule(o.conv1d(1, 3, 8, out_channels=4, kernel=3, padding=1, dtype="int32")),
        _convolved,
    ),
    "product": (lambda: _each(lambda a, b, i: a * b * (i + 1)), lambda a, b: _wrapped(
        _exact(a) * _exact(b) * np.arange(1, 33)
    )),
    "larger after an overflow": (
        lambda: _each(lambda a, b, i: ex.maximum(a + 1, a)),
        lambda a, b: np.maximum(_wrapped(_exact(a) + 1), a),
    ),
    "sum of squares, then relu": (
        lambda: _each(lambda a, b, i: ex.relu(a * a + b * b)),
        lambda a, b: np.maximum(_wrapped(_exact(a) ** 2 + _exact(b) ** 2), 0),
    ),
    "absolute": (
        lambda: _each(lambda a, b, i: ex.minimum(ex.abs(a - b), ex.abs(b))),
        lambda a, b: np.minimum(
            _wrapped(abs(_exact(_wrapped(_exact(a) - _exact(b))))), _wrapped(abs(_exact(b)))
        ),
    ),
}  # fmt: skip


@cache
def made(name: str) -> tuple[Schedule, CompiledKernel]:
    schedule = KERNELS[name][0]()
    return schedule, compile_schedule(schedule, "sm_75")


def _arrays(op: Operator, fill: Callable[[tuple[int, ...], int, int], NDArray[Any]]) -> Arrays:
    return [fill(t.shape, *t.dtype.integer_limits).astype(t.dtype.numpy_dtype) for t in op.inputs]


def _drawn(op: Operator, seed: int) -> Arrays:
    """Values over the whole range, often its ends."""
    rng = np.random.default_rng(seed)

    def fill(shape: tuple[int, ...], low: int, high: int) -> NDArray[Any]:
        values = rng.integers(low, high + 1, shape)
        ends = rng.choice([low, low + 1, -1, 0, 1, high], shape)
        return np.where(rng.random(shape) < 0.3, ends, values)

    return _arrays(op, fill)


@pytest.mark.parametrize("name", KERNELS)
@settings(max_examples=2)
@given(seed=st.integers(0, 2**32))
@example(seed=0)
def test_int32_wraps_as_in_numpy(name: str, seed: int) -> None:
    schedule, compiled = made(name)
    arrays = _drawn(schedule.op, seed)
    right = KERNELS[name][1](*arrays)
    for values in run_everywhere(schedule, arrays, compiled):
        np.testing.assert_array_equal(values, right)


@pytest.mark.parametrize("value", [2**20, -(2**20), 2**16])
def test_product_that_wraps_to_0_is_reported(value: int) -> None:
    schedule, compiled = made("matmul")
    arrays = [np.full(t.shape, value, np.int32) for t in schedule.op.inputs]
    assert not schedule.op.reference(*arrays).any()
    assert not ekc.compile(schedule)(*arrays).any()
    verdict = verify(schedule, compiled, ReferenceEvaluator(schedule.op, tuple(arrays)))
    assert verdict.ok
    assert verdict.worst_agreement.wrapped
    assert WRAPPED in str(verdict)


@pytest.mark.parametrize("name", KERNELS)
def test_verdict_says_that_a_result_wrapped_and_only_then(name: str) -> None:
    schedule, compiled = made(name)
    for fill, wraps in ((_large, True), (_few, False)):
        arrays = tuple(_arrays(schedule.op, fill))
        verdict = verify(schedule, compiled, ReferenceEvaluator(schedule.op, arrays))
        assert verdict.ok, verdict
        assert (WRAPPED in str(verdict)) == verdict.worst_agreement.wrapped == wraps


def _large(shape: tuple[int, ...], low: int, high: int) -> NDArray[Any]:
    values = np.full(shape, high)
    values.reshape(-1)[0] = low
    return values


def _few(shape: tuple[int, ...], low: int, high: int) -> NDArray[Any]:
    return np.arange(int(np.prod(shape))).reshape(shape) % 7 - 3


def test_intermediate_result_that_wraps_is_reported_too() -> None:
    """The result fits, and yet is not the exact one."""
    schedule = _each(lambda a, b, i: ex.minimum(a * b, 5))
    arrays = (np.full(32, 2**16 + 1, np.int32), np.full(32, 2**15, np.int32))
    right = ReferenceEvaluator(schedule.op, arrays).evaluate_tensor("C")
    assert (right.wrapped, set(right.values.ravel())) == (True, {float(LEAST + 2**15)})


def test_readers_of_a_wrapped_tensor_count_as_wrapped() -> None:
    op = o.matmul(2, 2, 4, dtype="int32").epilogue(lambda c: ex.minimum(c, 0))
    arrays = tuple(np.full(t.shape, 2**15, np.int32) for t in op.inputs)
    right = ReferenceEvaluator(op, arrays).evaluate_tensor("C_out")
    assert (right.wrapped, right.values.tolist()) == (True, [[0, 0], [0, 0]])


def test_sums_beyond_float64_are_exact() -> None:
    """63 products of 2**61 and one of 1: float64 would lose the last."""
    a, b = np.full((4, 64), 2**30, np.int32), np.full((64, 4), 2**31 - 1, np.int32)
    a[:, 5], b[5] = 1, 1
    assert (MATMUL.reference(a, b) == _product(a, b)).all()


def test_sums_of_int8_are_refused_by_their_extents() -> None:
    assert o.matmul(2, 2, MOST // 2**14, dtype="int8").outputs[0].dtype.name == "int32"
    for make in (
        lambda: o.matmul(2, 2, MOST // 2**14 + 1, dtype="int8"),
        lambda: o.einsum("ik,k->i", (2, 2**18), (2**18,), dtype="int8"),
        lambda: o.reduce((2**25,), 0, "sum", dtype="int8"),
    ):
        with pytest.raises(InvalidInput, match="can leave int32"):
            make()


@pytest.mark.parametrize("command", ["run", "check"])
def test_shell_says_that_results_wrapped(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def draw_large(drawn: RandomTensor, bits: NDArray[Any]) -> NDArray[Any]:
        return np.full(bits.shape, 2**20, np.int32)

    monkeypatch.setattr(RandomTensor, "_values", draw_large)
    asked = [command, "matmul", "4", "4", "64", "--dtype", "int32"]
    assert main(asked) == 0
    assert WRAPPED in " ".join(capsys.readouterr().out.split())
    assert main([*asked, "--json"]) == 0
    (launch,) = json.loads(capsys.readouterr().out)["launches"]
    assert launch.get("executed", launch)["wrapped"] is True


def test_summary_of_a_run_says_that_results_wrapped() -> None:
    """Sums of products of the usual inputs, squared, leave int32."""
    op = o.matmul(2, 2, 64, dtype="int32").epilogue(lambda c: c * c)
    result = ekc.tune(op, target="a100", trials=1, seed=0, progress=False)
    assert WRAPPED in " ".join(result.summary().split())
