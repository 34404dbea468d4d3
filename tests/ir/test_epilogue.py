"""Epilogues: as functions and as text, fused and not."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import ekc
import ekc.ir.expr as ex
import ekc.ir.operators as o
from ekc.codegen.generate import compile_schedule, generate
from ekc.errors import InvalidInput
from ekc.ir import functions
from ekc.ir.epilogue import EPILOGUE_FUNCTIONS, parse_epilogue
from ekc.ir.lowering.fusion import group_fusable_computes
from ekc.ir.operator import Operator, operator_from_json
from ekc.ir.printer import format_program
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.execute import execute
from tests.codegen import samples
from tests.drawn.checks import make_inputs, run_everywhere
from tests.ir.test_operators import Array, close

ERF = {
    0.0: 0.0,
    0.1: 0.1124629160182849,
    0.5: 0.5204998778130465,
    1.0: 0.8427007929497149,
    -1.5: -0.9661051464753108,
    2.0: 0.9953222650189527,
    3.0: 0.9999779095030014,
    6.5: 1.0,
}
"""Abramowitz and Stegun, table 7.1, with more digits."""


def doubles(op: Operator) -> list[Array]:
    return [a.astype(np.float64) for a in make_inputs(op)]


def test_bias_and_activation_match_numpy() -> None:
    op = o.matmul(5, 7, 9).epilogue(lambda c, bias: ekc.relu(c + bias), bias=(7,))
    a, b, bias = doubles(op)
    close(op, op.reference(*make_inputs(op)), np.maximum(a @ b + bias, 0))
    assert op.name == "matmul_epilogue"
    assert str(op.computes[1]) == "C_out[i_out, j_out] = max(C[i_out, j_out] + bias[j_out], 0)"
    assert operator_from_json(op.to_json()) == op
    assert op.min_bytes == 4 * (45 + 63 + 7 + 35), "C itself is no compulsory traffic"
    assert op.flops == 2 * 5 * 7 * 9 + 2 * 5 * 7


@pytest.mark.parametrize("shape", [(6, 1, 1), (1, 6, 1, 1), (5,), (4, 1), (2, 6, 4, 5), (1,)])
def test_epilogue_shapes_broadcast_as_in_numpy(shape: tuple[int, ...]) -> None:
    conv = o.conv2d(2, 3, 6, 7, out_channels=6, kernel=3)
    op = conv.epilogue(lambda y, u: y * u, u=shape)
    x, w, u = make_inputs(op)
    close(op, op.reference(x, w, u), conv.reference(x, w).astype(np.float64) * u.reshape(shape))


HIDDEN_NAMES: dict[str, tuple[Operator, tuple[str, ...]]] = {
    "product": (o.matmul(5, 7, 9), ("i", "j", "k")),
    "convolution": (o.conv2d(2, 3, 6, 7, out_channels=6), ("s", "n", "q")),
    "batch": (o.batch_matmul(2, 3, 4, 5), ("b", "k", "b_")),
    "norm": (o.layer_norm((6, 8)), ("i0", "p1", "mean")),
    "chain": (o.matmul(5, 7, 9).epilogue(lambda c: ekc.relu(c)), ("i_out", "k", "C")),
    "einsum": (o.einsum("zy,yx->zx", (3, 4), (4, 5)), ("x", "y", "z")),
}
"""Operators, and inputs with the names of axes or of intermediate results that no user of them wrote."""


@pytest.mark.parametrize("name", HIDDEN_NAMES)
def test_inputs_may_have_the_names_of_hidden_axes(name: str) -> None:
    plain, (a, b, c) = HIDDEN_NAMES[name]
    width = plain.outputs[0].shape[-1]
    shapes = dict.fromkeys((a, b, c), (width,))
    op = plain.epilogue(parse_epilogue(f"result * {a} + {b} - {c}", shapes), **shapes)
    *arrays, x, y, z = make_inputs(op)
    close(op, op.reference(*arrays, x, y, z), plain.reference(*arrays).astype(np.float64) * x + y - z)
    assert operator_from_json(op.to_json()) == op
    assert [t.name for t in op.inputs] == [t.name for t in plain.inputs] + [a, b, c]


def test_hidden_axes_are_renamed_in_the_kernel_too() -> None:
    op = o.conv2d(1, 3, 6, 6, out_channels=4).epilogue(lambda y, s, k: y * s + k, s=(4, 1, 1), k=(1,))
    assert "s_ < 3" in str(op)
    reference, *others = run_everywhere(make_naive_schedule(op), make_inputs(op))
    for found in others:
        np.testing.assert_allclose(found.reshape(reference.shape), reference, rtol=1e-5, atol=1e-5)


def test_further_computes_may_have_the_names_of_hidden_axes() -> None:
    op = o.matmul(5, 7, 9).then("j", axes={"p": 5}, inputs={"k": (5,)}, body=lambda C, k, p: C[p, 0] * k[p])
    a, b, k = doubles(op)
    close(op, op.reference(*make_inputs(op)), (a @ b)[:, 0] * k)


def test_operators_without_a_clash_keep_their_digest() -> None:
    op = o.matmul(5, 7, 9).epilogue(lambda c, bias: c + bias, bias=(7,))
    assert [a.name for c in op.computes for a in c.axes] == ["i", "j", "k", "i_out", "j_out"]


def test_epilogues_chain_and_cast() -> None:
    op = o.matvec(6, 8, dtype="float16", out_dtype="float32")
    op = op.epilogue(lambda y, s: ekc.tanh(y * s), s=(6,)).epilogue(lambda y: y + 1, out_dtype="float16")
    assert [str(t) for t in op.inputs[2:]] == ["s[6] float32"], "the dtype of the result it works on"
    assert [c.output.name for c in op.computes[:-1]] == ["y", "y_out"]
    assert str(op.outputs[0]) == "y_out2[6] float16"
    a, x, s = doubles(op)
    close(op, op.reference(*make_inputs(op)), np.tanh((a @ x) * s) + 1)


def test_erf_matches_c_library() -> None:
    points = np.array(list(ERF))
    found = functions.NUMPY_FUNCTIONS["erf"](points.reshape(2, 4))
    assert found.shape == (2, 4)
    np.testing.assert_allclose(found.ravel(), list(ERF.values()), rtol=3e-16, atol=0)
    assert functions.NUMPY_FUNCTIONS["erf"](points.astype(np.float32)).dtype == np.float32
    assert functions.NUMPY_FUNCTIONS["erf"](1) == math.erf(1)


FUNCTIONS: dict[str, tuple[Callable[[ex.Expr], ex.Expr], Callable[[Array], Array]]] = {
    "sigmoid": (ekc.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "silu": (ekc.silu, lambda x: x / (1 + np.exp(-x))),
    "gelu": (ekc.gelu, lambda x: x / 2 * (1 + np.array([math.erf(v / math.sqrt(2)) for v in x]))),
    "gelu tanh": (
        lambda x: ekc.gelu(x, "tanh"),
        lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "erf": (ekc.erf, lambda x: np.array([math.erf(v) for v in x])),
    "tanh": (ekc.tanh, np.tanh),
    "exp": (ekc.exp, np.exp),
    "log": (
        lambda x: ekc.log(ekc.maximum(ekc.abs(x), 1e-30)),
        lambda x: np.log(np.maximum(np.abs(x), 1e-30)),
    ),
}
POINTS = np.concatenate([np.linspace(-9, 9, 1021), [-88.0, 88.0, -1e-30]]).astype(np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_emulated_functions_are_exact_to_a_few_units(name: str) -> None:
    """Functions as NVRTC compiles them, over their range and at its ends."""
    ours, right = FUNCTIONS[name]
    op = o.compute("f", axes={"i": POINTS.size}, inputs={"x": (POINTS.size,)}, body=lambda x, i: ours(x[i]))
    kernel = ekc.compile(Schedule(op).split("i", (128,)).bind("i.0", "block.x").bind("i.1", "thread.x"))
    expected = right(POINTS.astype(np.float64))
    # In 1 + erf(x) and similar sums, the error is relative to 1 where the two terms cancel.
    scale = np.abs(expected) + (np.abs(POINTS) if name.startswith("gelu") else 0)
    eps = float(np.finfo(np.float32).eps)
    assert np.all(np.abs(kernel(POINTS) - expected) <= 8 * eps * scale + 1e-37)
    np.testing.assert_allclose(op.reference(POINTS), expected, rtol=eps, atol=1e-37)


def test_gelu_forms_differ_by_documented_bound() -> None:
    exact, near = FUNCTIONS["gelu"][1], FUNCTIONS["gelu tanh"][1]
    x = np.linspace(-9, 9, 20001)
    assert 4e-4 < np.abs(exact(x) - near(x)).max() < 5e-4


def two_behind(dtype: str = "float32", m: int = 30) -> Operator:
    op = o.matmul(m, 32, 16, dtype=dtype).epilogue(lambda c, bias: ekc.gelu(c + bias), bias=(32,))
    return op.epilogue(lambda d, before: d + before, before=(m, 32))


def test_fused_epilogue_is_one_launch() -> None:
    schedule = samples.tiled(two_behind(), pipeline=False).compute_inline("C").compute_inline("C_out")
    compiled = compile_schedule(schedule)
    assert [x.arguments for x in compiled.launches] == [("A", "B", "bias", "before", "C_out2")]
    assert compiled.workspace_bytes == 0
    assert compile_schedule(Schedule(two_behind()).cache_write("C")).workspace_bytes == 2 * 30 * 32 * 4


def test_epilogue_chain_fuses_from_either_end() -> None:
    start = Schedule(two_behind()).cache_write("C")
    first = start.compute_inline("C").compute_inline("C_out")
    last = start.compute_inline("C_out").compute_inline("C")
    inside_out = Schedule(two_behind()).compute_inline("C_out").split("i", (4,)).cache_write("C", vector=4)
    assert format_program(first.program) == format_program(last.program)
    assert generate(first).source.partition("extern")[2] == generate(last).source.partition("extern")[2]
    assert len(inside_out.compute_inline("C").program.nests) == 1


def test_fused_epilogue_rounds_once() -> None:
    """C is beyond the largest float16, D is not."""
    op = o.matvec(4, 64, dtype="float16").epilogue(lambda y: y * 2**-12)
    arrays = (np.full((4, 64), 64, np.float16), np.full(64, 64, np.float16))
    apart = Schedule(op).cache_write("y")
    fused = apart.compute_inline("y")
    assert np.isinf(execute(op, compile_schedule(apart), arrays)[-1].output).all()
    for output in run_everywhere(fused, arrays):
        np.testing.assert_array_equal(output, np.full(4, 64, np.float16))


@pytest.mark.parametrize(
    ("body", "vectors"),
    [
        (lambda C, R, p, q: C[p, q] + R[p, q], True),
        (lambda C, R, p, q: C[p, q] + R[2 * p, q], True),
        (lambda C, R, p, q: C[p, q] + R[p, q + 1], False),
        (lambda C, R, p, q: C[p, q] + R[p, q // 2], False),
        (lambda C, R, p, q: C[p, q] + R[q, p], False),
        (lambda C, R, p, q: C[p, q] + R[p, 2 * q] + q, False),
    ],
)
def test_epilogue_reads_are_vectors(body: Callable[..., ex.Expr], vectors: bool) -> None:
    op = o.matmul(128, 128, 8).then("D", axes={"p": 128, "q": 128}, inputs={"R": (256, 256)}, body=body)
    schedule = samples.tiled(op, pipeline=False).compute_inline("C")
    compiled = compile_schedule(schedule)
    assert ("R_vector" in compiled.cuda_source) == vectors
    arrays = [
        np.random.default_rng(i).uniform(-1, 1, t.shape).astype(np.float32) for i, t in enumerate(op.inputs)
    ]
    (run,) = execute(op, compiled, arrays)
    assert not run.report.findings
    np.testing.assert_allclose(run.output, op.reference(*arrays), rtol=1e-6, atol=1e-5)


def test_fusable_computes() -> None:
    def named(op: Operator) -> list[list[str]]:
        return [[c.output.name for c in chain] for chain in group_fusable_computes(op)]

    product = o.matmul(8, 8, 8)
    assert named(two_behind()) == [["C", "C_out", "C_out2"]]
    gated = product.epilogue(lambda c: ekc.silu(c))
    gated = gated.then(
        "U",
        axes={"a": 8, "b": 8},
        reduce={"s": 64},
        inputs={"V": (8, 64), "W": (64, 8)},
        body=lambda V, W, a, b, s: V[a, s] * W[s, b],
    )
    both = gated.then("G", axes={"p": 8, "q": 8}, body=lambda C_out, U, p, q: C_out[p, q] * U[p, q])
    assert named(both) == [["C", "C_out"], ["U", "G"]], "behind the larger of two"
    twice = product.epilogue(lambda c: ekc.relu(c)).then(
        "E", axes={"p": 8, "q": 8}, body=lambda C, C_out, p, q: C[p, q] + C_out[p, q]
    )
    assert named(twice) == [["C"], ["C_out", "E"]], "C is read twice and must be stored"
    turned = product.then("D", axes={"p": 8, "q": 8}, body=lambda C, p, q: C[q, p])
    assert named(turned) == [["C"], ["D"]]
    normed = product.then("m", axes={"p": 8}, reduce={"q": 8}, body=lambda C, p, q: C[p, q], combine="max")
    assert named(normed) == [["C"], ["m"]]


OP = ekc.matmul(8, 4, 16)
SAME: list[tuple[str, Callable[..., object], dict[str, tuple[int, ...]]]] = [
    ("relu(c + bias)", lambda c, bias: ekc.relu(c + bias), {"bias": (4,)}),
    ("c * 0.125", lambda c: c * 0.125, {}),
    ("2 * c - 1", lambda c: 2 * c - 1, {}),
    ("silu(gate) * c", lambda c, gate: ekc.silu(gate) * c, {"gate": (8, 4)}),
    ("-c / (1 + exp(-c))", lambda c: -c / (1 + ekc.exp(-c)), {}),
    (" maximum(c, before) + bias ", lambda c, b, e: ekc.maximum(c, b) + e, {"before": (8, 4), "bias": (1,)}),
]


@pytest.mark.parametrize(("text", "body", "inputs"), SAME, ids=[text for text, _, _ in SAME])
def test_text_equals_lambda(
    text: str, body: Callable[..., object], inputs: dict[str, tuple[int, ...]]
) -> None:
    written = OP.epilogue(parse_epilogue(text, inputs), **inputs)
    elements = [ekc.ir.expr.Load(t, (ekc.ir.expr.Var("i_out"), ekc.ir.expr.Var("j_out"))) for t in "C"]
    loads = {x.tensor: x for x in ekc.ir.expr.find_loads(written.computes[-1].body)}
    assert written.computes[-1].body == body(elements[0], *(loads[name] for name in inputs))
    assert [t.name for t in written.inputs] == ["A", "B", *inputs]


TWO = ("equal", "less", "maximum", "minimum")
"""Functions of two values."""


@pytest.mark.parametrize("name", sorted(EPILOGUE_FUNCTIONS))
def test_text_calls_every_function(name: str) -> None:
    arguments = {"where": "less(c, 0), 0, c"}.get(name, "c, 1" if name in TWO else "c")
    text = f"{name}({arguments})"
    text = f"where({text}, c, 2)" if name in ("equal", "less") else text
    assert len(OP.epilogue(parse_epilogue(text, {})).computes) == 2


def test_message_shortens_long_text() -> None:
    for text in ("c + " + "9" * 5000, "c + " + "d.real" * 500, "c + " + "1" * 3000):
        with pytest.raises(InvalidInput) as caught:
            OP.epilogue(parse_epilogue(text, {}))
        assert len(str(caught.value)) < 400


def test_text_numbers_are_computed_as_in_python() -> None:
    """As in the body of a function, where Python does it before ekc sees an expression."""
    written = OP.epilogue(parse_epilogue("c * (1 / 3) + maximum(2, 3) * -2", {}))
    assert str(written.computes[-1].body) == f"C[i_out, j_out] * {1 / 3} + {-6}"


@pytest.mark.parametrize("name", ["self", "body"])
def test_text_input_may_be_named_self(name: str) -> None:
    written = OP.epilogue(parse_epilogue(f"c + {name}", {name: (4,)}), **{name: (4,)})
    assert [t.name for t in written.inputs] == ["A", "B", name]


@pytest.mark.parametrize("name", ["", "my-bias", "2d", "lambda"])
def test_text_input_with_illegal_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="an input cannot be called"):
        parse_epilogue("c * 2", {name: (4,)})


def test_deep_bodies_are_joined() -> None:
    """Bodies of 190 operations each, one in the other: the recursion ends before Python's limit."""

    def add_up(value: ex.Expr) -> ex.Expr:
        for _ in range(190):
            value = value + 1
        return value

    op = ekc.compute("deep", axes={"i": 64}, inputs={"A": (64,)}, body=lambda A, i: add_up(A[i]))
    op = op.epilogue(lambda c: add_up(c))
    (output,) = Schedule(op).compute_inline(op.computes[0].output.name).program.nests
    assert len(list(ex.walk_expr(output.compute.body))) > 2 * 2 * 190
