"""The rules that structures are derived by, in the order in which they apply.

`StructureBuilder` notes each rule that it applies, so a structure knows the rules that made it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Rule:
    """One rule of derivation."""

    number: int
    name: str
    effect: str
    """One sentence."""


DIVIDE = Rule(0, "divide", "An axis that a read divides is cut where the quotient changes.")
TILE = Rule(
    1,
    "tile",
    "An output axis with reuse is cut into blocks, vthreads, threads and elements; others into blocks and "
    "threads, the last one also into elements.",
)
REDUCE = Rule(2, "reduce", "A reduction axis is cut into an outer and an inner loop.")
STAGE = Rule(
    3,
    "stage",
    "A tensor with reuse may go through shared memory, in its own order of dimensions or with an output "
    "dimension last; any tensor may go through registers.",
)
SPREAD = Rule(4, "spread over lanes", "A reduction is spread over the lanes of a warp.")
ACCUMULATE = Rule(
    5, "accumulate", "Results stay in registers until they are complete; epilogues join the same launch."
)
COPY = Rule(6, "copy asynchronously", "Tiles come into shared memory by cp.async.")
SINGLE_LAUNCH = Rule(7, "single launch", "A normalization computes its sums inside one launch.")
TENSOR_CORES = Rule(
    8, "tensor cores", "A sum of products uses mma or wgmma; output axes of one factor are fused first."
)
SPLIT_K = Rule(9, "split-K", "A long sum with few outputs is cut over blocks.")
PACK = Rule(10, "pack", "An input is copied first, with the depth last.")
DROP = Rule(
    11, "drop", "No other structure is legal for any tile, so every tensor is read from global memory."
)
