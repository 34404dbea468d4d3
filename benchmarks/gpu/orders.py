"""The same kernel in another order: schedules with the same instruction counts, whose operands, tiles or
steps of the reduction come in another order.

The dynamic power of a chip is that of lines that switch. Which lines switch depends on the order of the data,
so an order may save energy at the same counts of instructions. Whether it does, only a GPU can show.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ekc.errors import EkcError
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.schedule import step_from_json
from ekc.ir.schedule.schedule import Schedule

COUNTED = (
    "total_fma",
    "total_tensor_products",
    "total_group_products",
    "total_operations",
    "total_barriers",
    "total_shuffles",
    "total_global_load_requests",
    "total_global_store_requests",
    "total_shared_load_requests",
    "total_shared_store_requests",
)
"""Counts of the analysis that must be the same."""
SAME = 0.01
"""Relative difference of a count up to which it is the same."""
TILE_GROUP = 4
"""Tiles of one axis that are computed before the next tile of the other axis."""
TURNS = (2, 4)
"""Turns of a reduction in several: each takes every second step, or every fourth."""

StepData = dict[str, Any]


def list_order_variants(schedule: Schedule, limits: LaunchLimits) -> Iterator[tuple[str, Schedule]]:
    """(name of the order, schedule) of each legal order with the counts of the schedule, each once."""
    steps = [step.to_json() for step in schedule.steps]
    counts = _count(schedule, limits)
    seen = {schedule.digest}
    for name, changed in _list_changes(schedule, steps):
        try:
            variant = Schedule(schedule.op, tuple(map(step_from_json, changed)))
            others = _count(variant, limits)
        except EkcError:
            # Not every order is legal: a vector stays innermost, a staging within the loop that fills it.
            continue
        same = all(abs(others[name] - count) <= SAME * count for name, count in counts.items())
        if same and variant.digest not in seen:
            seen.add(variant.digest)
            yield name, variant


def _count(schedule: Schedule, limits: LaunchLimits) -> dict[str, float]:
    figures = analyse_program(schedule.program, limits)
    return {name: float(figures[name][0]) for name in COUNTED}


def _list_changes(schedule: Schedule, steps: Sequence[StepData]) -> Iterator[tuple[str, list[StepData]]]:
    """Changed steps, which may not be legal; the orders of different kinds in turn."""
    place = next((n for n, step in enumerate(steps) if step["step"] == "reorder"), None)
    if place is None:
        return
    order = steps[place]["loops"]
    levels = {step["loop"]: step["level"] for step in steps if step["step"] == "bind"}
    reduced = {axis.name for axis in schedule.op.computes[-1].axes if axis.is_reduction}
    tiles = [loop for loop in order if levels.get(loop, "").startswith("block")]
    serial = [loop for loop in order if loop not in levels]
    elements = [loop for loop in serial if _get_axis(loop) not in reduced]
    if len(elements) > 1:
        yield "operands swapped", _swap(steps, place, elements[-2], elements[-1])
    if len(tiles) > 1:
        yield "tiles by columns", _swap(steps, place, tiles[-2], tiles[-1])
    outer = next((loop for loop in serial if _get_axis(loop) in reduced), "")
    for turns in TURNS if _is_first_piece(outer) else ():
        yield f"{outer} in {turns} turns", _stride(steps, outer, turns)
    if len(tiles) > 1 and _is_first_piece(tiles[-2]):
        yield f"tiles in groups of {TILE_GROUP}", _group_tiles(steps, tiles[-2], tiles[-1])


def _is_first_piece(loop: str) -> bool:
    """Whether the loop is the outermost piece of an axis that was split once."""
    return loop == f"{_get_axis(loop)}.0"


def _get_axis(loop: str) -> str:
    return loop.split(".")[0]


def _swap(steps: Sequence[StepData], place: int, one: str, other: str) -> list[StepData]:
    """Two loops change places in the reorder at a place."""
    swapped = {one: other, other: one}
    loops = [swapped.get(loop, loop) for loop in steps[place]["loops"]]
    return [*steps[:place], steps[place] | {"loops": loops}, *steps[place + 1 :]]


def _stride(steps: Sequence[StepData], loop: str, turns: int) -> list[StepData]:
    """The steps of a loop in the order 0, n, 2 n, ..., 1, n + 1, ...: cut by n turns, the inner piece moved
    outside.

    The outer piece keeps the name of the loop, so that what is staged there stays there."""
    changed = _divide(steps, loop, turns)
    inner = _name_next(loop)
    return _edit_order(changed, inner, lambda loops, at: [*loops[:at], inner, *loops[at:]], loop)


def _group_tiles(steps: Sequence[StepData], outer: str, inner: str) -> list[StepData]:
    """Some tiles of the outer axis for each tile of the inner one."""
    changed = _divide(steps, outer, TILE_GROUP)
    group = _name_next(outer)
    changed = _edit_order(
        changed, group, lambda loops, at: [*loops[: at + 1], group, *loops[at + 1 :]], inner
    )
    place = max(n for n, step in enumerate(changed) if step["step"] == "bind" and step["loop"] == inner)
    bound = {"step": "bind", "loop": group, "level": changed[place]["level"]}
    return [*changed[: place + 1], bound, *changed[place + 1 :]]


def _name_next(loop: str) -> str:
    """The next piece of the same axis: i.1 after i.0."""
    axis, number = loop.split(".")
    return f"{axis}.{int(number) + 1}"


def _divide(steps: Sequence[StepData], loop: str, factor: int) -> list[StepData]:
    """The split of the axis gets one more factor, behind the first piece, which is the loop; the numbers of
    later pieces grow by one."""
    axis = _get_axis(loop)
    piece = re.compile(rf"{re.escape(axis)}\.(\d+)(.*)")

    def rename(value: Any) -> Any:
        if isinstance(value, list):
            return [rename(one) for one in value]
        found = piece.fullmatch(value) if isinstance(value, str) else None
        if not found or found[1] == "0":
            return value
        return f"{axis}.{int(found[1]) + 1}{found[2]}"

    changed = []
    for step in steps:
        if step["step"] == "split" and step["loop"] == axis:
            changed.append(step | {"factors": [factor, *step["factors"]]})
        else:
            changed.append({name: rename(value) for name, value in step.items()})
    return changed


def _edit_order(steps: Sequence[StepData], new: str, edit: Any, beside: str) -> list[StepData]:
    """The first reorder with a new loop put beside another."""
    place = next(n for n, step in enumerate(steps) if step["step"] == "reorder")
    loops = [loop for loop in steps[place]["loops"] if loop != new]
    loops = edit(loops, loops.index(beside))
    return [*steps[:place], steps[place] | {"loops": loops}, *steps[place + 1 :]]
