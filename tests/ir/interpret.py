"""Interpreter of a Program in NumPy: the semantics of its trees, for all blocks or chosen ones.

All threads of many blocks run together as array axes. Loops that contain a copy run iteration by iteration;
loops of pure arithmetic become axes too. Buffers start as NaN (integers as a number that makes sums wrong),
so that an element that no copy filled shows. Threads run in lockstep, so a missing barrier does not show.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir import expr as ex
from ekc.ir.affine import evaluate_form
from ekc.ir.compute import Compute
from ekc.ir.dtypes import INT8, TF32, DType, find_read_type, find_reduction_identity, round_to_tf32
from ekc.ir.hardware.cp_async import count_pending_groups, count_tiles_ahead
from ekc.ir.lowering import nodes as tree
from ekc.ir.lowering.buffers import BoundsGuard, Buffer, TensorAccess
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.program import Program
from ekc.ir.reference import COMBINE_UFUNCS, Array

_POINTS_AT_ONCE = 1 << 20
"""Points of arithmetic that are evaluated in one array, about."""


Grid = Mapping[str, Any]
"""Values of loops and segment coordinates, one array of the grid's axes each."""


@dataclass(frozen=True)
class InterpretedOutput:
    """The output as some or all blocks wrote it."""

    output: Array
    written_mask: NDArray[np.bool_]
    """True for elements of the output that were written."""
    blocks: int
    """Number of blocks of the last launch that ran."""
    total_blocks: int


def find_poison_value(dtype: DType) -> float | int:
    """The value that fills on-chip memory before a store: NaN, or an integer that spoils any sum."""
    return dtype.integer_limits[0] + 1 if dtype.is_integer else np.nan


def convert_values(values: NDArray[Any], source: DType, target: DType) -> NDArray[Any]:
    """Elements of type `source` as elements of type `target`, as a kernel converts them.

    One rounding to nearest even into a float type; tf32 is rounded where it is read; int32 to int8 is
    clamped to -128 to 127.
    """
    if source is target:
        return values
    if source is TF32:
        values = round_to_tf32(values)
    if target is INT8:
        values = np.clip(values, *INT8.integer_limits)
    return values.astype(target.numpy_dtype)


def interpret_program(
    program: Program, arrays: Sequence[Array], blocks: NDArray[np.int64] | None = None
) -> InterpretedOutput:
    """Run a Program on NumPy arrays; `blocks`: linear numbers of blocks of the last launch, None for all."""
    inputs = zip(program.op.inputs, program.op.check_arrays(tuple(arrays)), strict=True)
    memory = {spec.name: array for spec, array in inputs}
    launches = derive_launches(program)
    for kernel in launches:
        spec = kernel.nest.output
        if not kernel.nest.is_atomic:
            memory[spec.name] = np.zeros(spec.shape, spec.dtype.numpy_dtype)
        written = np.zeros(spec.shape, dtype=bool)
        chosen = blocks if kernel is launches[-1] and blocks is not None else np.arange(kernel.block_count)
        step = max(1, _POINTS_AT_ONCE // max(1, kernel.thread_count * _count_tile_points(kernel)))
        for start in range(0, len(chosen), step):
            # Elements beyond an edge are computed too, which may divide by 0; they are not read.
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                part = chosen[start : start + step]
                _BlockInterpreter(kernel, memory, written, part).run_nodes(kernel.body)
    output = program.op.outputs[0]
    result = memory[output.name].reshape(output.shape)
    return InterpretedOutput(result, written, len(chosen), int(kernel.block_count))


def _count_tile_points(kernel: LaunchTree) -> int:
    """Points of pure loops that one thread runs as array axes."""
    points = 1
    for loop in _iterate_pure_loops(kernel.body):
        points *= int(loop.loop.extent)
    return min(points, _POINTS_AT_ONCE)


def _iterate_pure_loops(nodes: Sequence[tree.Node]) -> Iterator[tree.LoopNode]:
    for node in map(_expand_mma, nodes):
        if isinstance(node, tree.LoopNode) and _is_pure(node):
            yield node
        if isinstance(node, (tree.LoopNode, tree.WgmmaGroupNode)):
            yield from _iterate_pure_loops(node.body)


def _expand_mma(node: tree.Node) -> tree.Node:
    """The loops that a product on tensor cores replaces; other nodes unchanged."""
    return node.replaced_loops if isinstance(node, tree.MmaNode) else node


def _is_pure(node: tree.Node) -> bool:
    return isinstance(node, (tree.ComputeNode, tree.MmaNode)) or (
        isinstance(node, tree.LoopNode) and all(_is_pure(n) for n in node.body)
    )


class _BlockInterpreter:
    """Runs some blocks of a launch, all their threads together. Arrays are [block, thread, ...]."""

    def __init__(
        self, kernel: LaunchTree, memory: dict[str, Array], written: NDArray[np.bool_], blocks: Any
    ) -> None:
        self.kernel, self.memory, self.written_mask = kernel, memory, written
        self.env: dict[str, Any] = {}
        self.block_count, self.thread_count = len(blocks), int(kernel.thread_count)
        self._set_loop_digits(kernel.block_loops, np.asarray(blocks).reshape(-1, 1))
        self._set_loop_digits(kernel.thread_loops, np.arange(self.thread_count).reshape(1, -1))
        self.buffers = {b.name: self._make_empty_buffer(b) for b in kernel.buffers}

    def _set_loop_digits(self, loops: Any, number: Array) -> None:
        for loop in loops:
            self.env[loop.name] = number % loop.extent
            number = number // loop.extent

    def _make_empty_buffer(self, buffer: Buffer) -> Array:
        width = 1 if buffer.scope == "shared" else self.thread_count
        shape = (self.block_count, width, int(buffer.elements))
        return np.full(shape, find_poison_value(buffer.dtype), buffer.dtype.numpy_dtype)

    def run_nodes(self, nodes: Sequence[tree.Node]) -> None:
        """Run nodes in order."""
        for node in map(_expand_mma, nodes):
            match node:
                case tree.LoopNode() if _is_pure(node):
                    self._run_pure_nest(node)
                case tree.LoopNode() if node.is_async:
                    self._run_overlapped_loop(node)
                case tree.LoopNode():
                    for i in range(int(node.loop.extent)):
                        self.env[node.loop.name] = i
                        self.run_nodes(node.body)
                case tree.ComputeNode():
                    self._run_compute(node, [], self.env)
                case tree.StageNode():
                    self._run_stage(node)
                case tree.FragmentNode():
                    # The fragments of a warp are copied to every lane here.
                    self._run_stage(node.stage)
                case tree.WgmmaGroupNode():
                    self.run_nodes(node.body)
                case tree.ReduceNode():
                    self._run_reduce(node)
                case tree.InitNode():
                    self._run_init(node)
                case tree.LaneCombineNode():
                    self._run_combine(node)
                case tree.WriteNode():
                    self._run_write(node)
                case tree.BarrierNode() | tree.CopyWaitNode():
                    pass

    def _run_overlapped_loop(self, node: tree.LoopNode) -> None:
        """A loop whose tiles are copied ahead, group by group; elements that are not waited for stay NaN.

        A copy reads its values when it is issued, and writes them when its group is waited for.
        """
        stages, extent, name = int(node.loop.stages), int(node.loop.extent), node.loop.name
        copies = [n for n in node.body if isinstance(n, tree.StageNode) and n.is_async]
        use = [n for n in node.body if n not in copies]
        tiles = [{n.buffer.name: self._make_empty_buffer(n.buffer) for n in copies} for _ in range(stages)]
        in_flight: deque[list[tuple[Array, Array, Array]]] = deque()

        def issue(i: int) -> None:
            self.env[name] = i
            ready = copies if i < extent else []
            in_flight.append([(tiles[i % stages][n.buffer.name], *self._gather_copy(n)) for n in ready])

        for i in range(count_tiles_ahead(stages)):
            issue(i)
        for i in range(extent):
            while len(in_flight) > count_pending_groups(stages):
                for tile, where, values in in_flight.popleft():
                    tile[:, :, where] = values
            issue(i + count_tiles_ahead(stages))
            self.env[name] = i
            self.buffers |= tiles[i % stages]
            self.run_nodes(use)

    def _run_pure_nest(self, node: tree.LoopNode) -> None:
        """Pure loops around a compute, as array axes; outer loops of a large nest iterate."""
        chain, inner = [], node
        while isinstance(inner, tree.LoopNode):
            chain.append(inner.loop)
            inner = _expand_mma(inner.body[0])  # type: ignore[assignment]
        assert isinstance(inner, tree.ComputeNode)
        points, axes = self.block_count * self.thread_count, []
        for loop in reversed(chain):
            points *= int(loop.extent)
            if points > 4 * _POINTS_AT_ONCE and len(axes) < len(chain):
                break
            axes.insert(0, loop)
        self._run_compute_nest(chain[: len(chain) - len(axes)], axes, inner)

    def _run_compute_nest(self, loops: Any, axes: Any, compute: tree.ComputeNode) -> None:
        if loops:
            for i in range(int(loops[0].extent)):
                self.env[loops[0].name] = i
                self._run_compute_nest(loops[1:], axes, compute)
            return
        grid = {k: _append_axes(v, len(axes)) for k, v in self.env.items()}
        for position, loop in enumerate(axes):
            grid[loop.name] = np.arange(int(loop.extent)).reshape(_make_axis_shape(position, len(axes)))
        self._run_compute(compute, axes, grid)

    def _run_compute(self, node: tree.ComputeNode, axes: Any, grid: Grid) -> None:
        compute = node.nest.compute
        acc = compute.acc_dtype
        dtype = acc.numpy_dtype
        shape = (self.block_count, self.thread_count, *(int(x.extent) for x in axes))
        values = {axis: evaluate_form(form, grid) for axis, form in node.nest.axis_forms.items()}
        result = self._evaluate_body(compute.body, acc, values, node.reads, grid, len(axes))
        result = np.broadcast_to(result, shape)
        inside = _evaluate_guards(node.guards, grid)
        if compute.reduction_axes:
            if node.guards:
                result = np.where(inside, result, dtype.type(find_reduction_identity(compute.combine, acc)))
            over = tuple(2 + i for i, x in enumerate(axes) if x.is_reduction)
            if over:
                result = COMBINE_UFUNCS[compute.combine].reduce(result, axis=over, dtype=dtype)
            grid = {k: _drop_axes(v, over) for k, v in grid.items()}
            inside = True if node.target.buffer else _evaluate_guards(node.target.guards, grid)
        self._update_target(node, grid, result, inside)

    def _update_target(self, node: tree.ComputeNode, grid: Grid, result: Array, inside: Any) -> None:
        combine = COMBINE_UFUNCS[node.nest.compute.combine] if node.nest.compute.reduction_axes else None
        result = convert_values(result, node.nest.compute.acc_dtype, node.target.dtype)
        address = np.asarray(evaluate_form(node.target.address, grid))
        if node.target.buffer is not None:
            buffer = self.buffers[node.target.buffer.name]
            where = np.broadcast_to(address, (1, 1, *result.shape[2:]))[0, 0].ravel()
            flat = result.reshape(self.block_count, self.thread_count, -1)
            buffer[:, :, where] = flat if combine is None else combine(buffer[:, :, where], flat)
            return
        where = np.broadcast_to(address, result.shape)
        mask = np.broadcast_to(inside, result.shape)
        out = self.memory[node.target.spec.name].reshape(-1)
        old = out[where[mask]]
        out[where[mask]] = result[mask] if combine is None else combine(old, result[mask])
        self.written_mask.reshape(-1)[where[mask]] = True

    def _load_elements(self, access: TensorAccess, grid: Grid, extra_axes: int) -> Array:
        """Elements that an access reads, [block, thread, axes...]; 0 outside the tensor."""
        address = np.asarray(evaluate_form(access.address, grid))
        if access.buffer is None:
            inside = _evaluate_guards(access.guards, grid)
            flat = self.memory[access.spec.name].reshape(-1)
            values = flat[np.where(inside, address, 0)]
            return np.where(inside, values, np.zeros((), values.dtype)) if access.guards else values
        buffer, address = self.buffers[access.buffer.name], access.buffer.apply_layout(address)
        address = address.reshape((1,) * (2 + extra_axes - address.ndim) + address.shape)
        blocks = np.arange(self.block_count).reshape(_make_axis_shape(-2, extra_axes))
        threads = np.arange(buffer.shape[1]).reshape(_make_axis_shape(-1, extra_axes))
        return np.asarray(buffer[blocks, threads, address])

    def _evaluate_body(
        self,
        body: ex.Expr,
        acc: DType,
        axes: Mapping[str, Any],
        reads: Mapping[ex.Load, TensorAccess],
        grid: Grid,
        extra_axes: int,
    ) -> Array:
        """A body in the accumulator's type; results of int32 wrap modulo 2**32."""
        if acc.is_integer:
            axes = {name: np.asarray(index).astype(acc.numpy_dtype) for name, index in axes.items()}

        def read(x: ex.Load) -> Array:
            source = reads[x].dtype
            values = self._load_elements(reads[x], grid, extra_axes)
            return convert_values(values, source, find_read_type(source, acc))

        return np.asarray(ex.evaluate(body, axes, read), acc.numpy_dtype)

    def _run_stage(self, node: tree.StageNode) -> None:
        where, values = self._gather_copy(node)
        self.buffers[node.buffer.name][:, :, where] = values

    def _gather_copy(self, node: tree.StageNode) -> tuple[Array, Array]:
        """(indices in the buffer, values) of the elements of a region."""
        segments = node.buffer.region.segments
        grid = self._make_segment_grid(segments, keep_threads=node.buffer.scope != "shared")
        if node.producer_reads is not None:
            elements = self._compute_produced(node, grid, len(segments))
        else:
            elements = self._load_elements(node.source, grid, len(segments))
            elements = convert_values(elements, node.source.dtype, node.buffer.dtype)
        buffer = self.buffers[node.buffer.name]
        sizes = tuple(int(s.extent) for s in segments)
        address = node.buffer.apply_layout(np.asarray(evaluate_form(node.target_address, grid)))
        where = np.broadcast_to(address, (1, 1, *sizes)).ravel()
        values = np.broadcast_to(elements, (*buffer.shape[:2], *sizes)).reshape(*buffer.shape[:2], -1)
        return where, values

    def _run_reduce(self, node: tree.ReduceNode) -> None:
        """A fused reduction: all elements of the region and all points of their reduction at once."""
        compute, segments = node.compute, node.buffer.region.segments
        dtype, extra = compute.acc_dtype.numpy_dtype, len(segments) + len(compute.reduction_axes)
        points = [int(s.extent) for s in segments] + [a.extent for a in compute.reduction_axes]
        grid = self._make_segment_grid(segments, keep_threads=False, more_axes=len(compute.reduction_axes))
        for position, axis in enumerate(compute.reduction_axes, len(segments)):
            grid[axis.name] = np.arange(axis.extent).reshape(_make_axis_shape(position, extra))
        axes = _evaluate_element_axes(compute, node.source, grid)
        axes |= {a.name: grid[a.name] for a in compute.reduction_axes}
        result = self._evaluate_body(compute.body, compute.acc_dtype, axes, node.reads, grid, extra)
        result = np.broadcast_to(result, (self.block_count, 1, *points))
        over = tuple(range(2 + len(segments), 2 + extra))
        start = dtype.type(find_reduction_identity(compute.combine, compute.acc_dtype))
        combine = COMBINE_UFUNCS[compute.combine]
        result = combine.reduce(result, axis=over, dtype=dtype, keepdims=True, initial=start)
        result = np.where(_evaluate_guards(node.source.guards, grid), result, 0)
        sizes = points[: len(segments)]
        cells = self._make_segment_grid(segments, keep_threads=False)
        where = np.broadcast_to(np.asarray(evaluate_form(node.target_address, cells)), (1, 1, *sizes)).ravel()
        self.buffers[node.buffer.name][:, :, where] = result.reshape(self.block_count, 1, -1)

    def _compute_produced(self, node: tree.StageNode, grid: Grid, extra_axes: int) -> Array:
        compute = node.staging.producer
        assert compute is not None
        assert node.producer_reads is not None
        axes = _evaluate_element_axes(compute, node.source, grid)
        reads, acc = node.producer_reads, compute.acc_dtype
        result = self._evaluate_body(compute.body, acc, axes, reads, grid, extra_axes)
        result = convert_values(result, acc, node.buffer.dtype)
        return np.where(_evaluate_guards(node.source.guards, grid), result, np.zeros((), result.dtype))

    def _make_segment_grid(
        self, segments: Any, keep_threads: bool = True, more_axes: int = 0
    ) -> dict[str, Any]:
        """Loop variables and segment coordinates as arrays, `more_axes` axes behind the segments."""
        names = {x.name for x in self.kernel.thread_loops} if not keep_threads else set()
        extra = len(segments) + more_axes
        grid = {k: _append_axes(0 if k in names else v, extra) for k, v in self.env.items()}
        for i, s in enumerate(segments):
            grid[f"#{i}"] = np.arange(int(s.extent)).reshape(_make_axis_shape(i, extra))
        return grid

    def _run_init(self, node: tree.InitNode) -> None:
        compute = self.kernel.nest.compute
        start = find_reduction_identity(compute.combine, compute.acc_dtype)
        if node.buffer is not None:
            self.buffers[node.buffer.name][...] = start
            return
        grid = self._make_segment_grid(node.region.segments)
        where, mask = self._locate_targets(node.target, grid, node.region)
        self.memory[node.target.spec.name].reshape(-1)[where[mask]] = start

    def _locate_targets(self, target: TensorAccess, grid: Grid, region: Any) -> tuple[Array, Array]:
        shape = (self.block_count, self.thread_count, *(int(s.extent) for s in region.segments))
        where = np.broadcast_to(np.asarray(evaluate_form(target.address, grid)), shape)
        return where, np.broadcast_to(_evaluate_guards(target.guards, grid), shape)

    def _run_combine(self, node: tree.LaneCombineNode) -> None:
        loops = self.kernel.thread_loops
        buffer = self.buffers[node.buffer.name]
        digits = buffer.reshape(self.block_count, *(int(x.extent) for x in reversed(loops)), -1)
        over = tuple(1 + i for i, x in enumerate(reversed(loops)) if x in node.reduction_lanes)
        total = COMBINE_UFUNCS[self.kernel.nest.compute.combine].reduce(digits, axis=over, keepdims=True)
        buffer[...] = np.broadcast_to(total, digits.shape).reshape(buffer.shape)

    def _run_write(self, node: tree.WriteNode) -> None:
        grid = self._make_segment_grid(node.region.segments)
        where, mask = self._locate_targets(node.target, grid, node.region)
        for lane in node.reduction_lanes:
            mask = mask & (grid[lane.name] == 0)
        compute = self.kernel.nest.epilogue or self.kernel.nest.compute
        acc, segments = compute.acc_dtype, len(node.region.segments)
        axes = _evaluate_element_axes(compute, node.target, grid)
        # Nothing is read for an element that is not written.
        outer = node.target.guards
        reads = {x: a if a.buffer else replace(a, guards=outer + a.guards) for x, a in node.reads.items()}
        result = self._evaluate_body(node.value, acc, axes, reads, grid, segments)
        result = convert_values(result, acc, node.target.dtype)
        out = self.memory[node.target.spec.name].reshape(-1)
        result = np.broadcast_to(result, where.shape)[mask]
        if node.is_atomic:
            np.add.at(out, where[mask], result)
        else:
            out[where[mask]] = result
        self.written_mask.reshape(-1)[where[mask]] = True


def _evaluate_element_axes(compute: Compute, element: TensorAccess, grid: Grid) -> dict[str, Any]:
    """Values of the spatial axes of a compute at an element of its output."""
    forms = zip(compute.spatial_axes, element.index, strict=True)
    return {a.name: evaluate_form(form, grid) for a, form in forms}


def _evaluate_guards(guards: tuple[BoundsGuard, ...], grid: Grid) -> Any:
    inside: Any = True
    for g in guards:
        index = evaluate_form(g.form, grid)
        inside = inside & (index >= 0) & (index < g.extent)
    return inside


def _append_axes(v: Any, axis_count: int) -> Any:
    return v.reshape(v.shape + (1,) * axis_count) if isinstance(v, np.ndarray) else v


def _make_axis_shape(position: int, count: int) -> tuple[int, ...]:
    """A shape of `count` + 2 axes that is 1 except along axis `position` + 2."""
    return tuple(-1 if i == position + 2 else 1 for i in range(count + 2))


def _drop_axes(v: Any, axes: tuple[int, ...]) -> Any:
    """An array without reduced axes (index 0 of each)."""
    if not isinstance(v, np.ndarray) or not axes:
        return v
    return v[tuple(slice(0, 1) if i in axes else slice(None) for i in range(v.ndim))].reshape(
        tuple(n for i, n in enumerate(v.shape) if i not in axes)
    )
