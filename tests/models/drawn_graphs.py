"""Small graphs drawn by hypothesis: moves, functions, products, norms and reductions of a few tensors."""

from __future__ import annotations

from math import prod

from hypothesis import strategies as st

from ekc.models.graph import Graph
from tests.models.sketch import Sketch

_UNARY = ("relu", "silu", "sigmoid", "tanh", "neg", "gelu", "gelu_tanh", "hardswish", "abs", "sin")
_BINARY = ("add", "sub", "mul", "maximum", "minimum")
_STEPS = (
    *("unary", "unary", "binary", "binary", "constant", "scalar", "reshape", "permute", "permute", "slice"),
    *("concat", "pad", "expand", "linear", "product", "softmax", "layer_norm", "rms_norm", "reduce", "where"),
    *("resize", "attention"),
)
_SHAPES = ((2, 4, 6), (1, 4, 6), (4, 6), (1, 6, 4), (2, 2, 3, 4))


@st.composite
def draw_graph(draw: st.DrawFn, dtype: str = "float32") -> Graph:
    """A graph of up to ten drawn nodes; its outputs are up to two of its values."""
    s = Sketch(dtype=dtype, seed=draw(st.integers(0, 99)))
    shape = draw(st.sampled_from(_SHAPES))
    pool = [s.input(*shape) for _ in range(draw(st.integers(1, 2)))]
    for _ in range(draw(st.integers(1, 10))):
        x = draw(st.sampled_from(pool[-3:]))
        added = _add_step(draw, s, draw(st.sampled_from(_STEPS)), x, pool)
        if added is not None and prod(s.shape(added)) <= 2000:
            pool.append(added)
    outputs = {pool[-1], draw(st.sampled_from(pool))}
    return s.build(*sorted(outputs))


def _add_step(draw: st.DrawFn, s: Sketch, step: str, x: str, pool: list[str]) -> str | None:
    """One more node that reads x, or the nodes of one idea; None where x has no such node."""
    shape = s.shape(x)
    rank = len(shape)
    axis = draw(st.integers(0, rank - 1))
    alike = [v for v in pool if s.shape(v) == shape]
    match step:
        case "unary":
            return s.apply(draw(st.sampled_from(_UNARY)), x)
        case "binary":
            return s.apply(draw(st.sampled_from(_BINARY)), x, draw(st.sampled_from(alike)))
        case "constant":
            ends = [1 if draw(st.booleans()) else e for e in shape[axis:]]
            operands = [x, s.weight(*ends)]
            return s.apply(
                draw(st.sampled_from(("add", "mul"))), *operands[:: draw(st.sampled_from((1, -1)))]
            )
        case "scalar":
            return s.apply(draw(st.sampled_from(("mul", "add", "div"))), x, 0.5)
        case "where":
            chosen = s.apply("less", x, draw(st.sampled_from(alike)), dtype="bool")
            return s.apply("where", chosen, x, 0.25, dtype=s.type(x))
        case "reshape":
            return s.reshape(x, *draw(st.sampled_from(list_factorings(prod(shape)))))
        case "permute":
            return s.permute(x, *draw(st.permutations(range(rank))))
        case "slice":
            start = draw(st.integers(0, shape[axis] - 1))
            return s.slice(x, axis, start, shape[axis], draw(st.integers(1, 2)))
        case "concat":
            return s.concat(axis, x, draw(st.sampled_from(alike)))
        case "pad":
            value = draw(st.sampled_from((0.0, 1.0)))
            return s.pad(x, *[(draw(st.integers(0, 1)), draw(st.integers(0, 1))) for _ in shape], value=value)
        case "resize":
            return s.resize(x, *[draw(st.integers(1, 2)) for _ in shape])
        case "expand":
            top = s.reduce(x, "max", axis)
            return s.expand(top, *shape) if draw(st.booleans()) else s.apply("sub", x, top)
        case "linear":
            return s.linear(x, draw(st.sampled_from((1, 5))), draw(st.booleans()))
        case "product":
            other = draw(st.sampled_from(alike))
            order = (*range(rank - 2), rank - 1, rank - 2)
            return s.matmul(x, s.permute(other, *order))
        case "softmax":
            return s.softmax(x, axis)
        case "layer_norm":
            return s.layer_norm(x, draw(st.booleans())) if shape[-1] > 1 else None
        case "rms_norm":
            return s.rms_norm(x)
        case "reduce":
            combine = draw(st.sampled_from(("sum", "mean", "max")))
            y = s.reduce(x, combine, axis, keepdims=draw(st.booleans()) or rank == 1)
            return y if len(s.shape(y)) > 1 else None
        case "attention":
            other = draw(st.sampled_from(alike))
            return s.attention(x, other, x, is_causal=draw(st.booleans())) if rank > 2 else None
    raise AssertionError(step)


def list_factorings(size: int) -> list[tuple[int, ...]]:
    """Shapes of two and three dimensions with this many elements."""
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    pairs = [(a, size // a) for a in divisors]
    return pairs + [(a, b, size // a // b) for a in divisors for b in divisors if size % (a * b) == 0]
