"""C text of regions: which box of a tensor, the coordinates of an element."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ekc.codegen.names import CNames
from ekc.ir.affine import AffineForm
from ekc.ir.lowering.regions import Region, Segment


def format_coordinates(region: Region, names: CNames, strip_width: int | None = None) -> list[str]:
    """`const int i = element / 8;` for each segment; of an element of a `strip` so wide, if one is given."""
    extents = [int(s.extent) for s in region.segments]
    if strip_width is not None:
        extents[-1] = strip_width
    lines, below = [], math.prod(extents)
    for i, extent in enumerate(extents):
        below //= extent
        text = "element" if below == 1 else f"element / {below}"
        lines.append(f"const int {names[f'#{i}']} = {text if i == 0 else f'{text} % {extent}'};")
    return lines


def shift_cell(
    cell: tuple[AffineForm, ...], segment: int | None, element_count: int
) -> tuple[AffineForm, ...]:
    """A cell some elements further along one segment."""
    return tuple(form.shift(element_count) if i == segment else form for i, form in enumerate(cell))


def format_box(names: CNames, tensor: str, region: Region) -> str:
    """`A[i_0 * 8 : 8, k]`, for comments."""
    runs = region.view.joint_ranges if region.view else ()
    names = names.with_names({run.name: run.name for run in runs})
    box = [
        _format_span(names.format_linear(f), [s for s in region.segments if s.dim == dim and not s.is_joint])
        for dim, f in enumerate(region.find_printed_start())
    ]
    told = [
        f", {run.name} = {_format_span(names.format_linear(run.start), region.find_joint_segments(run.pieces))}"
        for run in runs
    ]
    return f"{tensor}[{', '.join(box)}]{''.join(told)}"


def _format_span(start: str, segments: Sequence[Segment]) -> str:
    count = math.prod(int(s.extent) for s in segments)
    return f"{start} : {count}" if count > 1 else start
