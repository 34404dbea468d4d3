"""Fusion of output axes into the rows or columns of an implicit matrix (implicit GEMM).

Axes are fused that index one factor and not the other. Example: the images, rows and columns of pixels of a
convolution become the rows of a matrix; so do two free axes of an einsum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ekc.ir.operator import Axis, Compute
from ekc.ir.schedule import Fuse, Reorder, Step

AxisGroup = tuple[Axis, ...]


def select_fusible(axes: Sequence[Axis]) -> AxisGroup:
    """Select the axes to fuse among those of one factor: all with extent above 1, if there are several."""
    moving = tuple(a for a in axes if a.extent > 1)
    return moving if len(moving) > 1 else ()


def fuse_group(group: AxisGroup) -> Axis:
    """The axis that fusing a group makes, with the name that `fuse` gives it: (n, h) -> n_h."""
    return Axis("_".join(a.name for a in group), math.prod(a.extent for a in group))


def make_fuse_steps(compute: Compute, groups: Sequence[AxisGroup]) -> list[Step]:
    """The first steps of a schedule: reorder the axes of each group next to each other, then fuse them."""
    steps: list[Step] = []
    names = [a.name for a in compute.spatial_axes]
    grouped = [a.name for group in groups for a in group]
    order = [name for name in names if name not in grouped] + grouped
    if order != names and not _are_adjacent(names, groups):
        steps.append(Reorder(tuple(order)))
    for group in groups:
        outer = group[0].name
        for axis in group[1:]:
            steps.append(Fuse(outer, axis.name))
            outer = f"{outer}_{axis.name}"
    return steps


def _are_adjacent(names: list[str], groups: Sequence[AxisGroup]) -> bool:
    """Whether the axes of every group are already next to each other, in order."""
    for group in groups:
        first = names.index(group[0].name)
        if names[first : first + len(group)] != [a.name for a in group]:
            return False
    return True
