"""Operators from JSON: expressions are nested lists, and reading one executes nothing."""

from __future__ import annotations

from typing import Any

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.compute import Axis, Compute, TensorSpec
from ekc.ir.dtypes import parse_dtype
from ekc.ir.functions import NUMPY_FUNCTIONS
from ekc.ir.operator import Operator
from ekc.ir.validate import check_depth


def expr_from_json(data: Any) -> ex.Expr:
    """The inverse of `ekc.ir.graph.expr_to_json`; `InvalidInput` for anything it cannot have written."""
    match data:
        case int() | float():
            return ex.as_expr(data)
        case ["var", str(name)]:
            return ex.Var(name)
        case ["load", str(tensor), *index]:
            return ex.Load(tensor, tuple(map(expr_from_json, index)))
        case ["call", str(function), argument] if function in NUMPY_FUNCTIONS:
            return ex.Call(function, expr_from_json(argument))
        case ["where", "==" | "<" as op, a, b, then, otherwise]:
            return ex.Where(op, *map(expr_from_json, (a, b, then, otherwise)))
        case ["+" | "-" | "*" | "/" | "//" | "%" | "min" | "max" as op, a, b]:
            return ex.Binary(op, expr_from_json(a), expr_from_json(b))
    raise InvalidInput(f"expression: {data!r} is not one that ekc writes")


def operator_from_json(data: Any) -> Operator:
    """The inverse of `Operator.to_json`; names and extents are checked again, whoever wrote them."""
    try:
        computes = tuple(
            Compute(
                _tensor_from_json(c["output"]),
                tuple(Axis(name, extent, bool(reduction)) for name, extent, reduction in c["axes"]),
                expr_from_json(check_depth(str(data["name"]), c["body"], _list_parts)),
                c["combine"],
                parse_dtype(c["acc_dtype"]),
            )
            for c in data["computes"]
        )
        return Operator(data["name"], tuple(_tensor_from_json(t) for t in data["inputs"]), computes)
    except (KeyError, TypeError, ValueError, IndexError) as problem:
        if isinstance(problem, InvalidInput):
            raise
        raise InvalidInput(f"operator: not the JSON of one ({type(problem).__name__}: {problem})") from None


def _list_parts(data: Any) -> list[Any]:
    """The parts of a nested list."""
    return data if isinstance(data, list) else []


def _tensor_from_json(data: Any) -> TensorSpec:
    name, shape, dtype = data
    return TensorSpec(name, tuple(shape), parse_dtype(dtype))
