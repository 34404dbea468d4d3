"""Axes that act as one: outputs that the same factor has and the other has not, fused into one dimension.

A convolution's images, rows and columns of pixels are the rows of an implicit matrix; so are two free axes of
an einsum. Which they are follows from what the factors read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ekc.ir.compute import Axis, Compute
from ekc.ir.schedule import Fuse, Reorder, Step

AxisGroup = tuple[Axis, ...]


def select_fusible(axes: Sequence[Axis]) -> AxisGroup:
    """Those of a factor's own axes that are fused: all that move, where several do."""
    moving = tuple(a for a in axes if a.extent > 1)
    return moving if len(moving) > 1 else ()


def fuse_group(group: AxisGroup) -> Axis:
    """The axis that a group becomes, by the name that `fuse` gives it."""
    return Axis("_".join(a.name for a in group), math.prod(a.extent for a in group))


def make_fuse_steps(compute: Compute, groups: Sequence[AxisGroup]) -> list[Step]:
    """The steps that bring the axes of each group together and fuse them, first of a schedule."""
    steps: list[Step] = []
    apart = [a.name for a in compute.spatial_axes]
    together = [a.name for group in groups for a in group]
    order = [name for name in apart if name not in together] + together
    if order != apart and not _are_adjacent(apart, groups):
        steps.append(Reorder(tuple(order)))
    for group in groups:
        outer = group[0].name
        for axis in group[1:]:
            steps.append(Fuse(outer, axis.name))
            outer = f"{outer}_{axis.name}"
    return steps


def _are_adjacent(names: list[str], groups: Sequence[AxisGroup]) -> bool:
    """Whether every group stands together already."""
    for group in groups:
        first = names.index(group[0].name)
        if names[first : first + len(group)] != [a.name for a in group]:
            return False
    return True
