"""Which peak of a device bounds an operator, and so what no kernel of it can beat."""

from __future__ import annotations

from typing import Any

from ekc.devices.base import Peaks
from ekc.ir.operator import Operator


def least_seconds(op: Operator, flops: Any, peaks: Peaks) -> Any:
    """What so many operations take where nothing else does, each multiply-add counted as two."""
    return flops / peaks.flops_by_type[arithmetic_of(op)]


def arithmetic_of(op: Operator) -> str:
    """The element type whose peak bounds an operator: that of its inputs, or the accumulator's, where such
    inputs are summed in another than usual, which no faster unit does."""
    acc = op.computes[0].acc_dtype
    read = op.inputs[0].dtype if op.inputs else acc
    return read.name if acc.name == read.accumulator else acc.name
