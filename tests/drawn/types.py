"""Any operator over other element types: for each legal choice of inputs, accumulator and output."""

from __future__ import annotations

from dataclasses import replace

from ekc.errors import InvalidInput
from ekc.ir.dtypes import parse_dtype
from ekc.ir.operator import Operator

Types = tuple[str, str, str]
"""Types of the inputs, the accumulator and the output."""
TRIPLES: tuple[Types, ...] = (
    ("float32", "float32", "float16"),
    ("float32", "float32", "bfloat16"),
    ("tf32", "float32", "float32"),
    ("tf32", "float32", "bfloat16"),
    ("float16", "float32", "float32"),
    ("float16", "float32", "bfloat16"),
    ("bfloat16", "float32", "bfloat16"),
    ("bfloat16", "float32", "float32"),
    ("bfloat16", "float32", "float16"),
    ("int8", "int32", "int32"),
    ("int8", "int32", "int8"),
    ("int8", "int32", "float32"),
    ("int8", "float32", "float32"),
    ("int32", "int32", "int32"),
)
"""Every legal triple but float32 and float16 throughout, which other tests have."""


def retyped(op: Operator, types: Types) -> Operator:
    """The operator over other types, with sums in float32 where its body is not exact in int32."""
    dtype, acc, out = types
    try:
        return _with_types(op, dtype, acc, out)
    except InvalidInput:
        return _with_types(op, dtype, "float32", "float32")


def _with_types(op: Operator, dtype: str, acc: str, out: str) -> Operator:
    inputs = tuple(replace(t, dtype=parse_dtype(dtype)) for t in op.inputs)
    computes = tuple(
        replace(c, output=replace(c.output, dtype=parse_dtype(out)), acc_dtype=parse_dtype(acc))
        for c in op.computes
    )
    return Operator(op.name, inputs, computes)
