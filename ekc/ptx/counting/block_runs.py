"""How often each basic block of a kernel runs, from the instructions that decide its branches.

These few instructions run for all threads and all trips of a loop together, as NumPy arrays with one axis
for the threads and one for the trips of each loop around. So each side of a branch on several counters and on
the number of the thread (`if (8 * outer + inner < 27 && row < rows)`) is counted as often as it is taken, and
trips are not followed one by one.

That takes the registers at the start of every trip. They are found by a guess: two trips tell by how much
each register grows, and once the trips have run, each must have ended as the next one began. Where a register
grows unevenly, the trips are followed one after another.

A branch on data in memory is taken both ways, every other branch as its condition says. `Threads` has
the known facts of a launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from ekc.ptx.cfg import split_blocks
from ekc.ptx.constants import WARP_SIZE
from ekc.ptx.counting.branch_slice import SliceStep, Threads, slice_branches
from ekc.ptx.counting.integers import Path, RegisterValues, Value, join_paths
from ekc.ptx.counting.loop_trips import Body, Comparison, Numbers, Pass, TripSearch, UncountableLoop, shorten
from ekc.ptx.counting.loops import ControlFlowGraph
from ekc.ptx.counting.regions import LoopRegion, Steps, build_regions
from ekc.ptx.module import KernelText, Register


def count_block_runs(kernel: KernelText, threads: Threads) -> list[float]:
    """Runs of each block of `split_blocks` by a warp, mean over the warps of `threads`.

    Two back edges to one header are either two nested loops, or one loop with a branch that skips its rest.
    Only the trips show which: nested loops are tried first. `EkcError` names the label and the line of a loop
    whose trips cannot be counted.
    """
    blocks, first, single_loop_headers = split_blocks(kernel), None, set[int]()
    while True:
        graph = ControlFlowGraph.from_blocks(kernel.name, blocks, single_loop_headers)
        try:
            with np.errstate(all="ignore"):
                return _Walk(graph, slice_branches(graph, kernel, threads)).run()[: len(blocks)]
        except UncountableLoop as problem:
            first, header = first or problem, graph.find_original_header(problem.header, len(blocks))
            if header not in graph.find_split_headers(len(blocks)):
                raise first from None
            single_loop_headers.add(header)


class _Edge(NamedTuple):
    target: int
    path: Path


class _Walk:
    """A walk through a kernel in the order of its blocks."""

    def __init__(self, graph: ControlFlowGraph, steps: Steps) -> None:
        self.graph, self.steps = graph, steps
        self.bits = {step.target: step.bits for each in steps.values() for step in each}
        self.runs = [0.0] * len(graph.blocks)
        self.weights: list[Numbers] = []
        """Trips that each trip represents, of the loops around, the outermost first."""

    def run(self) -> list[float]:
        """Runs of each block, mean over the warps."""
        self._run_region(build_regions(self.graph, self.steps), RegisterValues(), Path(), Pass(True))
        return self.runs

    def _run_region(
        self, region: LoopRegion, registers: RegisterValues, path: Path, how: Pass
    ) -> list[_Edge]:
        """Run the body of a loop, or the kernel, once. Returns the edges that leave it or lead back."""
        arriving: dict[int, list[Path]] = {region.header: [path]}
        leaving = []
        for number in region.items:
            if number not in arriving:
                continue
            here, inner = join_paths(arriving.pop(number)), region.children.get(number)
            join = region.shortcuts.get(number) if how.is_slice else None
            if inner is None:
                steps = region.trip_steps[number] if how.is_slice else self.steps[number]
                _run_steps(steps, registers, here, how.comparisons)
            if join is not None:
                edges = [_Edge(join, here)]
            elif inner is None:
                edges = self._leave_block(number, registers, here, how)
            else:
                edges = self._run_loop(inner, registers, here, Pass(how.is_counted))
            for edge in edges:
                if edge.target in region.blocks and edge.target != region.header:
                    arriving.setdefault(edge.target, []).append(edge.path)
                else:
                    leaving.append(edge)
        return leaving

    def _leave_block(self, number: int, registers: RegisterValues, path: Path, how: Pass) -> list[_Edge]:
        """Count a block and follow its exit."""
        if how.is_counted:
            self._count(number, path)
        end = self.graph.blocks[number].exit
        guard = end.instruction.guard if end.instruction is not None else None
        if guard is None or end.kind not in ("branch", "exit_if"):
            return [_Edge(target, path) for target in end.targets]
        taken = _read_guard(guard, registers, path)
        if end.kind == "exit_if":
            stays = path if taken is None else path.narrow(taken ^ True)
            return [_Edge(end.targets[0], stays)] if stays else []
        sides = zip(end.targets, (True, False), strict=True)
        if taken is None:
            return [_Edge(target, Path(path.lanes, path.sides | {(number, side)})) for target, side in sides]
        paths = [(target, path.narrow(taken if side else taken ^ True)) for target, side in sides]
        return [_Edge(target, one) for target, one in paths if one]

    def _count(self, number: int, path: Path) -> None:
        """Add the runs of a block by a warp."""
        if path.lanes is True:
            self.runs[number] += float(np.prod([each.sum() for each in self.weights]))
            return
        lanes = path.lanes if path.lanes.ndim > 1 else path.lanes[np.newaxis]
        if lanes.shape[-1] > 1:
            lanes = lanes.reshape(*lanes.shape[:-1], -1, WARP_SIZE).any(axis=-1)
        lanes = lanes.mean(axis=(-2, -1))
        for each in self.weights:
            if lanes.ndim and lanes.shape[-1] == len(each):
                lanes = lanes @ each
            else:
                lanes = (lanes[..., 0] if lanes.ndim else lanes) * each.sum()
        self.runs[number] += float(lanes)

    def _run_loop(self, region: LoopRegion, registers: RegisterValues, path: Path, how: Pass) -> list[_Edge]:
        """Run all trips of a loop. Returns the edges that leave it."""

        def run_body(here: Path, starts: Mapping[str, Value], by: Pass) -> Body:
            inner = registers.copy()
            for name, value in starts.items():
                inner.set(name, value, here)
            edges = self._run_region(region, inner, here, by)
            back = [edge.path for edge in edges if edge.target == region.header]
            out = [edge.path for edge in edges if edge.target != region.header]
            ends = {name: inner.read(name, path.sides) for name in region.carried}
            return Body(join_paths(back) if back else None, out, ends)

        start = {name: registers.read(name, path.sides) for name in region.carried}
        around = int(np.prod([len(each) for each in self.weights]))
        trips = TripSearch(self.graph, self.bits, region, path, run_body, around).measure_trips(start)
        inner, here = registers.copy(), path.narrow(trips.running)
        assert here is not None
        for name, value in trips.starts.items():
            inner.set(name, value, here)
        self.weights.append(trips.weights)
        edges = self._run_region(region, inner, here, how)
        self.weights.pop()
        registers.take_changes(inner, trips.select_last)
        left = [edge for edge in edges if edge.target != region.header]
        return [_Edge(edge.target, _unite_trips(edge.path, trips.depth)) for edge in left]


def _run_steps(
    steps: Iterable[SliceStep], registers: RegisterValues, path: Path, comparisons: list[Comparison] | None
) -> None:
    """Run the steps of a block; what they compare is added to `comparisons`."""
    for step in steps:
        here: Path | None = path
        runs: Value = True
        if step.guard is not None:
            runs = _read_guard(step.guard, registers, path)
            here = path if runs is None else path.narrow(runs)
        if here is None:
            continue
        value = None if runs is None else _compute(step, registers, here, comparisons)
        if step.is_only_writer and step.guard is None:
            registers.set(step.target, value, here)
        else:
            registers.merge(step.target, value, here, step.bits)


def _read_guard(guard: Register, registers: RegisterValues, path: Path) -> Value:
    value = registers.read(guard.name, path.sides)
    return value if value is None or not guard.is_negated else value ^ True


def _compute(
    step: SliceStep, registers: RegisterValues, path: Path, comparisons: list[Comparison] | None
) -> Value:
    if step.operation is None:
        return None
    values = [registers.read(x, path.sides) if isinstance(x, str) else x for x in step.arguments]
    if any(value is None for value in values):
        return step.settle(values)
    if comparisons is not None and step.comparison is not None:
        comparisons.append(Comparison(values[0], values[1], step.comparison))
    return step.operation(*values)


def _unite_trips(path: Path, depth: int) -> Path:
    """The threads that take a path in any trip."""
    if path.lanes is True or path.lanes.ndim <= depth:
        return path
    lanes = path.lanes.any(axis=0)
    return Path(True if lanes.all() else shorten(lanes), path.sides)
