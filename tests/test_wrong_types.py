"""Every public entry point given arguments of the wrong type: it works, or it says so in one line.

A table of functions with arguments that are right, and a list of values; each value takes the place of each
argument in turn.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ekc
from ekc.errors import CompileError, EkcError, InvalidInput
from ekc.governor import Policy, detect_period
from ekc.ir.schedule import Split
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.validate import check_identifier

WRONG: tuple[Any, ...] = (
    *(None, [], [1], [None], ["x"], (), (1, "a"), {}, {"a": 1}, {1, 2}),
    *("", "x", "4", "ü", "a\0b", "int", "\udc80", "x" * 500, b"x", Path("/nowhere/x")),
    *(True, np.bool_(True), 0, -1, 2**70, 10**5000, np.int64(4), 2.5, np.float32(2.5), 1j),
    *(float("nan"), float("inf"), np.zeros(2), np.zeros((99, 9)), object(), int),
)

MM, MV = ekc.matmul(8, 8, 8), ekc.matvec(4, 4)
S = ekc.Schedule(MM)
FLOAT = {"dtype": "float32"}
TYPES: dict[str, Any] = FLOAT | {"acc_dtype": None, "out_dtype": None}
PRODUCT = {"m": 4, "n": 4, "k": 4, "transpose_a": False, "transpose_b": False}
CONV = {"n": 1, "c": 4, "w": 6, "out_channels": 4, "kernel": 3, "stride": 1, "padding": 1, "groups": 1}
LINE = np.sin(np.arange(400) / 3)


def _mine(**change: Any) -> ekc.Operator:
    return ekc.compute(
        **({"name": "mine", "axes": {"i": 4}, "inputs": {"A": (4,)}, "body": lambda A: A[0]} | change)
    )


ENTRIES: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
    "matmul": (ekc.matmul, PRODUCT | TYPES),
    "batch_matmul": (ekc.batch_matmul, {"b": 2} | PRODUCT | TYPES),
    "matvec": (ekc.matvec, {"m": 4, "k": 4} | TYPES),
    "einsum": (lambda text, a, b: ekc.einsum(text, a, b), {"text": "ij,jk->ik", "a": (4, 4), "b": (4, 4)}),
    "conv1d": (ekc.conv1d, CONV | {"dilation": 1, "layout": "NCW"} | TYPES),
    "conv_transpose1d": (ekc.conv_transpose1d, CONV | {"output_padding": 0, "layout": "NCW"} | TYPES),
    "reduce": (ekc.reduce, {"shape": (4, 4), "axes": 0, "combine": "sum", "keepdims": False} | TYPES),
    "argmax": (ekc.reduce, {"shape": (4, 4), "axes": 0, "combine": "argmax", "keepdims": False} | FLOAT),
    "softmax": (ekc.softmax, {"shape": (4, 4), "axis": -1} | TYPES),
    "layer_norm": (ekc.layer_norm, {"shape": (4, 4), "axes": -1, "eps": 1e-5} | TYPES),
    "rms_norm": (ekc.rms_norm, {"shape": (4, 4), "axes": -1, "eps": 1e-5} | TYPES),
    "compute": (
        _mine,
        {"name": "mine", "axes": {"i": 4}, "reduce": None, "inputs": {"A": (4,)}, "combine": "sum"}
        | {"body": lambda A, i: A[i], "output": "C"}
        | TYPES,
    ),
    "an element": (lambda x: _mine(body=lambda A, i: x), {"x": 1.0}),
    "an index": (lambda x: _mine(body=lambda A, i: A[x]), {"x": 1}),
    "arithmetic": (lambda x: _mine(body=lambda A, i: x * A[i] / x + A[i // 2] - x), {"x": 2}),
    "functions": (lambda x, y: ekc.maximum(ekc.gelu(x), ekc.abs(y)), {"x": 1.0, "y": 2.0}),
    "choices": (
        lambda x, y: ekc.where(ekc.less(x, y), ekc.where(ekc.equal(x, y), x, y), x),
        {"x": 1.0, "y": 2.0},
    ),
    "then": (
        MM.then,
        {"output": "D", "axes": {"p": 8}, "body": lambda C, p: C[p, 0], "reduce": None, "inputs": None}
        | {"combine": "sum", "dtype": None, "acc_dtype": None, "out_dtype": None},
    ),
    "epilogue": (
        lambda body, out_dtype, bias: MM.epilogue(body, out_dtype=out_dtype, bias=bias),
        {"body": lambda c, bias: c + bias, "out_dtype": None, "bias": (8,)},
    ),
    "Operator": (ekc.Operator, {"name": "mine", "inputs": MV.inputs, "computes": MV.computes}),
    "Schedule": (lambda op, steps: ekc.Schedule(op, steps).program, {"op": MM, "steps": ()}),
    "from_json": (ekc.Schedule.from_json, {"text": S.to_json()}),
    "split": (S.split, {"loop": "i", "factors": (2,)}),
    "a factor": (lambda x: S.split("i", (x,)), {"x": 2}),
    "reorder": (lambda a, b: S.reorder(a, b), {"a": "j", "b": "i"}),
    "bind": (S.bind, {"loop": "i", "level": "block.x"}),
    "unroll": (S.unroll, {"loop": "k", "factor": 2}),
    "cache_read": (
        S.cache_read,
        {"source": "A", "scope": "shared", "at": "k", "vector": 1, "order": (), "pad": 0, "swizzle": 1}
        | {"reader": "", "panel": 0},
    ),
    "pipeline": (
        S.cache_read("A", "shared", at="k").pipeline,
        {"loop": "k", "stages": 2, "copy": "register"},
    ),
    "hole": (ekc.hole, {"name": "x", "values": [1, 2]}),
    "a tuple of a hole": (lambda x: ekc.hole("x", [(1, 2), x]), {"x": (2, 1)}),
    "list_tiles": (ekc.list_tiles, {"extent": 64, "most": (8, 8)}),
    "space": (
        ekc.space,
        {"op": MM, "target": "a100", "space": [Split("i", (ekc.hole("x", [2, 4]),))]},
    ),
    "devices.open": (ekc.devices.open, {"target": "a100"}),
    "Policy": (Policy, {"objective": "energy", "max_slowdown": 0.1, "min_saving": 0.1, "remaining_s": None}),
    "Governor": (
        ekc.Governor,
        {"max_slowdown": 0.1, "gpus": (), "each": False, "actuator": "auto", "advise": False},
    ),
    "detect_period": (detect_period, {"samples": LINE, "sampling_hz": 10.0, "sensor_s": 0.1}),
}
"""Functions that cost little, with arguments that are right."""


def _refusal(function: Callable[..., object], arguments: dict[str, Any]) -> str:
    """The message of the error of ekc; "" where the call works."""
    try:
        function(**arguments)
    except CompileError:
        return ""  # It shows the line of source that the compiler refused.
    except EkcError as problem:
        return str(problem)
    return ""


def _holds(function: Callable[..., object], right: dict[str, Any]) -> None:
    assert _refusal(function, right) == ""
    for name in right:
        for value in WRONG:
            words = _refusal(function, right | {name: value})
            assert "\n" not in words
            assert len(words) < 700


@pytest.mark.parametrize("entry", ENTRIES)
def test_argument_of_wrong_type_is_one_line(entry: str) -> None:
    _holds(*ENTRIES[entry])


@pytest.fixture(scope="module")
def kernel() -> Any:
    return ekc.compile(make_naive_schedule(MV))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[ekc.TuningResult, Path]:
    file = tmp_path_factory.mktemp("wrong") / "t.db"
    return ekc.tune(MV, target="a100", trials=1, progress=False, records=file), file


A, X = np.ones((4, 4), np.float32), np.ones(4, np.float32)


def test_arrays_and_launches_of_wrong_type(kernel: Any) -> None:
    _holds(lambda a, x: kernel(a, x), {"a": A, "x": X})
    _holds(lambda a, x: MV.reference(a, x), {"a": A, "x": X})
    ptx, name, y = kernel.ptx, kernel.launches[0].name, np.zeros(4, np.float32)
    launch = {"ptx_text": ptx, "kernel_name": name, "grid": (1, 1, 1), "block": (4, 1, 1), "args": [A, X, y]}
    _holds(
        ekc.emulator.launch,
        launch
        | {"dynamic_shared": 0, "blocks": None, "sanitize": True, "max_instructions": 5000}
        | {"argument_names": ["x"]},
    )
    _holds(lambda x: ekc.emulator.launch(**launch | {"grid": (x,)}), {"x": 1})
    _holds(lambda x: ekc.emulator.launch(**launch | {"args": [x, X, y]}), {"x": A})


def test_compile_best_and_export_of_wrong_type(
    result: tuple[ekc.TuningResult, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _holds(
        ekc.compile,
        {"schedule": make_naive_schedule(MV), "arch": None, "limits": None, "device": None, "name": None},
    )
    _holds(ekc.codegen.nvrtc.compile, {"source": "", "arch": "sm_80", "options": ()})
    found, file = result
    _holds(
        ekc.best,
        {"op": MV, "records": file, "target": "a100", "objective": "energy", "max_slowdown": 0.1}
        | {"any_toolchain": False},
    )
    _holds(found.export, {"folder": tmp_path / "out", "name": None, "cubin": False})


@pytest.mark.parametrize(
    "name",
    [
        *("op", "target", "trials", "objective", "max_slowdown", "clocks", "seed", "records"),
        *("time_budget_s", "start", "executor", "effort", "callback", "progress", "space"),
    ],
)
def test_tune_argument_of_wrong_type_is_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Accepted values start no search: the search has tests of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ekc.search.run._run_search", lambda *_: None)
    right = {"op": MV, "target": "a100", "progress": False}
    for value in WRONG:
        if value is int and name == "callback":
            continue
        assert "\n" not in _refusal(ekc.tune, right | {name: value})


API: Any = ekc
"""`ekc` without the types of its functions."""
ONE_LINE: dict[str, tuple[Callable[[], object], str]] = {
    "an executor": (lambda: API.tune(MV, executor=3), "executor: 3 has no submit(); give a concurrent.fut"),
    "a class of executors": (
        lambda: API.tune(MV, executor=ThreadPoolExecutor),
        "executor: ThreadPoolExecutor is a class; make one of it, executor=ThreadPoolExecutor()",
    ),
    "a word for progress": (lambda: API.tune(MV, progress="no"), "progress: 'no' is neither True nor False"),
    "a word for any_toolchain": (
        lambda: API.best(MV, "t.db", "a100", any_toolchain="yes"),
        "any_toolchain: 'yes' is neither True nor False",
    ),
    "a schedule of nothing": (lambda: API.Schedule(None), "schedule: None is no operator; try ekc.matmul("),
    "a schedule of a list": (
        lambda: API.Schedule(MV, []),
        "schedule: [] is no tuple of steps; try .split(...) and the like",
    ),
    "a callback": (lambda: API.tune(MV, callback=3), "callback: 3 cannot be called; give a function of one"),
    "a list": (
        lambda: API.Operator.reference(MV, A.tolist(), X),
        "A is of type list, needed an array; try numpy.array(..., 'float32') of shape (4, 4)",
    ),
    "None": (
        lambda: API.Operator.reference(MV, A, None),
        "x is None, needed an array; try numpy.array(..., 'float32') of shape (4,)",
    ),
    "a word as a flag": (
        lambda: API.matmul(4, 4, 4, transpose_b="false"),
        "transpose_b: 'false' is neither True nor False",
    ),
    "pairs as axes": (
        lambda: _mine(axes=[("i", 4)]),
        "axes: [('i', 4)] holds no values by name; write axes={\"i\": 64}",
    ),
    "a name": (
        lambda: _mine(name="ü"),
        "operator: 'ü' is not an identifier (a letter from a to z, then letters, digits, _); try 'u'",
    ),
}


@pytest.mark.parametrize("case", ONE_LINE)
def test_message_names_argument_and_remedy(case: str) -> None:
    act, words = ONE_LINE[case]
    with pytest.raises(InvalidInput) as raised:
        act()
    assert str(raised.value).startswith(words)


@pytest.mark.parametrize(
    "name",
    ["ü", "größe", "日本", "ïf", "1é", "", "ﬁ", "٣x", "x²", "µ", "été rouge", "é" * 300, "\udc80", "__ß"],
)
def test_proposed_name_is_accepted(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not an identifier") as raised:
        check_identifier("tensor", name)
    proposed = str(raised.value).rpartition("try ")[2].strip("'")
    assert check_identifier("tensor", proposed) == proposed


def test_missing_pytorch_message_says_what_to_install() -> None:
    hidden = "import sys; sys.modules['torch'] = None\nimport ekc.torch"
    child = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=60)
    assert child.returncode == 1
    last = child.stderr.splitlines()[-1]
    assert last.startswith("ImportError: ekc.torch needs PyTorch (")
    assert last.endswith("): pip install torch")
    assert "During handling" not in child.stderr
