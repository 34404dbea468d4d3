"""Which peak of a device bounds an operator, and so what no kernel of it can beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ekc.devices.device import Peaks
from ekc.ir.operator import Operator


def compute_min_latency_s(op: Operator, flops: Any, peaks: Peaks) -> Any:
    """What so many operations take where nothing else does, each multiply-add counted as two."""
    return flops / peaks.flops_by_type[get_arithmetic_type(op)]


def get_arithmetic_type(op: Operator) -> str:
    """The element type whose peak bounds an operator: that of its inputs, or the accumulator's, where such
    inputs are summed in another than usual, which no faster unit does."""
    acc = op.computes[0].acc_dtype
    read = op.inputs[0].dtype if op.inputs else acc
    return read.name if acc.name == read.default_accumulator else acc.name


@dataclass(frozen=True)
class RooflineBound:
    """What bounds an operator on a device."""

    bound: str
    """"compute" or "memory"."""
    least_s: float
    """No kernel takes less: its arithmetic as written, or compulsory traffic, at the ceiling."""
    ceiling: float
    """Operations a second, or bytes."""
    unit: str
    """"FLOP/s", "OP/s" or "B/s"."""
    of: str
    """The element type of the arithmetic; "" of memory."""
    source: str
    """Who says so."""

    def __str__(self) -> str:
        """`arithmetic: 17.6 TFLOP/s of float32 (whitepaper)`."""
        source = f" ({self.source})" if self.source else ""
        if self.bound == "memory":
            return f"compulsory memory traffic: {self.ceiling / 1e9:,.0f} GB/s{source}"
        return f"arithmetic: {self.ceiling / 1e12:.3g} T{self.unit} of {self.of}{source}"


def compute_roofline_bound(op: Operator, peaks: Peaks) -> RooflineBound:
    """The lower of the two ceilings: that of arithmetic, or of memory."""
    compute_s, memory_s = (
        float(compute_min_latency_s(op, op.flops, peaks)),
        op.min_bytes / peaks.dram_bytes_per_s,
    )
    if compute_s < memory_s:
        return RooflineBound("memory", memory_s, peaks.dram_bytes_per_s, "B/s", "", peaks.source)
    of = get_arithmetic_type(op)
    unit = "OP/s" if of.startswith("int") else "FLOP/s"
    return RooflineBound("compute", compute_s, peaks.flops_by_type[of], unit, of, peaks.source)
