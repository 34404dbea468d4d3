"""C text of regions: which box of a tensor, the coordinates of an element."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ekc.codegen.names import Names
from ekc.ir.linear import Linear
from ekc.ir.region import Region, Segment


def coordinates(region: Region, names: Names, strip: int | None = None) -> list[str]:
    """`const int i = element / 8;` for each segment; of an element of a `strip` so wide, if one is given."""
    extents = [int(s.extent) for s in region.segments]
    if strip is not None:
        extents[-1] = strip
    lines, below = [], math.prod(extents)
    for i, extent in enumerate(extents):
        below //= extent
        text = "element" if below == 1 else f"element / {below}"
        lines.append(f"const int {names[f'#{i}']} = {text if i == 0 else f'{text} % {extent}'};")
    return lines


def stepped(cell: tuple[Linear, ...], segment: int | None, by: int) -> tuple[Linear, ...]:
    """A cell some elements further along one segment."""
    return tuple(form.shifted(by) if i == segment else form for i, form in enumerate(cell))


def box(names: Names, tensor: str, region: Region) -> str:
    """`A[i_0 * 8 : 8, k]`, for comments."""
    runs = region.view.runs if region.view else ()
    names = names.also({run.name: run.name for run in runs})
    box = [
        _span(names.linear(f), [s for s in region.segments if s.dim == dim and not s.joint])
        for dim, f in enumerate(region.told())
    ]
    told = [f", {run.name} = {_span(names.linear(run.start), region.along_run(run.loops))}" for run in runs]
    return f"{tensor}[{', '.join(box)}]{''.join(told)}"


def _span(start: str, segments: Sequence[Segment]) -> str:
    count = math.prod(int(s.extent) for s in segments)
    return f"{start} : {count}" if count > 1 else start
