"""Arguments that operators refuse, each in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ekc.ir.operators as o
from ekc.errors import InvalidInput, ScheduleError
from ekc.ir.expr import gelu
from ekc.ir.operator import Operator, operator_from_json
from ekc.ir.schedule.schedule import Schedule
from tests.ir.test_operators import Array, arrays_for


def one(**change: Any) -> Operator:
    """A small operator by `compute`, with one argument changed."""
    base: dict[str, Any] = {"axes": {"i": 4}, "inputs": {"x": (4,)}, "body": lambda x, i: x[i]}
    return o.compute("mine", **(base | change))


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "zero": (
        lambda: o.matmul(0, 4, 4),
        r"extent of axis i: 0, at least 1; use 1",
    ),
    "negative": (lambda: o.matmul(4, -3, 4), r"axis j: -3, at least 1; use 1"),
    "fractional": (
        lambda: o.matmul(4, 4, 2.6),
        r"axis k: 2.6 is not a whole number; use 3",
    ),  # type: ignore[arg-type]
    "text": (lambda: o.matmul("4", 4, 4), r"axis i: '4' is not a whole number"),  # type: ignore[arg-type]
    "number as text": (
        lambda: o.matmul("64", 4, 4),
        r"'64' is not a whole number; use 64",
    ),  # type: ignore[arg-type]
    "half": (lambda: o.matmul(4, 4, 4, dtype="half"), r"no 'half'; types are .*; nearest is 'float16'"),
    "nan": (lambda: o.matmul(float("nan"), 4, 4), r"nan is not a whole number; use 1"),  # type: ignore[arg-type]
    "true": (lambda: o.matmul(True, 4, 4), r"axis i: True"),
    "huge": (lambda: o.matmul(2**50, 1, 1), rf"at most {2**40}; use {2**40} or fewer"),
    "huge tensor": (lambda: o.matmul(2**30, 2**30, 1), r"C has \d+ elements, at most 2\*\*40"),
    "conv zero": (
        lambda: o.conv2d(1, 0, 4, 4, out_channels=4),
        r"c: 0, at least 1; use 1",
    ),
    "conv fraction": (
        lambda: o.conv2d(1, 4, 4, 4, out_channels=4, stride=1.5),
        r"stride: 1.5 is not a whole number",
    ),  # type: ignore[arg-type]
    "padding": (
        lambda: o.conv2d(1, 4, 4, 4, out_channels=4, padding=-1),
        r"padding: -1, at least 0; use 0",
    ),
    "padding word": (
        lambda: o.conv2d(1, 4, 4, 4, out_channels=4, padding="smae"),
        r"padding: 'smae' is neither a number, .* nor one of same, valid; use 'same'",
    ),
    "padding transposed word": (
        lambda: o.conv_transpose1d(1, 4, 4, out_channels=4, padding="full"),
        r"padding: 'full' is neither a number, .* nor one of same, valid; use 'valid'",
    ),
    "padding triple": (
        lambda: o.conv2d(1, 4, 4, 4, out_channels=4, padding=((1, 2, 3), 0)),  # type: ignore[arg-type]
        r"padding: \(1, 2, 3\) is no pair \(before, after\); try \(1, 2\)",
    ),
    "padding entries": (
        lambda: o.conv1d(1, 4, 4, out_channels=4, padding=(1, 2)),
        r"padding: \(1, 2\) has 2 entries for 1 image dimension; try 1, or .* \(\(1, 2\),\)",
    ),
    "padding after": (
        lambda: o.conv3d(1, 4, 4, 4, 4, out_channels=4, padding=(0, (1, -2), 0)),
        r"padding: -2, at least 0; use 0",
    ),
    "padding before takes all": (
        lambda: o.conv_transpose1d(1, 4, 2, out_channels=4, padding=((4, 0),)),
        r"padding: \(4, 0\) leaves no output along w; use 1",
    ),
    "three strides": (
        lambda: o.conv2d(1, 4, 4, 4, out_channels=4, stride=(1, 1, 1)),
        r"stride: .*neither one whole number nor a pair",
    ),  # type: ignore[arg-type]
    "large filter": (
        lambda: o.conv2d(1, 4, 3, 9, out_channels=4, kernel=6),
        r"kernel: spans 6 elements, the padded h has 3; use padding=2",
    ),
    "dilated filter": (
        lambda: o.conv2d(1, 4, 9, 3, out_channels=4, dilation=3, padding=1),
        r"spans 7 elements, the padded w has 5; use padding=2",
    ),
    "groups of c": (
        lambda: o.conv2d(1, 6, 5, 5, out_channels=8, groups=4),
        r"groups: 4 does not divide c=6; use 2",
    ),
    "groups of o": (
        lambda: o.conv2d(1, 6, 5, 5, out_channels=8, groups=3),
        r"groups: 3 does not divide out_channels=8; use 2",
    ),
    "groups": (lambda: o.conv2d(1, 6, 5, 5, out_channels=8, groups=0), r"groups: 0, at least 1; use 1"),
    "layout": (
        lambda: o.conv2d(1, 4, 5, 5, out_channels=4, layout="NHCW"),
        r"layout: no 'NHCW'; choices are NCHW, NHWC; nearest is 'NHWC'",
    ),
    "layout of another rank": (
        lambda: o.conv3d(1, 4, 5, 5, 5, out_channels=4, layout="NHWC"),
        r"choices are NCDHW, NDHWC; nearest is 'NDHWC'",
    ),
    "pair of strides": (
        lambda: o.conv1d(1, 4, 5, out_channels=4, stride=(1, 1)),  # type: ignore[arg-type]
        r"stride: \(1, 1\) is neither one whole number nor a tuple of one",
    ),
    "pair of three": (
        lambda: o.conv3d(1, 4, 5, 5, 5, out_channels=4, kernel=(1, 1)),  # type: ignore[arg-type]
        r"kernel: \(1, 1\) is neither one whole number nor a triple",
    ),
    "deep filter": (
        lambda: o.conv3d(1, 4, 2, 9, 9, out_channels=4, kernel=5),
        r"spans 5 elements, the padded d has 2; use padding=2",
    ),
    "nothing left": (
        lambda: o.conv_transpose2d(1, 4, 2, 9, out_channels=4, kernel=3, padding=3),
        r"padding: 3 leaves no output along h; use 1",
    ),
    "output padding": (
        lambda: o.conv_transpose1d(1, 4, 5, out_channels=4, stride=2, output_padding=2),
        r"output_padding: 2 along w is not below its stride or dilation; use 1",
    ),
    "groups transposed": (
        lambda: o.conv_transpose1d(1, 4, 5, out_channels=6, groups=4),
        r"groups: 4 does not divide out_channels=6; use 2",
    ),
    "reduce combine": (
        lambda: o.reduce((4, 4), 0, "avg"),
        r"combine: no 'avg'; choices are sum, prod, max, min, mean, argmax, argmin; nearest is 'mean'",
    ),
    "reduce prod of int8": (
        lambda: o.reduce((4, 5), 1, "prod", dtype="int8"),
        r"Y multiplies 5 factors of up to 128, which can leave int32; use 4 factors",
    ),
    "argmax as another type": (
        lambda: o.reduce((4, 5), 1, "argmax", out_dtype="float32"),
        r"out_dtype: argmax compares elements as they are and gives int32; leave it out",
    ),
    "argmin summed": (
        lambda: o.reduce((4, 5), 1, "argmin", acc_dtype="float32"),
        r"acc_dtype: argmin compares elements as they are and gives int32; leave it out",
    ),
    "argmax of all": (
        lambda: o.reduce((2**16, 2**15), None, "argmax"),
        r"argmax: 2147483648 elements, at most 2147483647, as int32 counts; take fewer axes",
    ),
    "argmx": (lambda: o.reduce((4, 5), 1, "argmx"), r"; nearest is \'argmax\'"),
    "reduce axis": (
        lambda: o.reduce((4, 4), 2),
        r"axis: 2 is not from -2 to 1; use 1",
    ),
    "reduce axis twice": (lambda: o.reduce((4, 4), (0, -2)), r"axes: \(0, -2\) names axis 0 twice"),
    "reduce nothing": (lambda: o.reduce((4, 4), ()), r"axes: names no axis"),
    "reduce axis fraction": (lambda: o.reduce((4, 4), 0.5), r"axis: 0.5 is not from -2 to 1"),  # type: ignore[arg-type]
    "reduce shape": (lambda: o.reduce(4, 0), r"shape of X: 4 is not a tuple of extents"),  # type: ignore[arg-type]
    "softmax axis": (lambda: o.softmax((4, 4), -3), r"axis: -3 is not from -2 to 1; use -2"),
    "softmax axis twice": (lambda: o.softmax((4, 4), (0, -2)), r"axes: \(0, -2\) names axis 0 twice"),
    "norm axes": (
        lambda: o.layer_norm((4, 4), axes=(0, 2)),
        r"axis: 2 is not from -2 to 1; use 1",
    ),
    "norm axes twice": (lambda: o.rms_norm((4, 4), axes=(1, -1)), r"axes: \(1, -1\) names axis 1 twice"),
    "norm no axes": (lambda: o.rms_norm((4, 4), axes=()), r"axes: names no axis"),
    "softmax shape": (lambda: o.softmax((4, 0)), r"extent of X: 0, at least 1; use 1"),
    "no shape": (lambda: o.softmax(()), r"shape of X: \(\) has no dimensions"),
    "eps": (lambda: o.layer_norm((4, 4), -1), r"eps: -1 is not a number of at least 0; try 1e-5"),
    "eps nan": (lambda: o.rms_norm((4, 4), float("nan")), r"eps: nan is not a number"),
    "eps text": (lambda: o.rms_norm((4, 4), "small"), r"eps: 'small' is not a number"),  # type: ignore[arg-type]
    "dtype": (
        lambda: o.matmul(4, 4, 4, dtype="float31"),
        r"dtype: no 'float31'; types are float32, tf32, .*, int32; nearest is 'float32'",
    ),
    "acc dtype": (lambda: o.matmul(4, 4, 4, acc_dtype="flot16"), r"dtype: no 'flot16'.*nearest is 'float16'"),
    "out dtype": (lambda: o.matmul(4, 4, 4, out_dtype="f"), r"dtype: no 'f'"),
    "axis name": (lambda: one(axes={"my axis": 4}), r"axis: 'my axis' is not an identifier .*try 'my_axis'"),
    "axis digit": (
        lambda: one(axes={"2i": 4}, body=lambda x: x[0]),
        r"axis: '2i' is not an identifier .*try 'i'",
    ),
    "axis code": (lambda: one(axes={"i;exit(1)": 4}, body=lambda x: x[0]), r"is not an identifier"),
    "axis keyword": (
        lambda: one(axes={"register": 4}, body=lambda x: x[0]),
        r"'register' is a reserved word.*try 'register_'",
    ),
    "axis cuda": (lambda: one(axes={"threadIdx": 4}, body=lambda x: x[0]), r"'threadIdx' is a reserved word"),
    "axis tensor": (
        lambda: one(axes={"x": 4}, body=lambda x: x),
        r"axis: 'x' is the name of a tensor too; try 'x_'",
    ),
    "axis twice": (lambda: one().then("y", axes={"i": 4}, body=lambda C, i: C[i]), r"'i' is used twice"),
    "no axes": (
        lambda: one(axes={}, body=lambda x: x[0]),
        r"at least one spatial axis; use an axis of extent 1",
    ),
    "tensor name": (
        lambda: one(inputs={"float": (4,)}, body=lambda i: i),
        r"tensor: 'float' is a reserved word.*try 'float_'",
    ),
    "tensor twice": (lambda: one(output="x"), r"tensor: 'x' is declared twice"),
    "operator name": (
        lambda: o.compute("a b", axes={"i": 4}, inputs={}, body=lambda i: i),
        r"operator: 'a b' is not an identifier",
    ),
    "shape": (lambda: one(inputs={"x": 4}), r"shape of x: 4 is not a tuple of extents; try \(4,\)"),
    "shape zero": (lambda: one(inputs={"x": (0,)}), r"extent of x: 0, at least 1; use 1"),
    "body name": (
        lambda: one(body=lambda x, j: x[j]),
        r"parameter 'j' is neither a tensor nor an axis \(x, i\)",
    ),
    "no dimensions": (
        lambda: one(inputs={"x": (4,), "s": ()}),
        r"shape of s: \(\) has no dimensions; try \(1,\)",
    ),
    "body no function": (lambda: one(body=5), r"body: 5 is no function of tensors and axes"),
    "deep body": (
        lambda: one(body=lambda x, i: sum(x[i + k] for k in range(1200))),
        r"body of C: goes deeper than 200 operations .*; use a reduction axis",
    ),
    "deep epilogue": (
        lambda: one().epilogue(lambda c: sum((c for _ in range(1200)), c)),
        r"body of C: goes deeper than 200 operations",
    ),
    "an input called as the option": (
        lambda: one().epilogue(lambda c, out_dtype: c + out_dtype, out_dtype=(4,)),  # type: ignore[arg-type]
        r"out_dtype=\(4,\) is no type; call an input out_dtype_ instead",
    ),
    "types in a list": (lambda: one(dtype=["float32"]), r"dtype: no \['float32'\]; types are"),
    "requantised": (
        lambda: o.matmul(4, 4, 4, dtype="int8").epilogue(lambda c: c * 0.01, out_dtype="int8"),
        r"not exact in int32; .*stored as 'float32', 'float16', 'bfloat16' \(an epilogue takes out_dtype",
    ),
    "requantised by given type": (
        lambda: o.matmul(4, 4, 4, dtype="int8").then(
            "D", axes={"p": 4}, body=lambda C, p: C[p, 0] * 0.01, acc_dtype="float32", out_dtype="int8"
        ),
        r"D is summed in float32 and cannot be stored as int8; legal are float32",
    ),
    "body nothing": (lambda: one(body=lambda x, i: None), r"body: returned None, needed an expression"),
    "rank": (lambda: one(body=lambda x, i: x[i, i]), r"has 2 indices, x has 1 dimensions"),
    "index product": (
        lambda: one(body=lambda x, i: x[i * i]),
        r"i \* i is not a sum of integer multiples of axes",
    ),
    "index data": (lambda: one(body=lambda x, i: x[x[i]]), r"is not a sum of integer multiples"),
    "index fraction": (lambda: one(body=lambda x, i: x[i * 0.5]), r"is not a sum of integer multiples"),
    "index by zero": (lambda: one(body=lambda x, i: x[i // 0]), r"divides by 0, the least divisor is 1"),
    "combine": (lambda: one(combine="mean"), r"combine: no 'mean'; choices are sum, prod, max, min"),
    "einsum form": (
        lambda: o.einsum("mk->k->", (4, 4)),
        r"'mk->k->' is not of the form 'ab,bc->ac', 'ab,bc', '...ab,...bc->...ac' or 'ab->a'",
    ),
    "einsum nothing": (lambda: o.einsum("a,->a", (4,), ()), r"'a,->a' is not of the form"),
    "einsum seven": (
        lambda: o.einsum("a,a,a,a,a,a,a", *[(4,)] * 7),
        r"7 operands, at most 6; multiply some of them beforehand",
    ),
    "einsum dots lost": (
        lambda: o.einsum("...mk,kn->mn", (2, 4, 4), (4, 4)),
        r"the output 'mn' lacks '...'; write '...mn'",
    ),
    "einsum dots made": (
        lambda: o.einsum("mk,kn->...mn", (4, 4), (4, 4)),
        r"the output '...mn' has '...', which no operand has; leave it out",
    ),
    "einsum separated dots": (
        lambda: o.einsum("...k,...k", (3, 2, 4), (4, 2, 4)),
        r"'...' is \(4, 2\) in '...k' and \(3, 2\) before it, .*: 4 is neither 3 nor 1",
    ),
    "einsum dots rank": (
        lambda: o.einsum("...mk,kn->...mn", (4,), (4, 4)),
        r"'...mk' names at least 2 dimensions, the shape \(4,\) has 1",
    ),
    "einsum third name": (
        lambda: o.einsum("ab,bD,Dc->ac", (4, 4), (4, 4), (4, 4)),
        r"'D' is the name of a tensor; try 'd'",
    ),
    "einsum two dots": (lambda: o.einsum("...a...,a", (4, 4), (4,)), r"is not of the form"),
    "einsum shapes": (lambda: o.einsum("ab,bc->ac", (4, 4)), r"has 2 operands, 1 shape given"),
    "einsum shape": (lambda: o.einsum("a,b->ab", 4, (5,)), r"shape of A: 4 is not a tuple of .*try \(4,\)"),  # type: ignore[arg-type]
    "einsum diagonal": (
        lambda: o.einsum("aa,ab->b", (4, 5), (4, 4)),
        r"'a' is 4 in one place and 5 in another",
    ),
    "einsum twice": (lambda: o.einsum("ab,bc->aa", (4, 5), (5, 4)), r"output 'aa' must name .* each once"),
    "einsum rank": (
        lambda: o.einsum("mk,kn->mn", (4,), (4, 4)),
        r"'mk' names 2 dimensions, the shape \(4,\) has 1",
    ),
    "einsum extents": (
        lambda: o.einsum("mk,kn->mn", (4, 5), (6, 4)),
        r"'k' is 5 in one place and 6 in another",
    ),
    "einsum output": (lambda: o.einsum("mk,kn->mz", (4, 5), (5, 4)), r"output 'mz' must name letters"),
    "einsum names": (lambda: o.einsum("AB,Bx->Ax", (4, 5), (5, 4)), r"'A' is the name of a tensor; try 'a'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_line(name: str) -> None:
    make, words = BAD[name]
    with pytest.raises(InvalidInput, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a, b: (a,), r"takes 2 arrays \(A, B\), got 1"),
        (lambda a, b: (a, b, b), r"takes 2 arrays \(A, B\), got 3"),
        (lambda a, b: (a, b.T), r"B has shape \(4, 3\), needed \(3, 4\)"),
        (lambda a, b: (a.astype(np.float64), b), r"A is float64, needed float32; try A.astype\('float32'\)"),
        (lambda a, b: (a, b.astype(np.int32)), r"B is int32, needed float32; try B.astype\('float32'\)"),
    ],
)
def test_wrong_arrays_are_named_in_message(
    change: Callable[[Array, Array], tuple[Array, ...]], words: str
) -> None:
    op = o.matmul(2, 4, 3)
    with pytest.raises(InvalidInput, match=words):
        op.reference(*change(*arrays_for(op)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d | {"name": "x; y"}, "operator: 'x; y' is not an identifier"),
        (
            lambda d: d | {"computes": [d["computes"][0] | {"output": ["C", [2, 5], "float32"]}]},
            "is not indexed by its spatial axes",
        ),
        (
            lambda d: d | {"computes": [d["computes"][0] | {"body": ["system", "rm"]}]},
            "is not one that ekc writes",
        ),
        (
            lambda d: d | {"computes": [d["computes"][0] | {"axes": [["i", 2, False]]}]},
            "'j' in the body|'k' in the body",
        ),
        (lambda d: d | {"inputs": [["A", [2, 3], "int7"]]}, "dtype: no 'int7'"),
        (lambda d: {k: v for k, v in d.items() if k != "inputs"}, "not the JSON of one"),
    ],
)
def test_json_of_no_operator_is_refused(
    change: Callable[[dict[str, Any]], dict[str, Any]], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        operator_from_json(change(o.matmul(2, 4, 3).to_json()))


def test_json_tensor_without_dimensions_is_refused() -> None:
    data = one().to_json()
    data["inputs"].append(["s", [], "float32"])
    with pytest.raises(InvalidInput, match=r"shape of s: \(\) has no dimensions"):
        operator_from_json(data)


def test_parameters_with_a_default_keep_it() -> None:
    x = np.ones(4, np.float32)
    assert one(body=lambda x, i, s=0.5: x[i] * s).reference(x)[0] == 0.5
    assert one().epilogue(lambda c, s=2.0: c * s).reference(x)[0] == 2
    assert one().epilogue(gelu).computes[-1].body == one().epilogue(lambda c: gelu(c)).computes[-1].body
    with_input = one().epilogue(lambda c, s=2.0: c * s, s=(4,))
    assert [t.name for t in with_input.inputs] == ["x", "s"]


def test_numpy_numbers_and_sequences_are_accepted() -> None:
    assert o.softmax((4, 8), np.int64(1)) == o.softmax((4, 8), 1)
    assert o.layer_norm((4, 8), np.float32(0.5)) == o.layer_norm((4, 8), 0.5)
    assert o.reduce((4, 8), range(2)) == o.reduce((4, 8), np.array([0, 1])) == o.reduce((4, 8), (0, 1))
    assert o.reduce(np.array([4, 8]), np.int64(-1)) == o.reduce((4, 8), -1)  # type: ignore[arg-type]
    image = o.conv2d(1, 4, 8, 8, out_channels=4, kernel=np.array([3, 1]))  # type: ignore[arg-type]
    assert image == o.conv2d(1, 4, 8, 8, out_channels=4, kernel=(3, 1))


def test_operator_without_inputs_has_then_and_reference() -> None:
    iota = o.compute("iota", axes={"i": 4}, inputs={}, body=lambda i: i * 2)
    op = iota.then("D", axes={"p": 4}, body=lambda C, p: C[p] + 1)
    assert op.reference().tolist() == [1, 3, 5, 7]
    with pytest.raises(ScheduleError, match="there are no tensors read; leave it out"):
        Schedule(iota).cache_read("A", "shared")
    with pytest.raises(ScheduleError, match="there are no inputs; leave it out"):
        Schedule(iota).pack("A", (1, 0))
