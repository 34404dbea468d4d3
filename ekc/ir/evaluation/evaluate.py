"""Running a Program in NumPy: the meaning of its tree, whole or for chosen blocks.

All threads of many blocks run together as array axes; loops that hold a stage run one iteration
after another, pure arithmetic loops become axes too. Buffers start as NaN, so an element that no
stage filled shows (of integers, as a number that spoils sums). Threads move in step here: a missing
barrier would not show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir import expr as ex
from ekc.ir.access import Access, Buffer, Guard
from ekc.ir.async_copy import groups_left, tiles_ahead
from ekc.ir.dtypes import DType, converted, find_read_type, start_value, unset
from ekc.ir.evaluation.flight import Flight
from ekc.ir.linear import value
from ekc.ir.nodes import (
    BarrierNode,
    CombineNode,
    ComputeNode,
    FragmentNode,
    GroupNode,
    InitNode,
    Kernel,
    LoopNode,
    MmaNode,
    Node,
    ReduceNode,
    StageNode,
    WaitNode,
    WriteNode,
)
from ekc.ir.program import Program
from ekc.ir.tree import kernels

_POINTS_AT_ONCE = 1 << 20
_COMBINE = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


@dataclass(frozen=True)
class Evaluation:
    """What some or all blocks wrote."""

    output: NDArray[Any]
    written: NDArray[np.bool_]
    """Which elements of the output were written."""
    blocks: int
    """Blocks of the last launch that ran."""
    total_blocks: int


def evaluate(
    program: Program, arrays: Sequence[NDArray[Any]], blocks: NDArray[np.int64] | None = None
) -> Evaluation:
    """Run a Program on NumPy arrays; `blocks` picks blocks of the last launch by linear number."""
    memory = dict(
        zip((t.name for t in program.op.inputs), program.op.check_arrays(tuple(arrays)), strict=True)
    )
    launches = kernels(program)
    for kernel in launches:
        spec = kernel.nest.output
        if not kernel.nest.atomic:
            memory[spec.name] = np.zeros(spec.shape, spec.dtype.numpy)
        written = np.zeros(spec.shape, dtype=bool)
        chosen = blocks if kernel is launches[-1] and blocks is not None else np.arange(kernel.blocks)
        step = max(1, _POINTS_AT_ONCE // max(1, kernel.threads * _tile(kernel)))
        for start in range(0, len(chosen), step):
            # What lies beyond an edge is computed too, and divided by 0; nobody reads it.
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                _Blocks(kernel, memory, written, chosen[start : start + step]).run(kernel.body)
    output = program.op.outputs[0]
    return Evaluation(memory[output.name].reshape(output.shape), written, len(chosen), int(kernel.blocks))


def _tile(kernel: Kernel) -> int:
    """Points of the innermost arithmetic that one thread runs as array axes."""
    points = 1
    for loop in _pure_loops(kernel.body):
        points *= int(loop.loop.extent)
    return min(points, _POINTS_AT_ONCE)


def _pure_loops(nodes: Sequence[Node]) -> Iterator[LoopNode]:
    for node in map(_spelled_out, nodes):
        if isinstance(node, LoopNode) and _is_pure(node):
            yield node
        if isinstance(node, (LoopNode, GroupNode)):
            yield from _pure_loops(node.body)


def _spelled_out(node: Node) -> Node:
    """A product on tensor cores as the loops that it stands for."""
    return node.loops if isinstance(node, MmaNode) else node


def _is_pure(node: Node) -> bool:
    return isinstance(node, (ComputeNode, MmaNode)) or (
        isinstance(node, LoopNode) and all(_is_pure(n) for n in node.body)
    )


class _Blocks:
    """Some blocks of a launch, all their threads together. Arrays are [block, thread, ...]."""

    def __init__(
        self, kernel: Kernel, memory: dict[str, NDArray[Any]], written: NDArray[np.bool_], blocks: Any
    ) -> None:
        self.kernel, self.memory, self.written = kernel, memory, written
        self.env: dict[str, Any] = {}
        self.count, self.threads = len(blocks), int(kernel.threads)
        self._digits(kernel.block_loops, np.asarray(blocks).reshape(-1, 1))
        self._digits(kernel.thread_loops, np.arange(self.threads).reshape(1, -1))
        self.buffers = {b.name: self._empty(b) for b in kernel.buffers}

    def _digits(self, loops: Any, number: NDArray[Any]) -> None:
        for loop in loops:
            self.env[loop.name] = number % loop.extent
            number = number // loop.extent

    def _empty(self, b: Buffer) -> NDArray[Any]:
        width = 1 if b.scope == "shared" else self.threads
        return np.full((self.count, width, int(b.elements)), unset(b.dtype), b.dtype.numpy)

    def run(self, nodes: Sequence[Node]) -> None:
        """Carry out nodes in order."""
        for node in map(_spelled_out, nodes):
            match node:
                case LoopNode() if _is_pure(node):
                    self._arithmetic(node)
                case LoopNode() if node.asynchronous:
                    self._overlapped(node)
                case LoopNode():
                    for i in range(int(node.loop.extent)):
                        self.env[node.loop.name] = i
                        self.run(node.body)
                case ComputeNode():
                    self._compute(node, [], self.env)
                case StageNode():
                    self._stage(node)
                case FragmentNode():
                    # What a warp holds together, every lane has a copy of here.
                    self._stage(node.stage)
                case GroupNode():
                    self.run(node.body)
                case ReduceNode():
                    self._reduce(node)
                case InitNode():
                    self._init(node)
                case CombineNode():
                    self._combine(node)
                case WriteNode():
                    self._write(node)
                case BarrierNode() | WaitNode():
                    pass

    def _overlapped(self, node: LoopNode) -> None:
        """A loop whose tiles are copied ahead, group by group; what is not waited for stays NaN."""
        stages, extent, name = int(node.loop.pipeline), int(node.loop.extent), node.loop.name
        copies = [n for n in node.body if isinstance(n, StageNode) and n.asynchronous]
        use = [n for n in node.body if n not in copies]
        tiles = [{n.buffer.name: self._empty(n.buffer) for n in copies} for _ in range(stages)]
        flight = Flight()

        def issue(i: int) -> None:
            self.env[name] = i
            ready = copies if i < extent else []
            flight.commit([(tiles[i % stages][n.buffer.name], *self._copied(n)) for n in ready])

        for i in range(tiles_ahead(stages)):
            issue(i)
        for i in range(extent):
            flight.wait(groups_left(stages))
            issue(i + tiles_ahead(stages))
            self.env[name] = i
            self.buffers |= tiles[i % stages]
            self.run(use)

    def _arithmetic(self, node: LoopNode) -> None:
        """A pure nest of loops around the compute; large ones partly as iterations, to bound memory."""
        chain, inner = [], node
        while isinstance(inner, LoopNode):
            chain.append(inner.loop)
            inner = _spelled_out(inner.body[0])  # type: ignore[assignment]
        assert isinstance(inner, ComputeNode)
        points, axes = self.count * self.threads, []
        for loop in reversed(chain):
            points *= int(loop.extent)
            if points > 4 * _POINTS_AT_ONCE and len(axes) < len(chain):
                break
            axes.insert(0, loop)
        self._iterate(chain[: len(chain) - len(axes)], axes, inner)

    def _iterate(self, loops: Any, axes: Any, compute: ComputeNode) -> None:
        if loops:
            for i in range(int(loops[0].extent)):
                self.env[loops[0].name] = i
                self._iterate(loops[1:], axes, compute)
            return
        grid = {k: _expand(v, len(axes)) for k, v in self.env.items()}
        for position, loop in enumerate(axes):
            grid[loop.name] = np.arange(int(loop.extent)).reshape(_axis(position, len(axes)))
        self._compute(compute, axes, grid)

    def _compute(self, node: ComputeNode, axes: Any, grid: Mapping[str, Any]) -> None:
        compute = node.nest.compute
        acc = compute.acc_dtype
        dtype = acc.numpy
        shape = (self.count, self.threads, *(int(x.extent) for x in axes))
        result = _evaluate_body(
            compute.body,
            acc,
            _axis_values(node, grid),
            lambda x: _widen_elements(self._load(node.reads[x], grid, len(axes)), node.reads[x].dtype, acc),
        )
        result = np.broadcast_to(result, shape)
        inside = _inside(node.guards, grid)
        if compute.reduction:
            if node.guards:
                result = np.where(inside, result, dtype.type(start_value(compute.combine, acc)))
            over = tuple(2 + i for i, x in enumerate(axes) if x.reduction)
            result = _COMBINE[compute.combine].reduce(result, axis=over, dtype=dtype) if over else result
            grid = {k: _drop(v, over) for k, v in grid.items()}
            inside = True if node.target.buffer else _inside(node.target.guards, grid)
        self._update(node, grid, result, inside)

    def _update(self, node: ComputeNode, grid: Mapping[str, Any], result: NDArray[Any], inside: Any) -> None:
        combine = _COMBINE[node.nest.compute.combine] if node.nest.compute.reduction else None
        result = converted(result, node.nest.compute.acc_dtype, node.target.dtype)
        address = np.asarray(value(node.target.address, grid))
        if node.target.buffer is not None:
            buffer = self.buffers[node.target.buffer.name]
            where = np.broadcast_to(address, (1, 1, *result.shape[2:]))[0, 0].ravel()
            flat = result.reshape(self.count, self.threads, -1)
            buffer[:, :, where] = flat if combine is None else combine(buffer[:, :, where], flat)
            return
        where = np.broadcast_to(address, result.shape)
        mask = np.broadcast_to(inside, result.shape)
        out = self.memory[node.target.spec.name].reshape(-1)
        old = out[where[mask]]
        out[where[mask]] = result[mask] if combine is None else combine(old, result[mask])
        self.written.reshape(-1)[where[mask]] = True

    def _load(self, access: Access, grid: Mapping[str, Any], extra: int) -> NDArray[Any]:
        """The elements an access reads, [block, thread, axes...]; 0 outside the tensor."""
        address = np.asarray(value(access.address, grid))
        if access.buffer is None:
            inside = _inside(access.guards, grid)
            flat = self.memory[access.spec.name].reshape(-1)
            picked = flat[np.where(inside, address, 0)]
            return np.where(inside, picked, np.zeros((), picked.dtype)) if access.guards else picked
        buffer, address = self.buffers[access.buffer.name], access.buffer.placed(address)
        address = address.reshape((1,) * (2 + extra - address.ndim) + address.shape)
        blocks = np.arange(self.count).reshape(_axis(-2, extra))
        threads = np.arange(buffer.shape[1]).reshape(_axis(-1, extra))
        return np.asarray(buffer[blocks, threads, address])

    def _stage(self, node: StageNode) -> None:
        where, values = self._copied(node)
        self.buffers[node.buffer.name][:, :, where] = values

    def _copied(self, node: StageNode) -> tuple[NDArray[Any], NDArray[Any]]:
        """Where the elements of a region go in its buffer, and what they are."""
        segments = node.buffer.region.segments
        grid = self._with_segments(segments, threads=node.buffer.scope != "shared")
        if node.produced is not None:
            picked = self._produce(node, grid, len(segments))
        else:
            picked = self._load(node.source, grid, len(segments))
            picked = converted(picked, node.source.dtype, node.buffer.dtype)
        buffer = self.buffers[node.buffer.name]
        sizes = tuple(int(s.extent) for s in segments)
        placed = node.buffer.placed(np.asarray(value(node.address, grid)))
        where = np.broadcast_to(placed, (1, 1, *sizes)).ravel()
        values = np.broadcast_to(picked, (*buffer.shape[:2], *sizes)).reshape(*buffer.shape[:2], -1)
        return where, values

    def _reduce(self, node: ReduceNode) -> None:
        """All elements of the region and all points of their reduction at once."""
        compute, segments = node.compute, node.buffer.region.segments
        dtype, extra = compute.acc_dtype.numpy, len(segments) + len(compute.reduction)
        points = [int(s.extent) for s in segments] + [a.extent for a in compute.reduction]
        grid = self._with_segments(segments, threads=False, more=len(compute.reduction))
        for position, axis in enumerate(compute.reduction, len(segments)):
            grid[axis.name] = np.arange(axis.extent).reshape(_axis(position, extra))
        axes = {a.name: value(f, grid) for a, f in zip(compute.spatial, node.source.index, strict=True)}
        axes |= {a.name: grid[a.name] for a in compute.reduction}

        def read(x: ex.Load) -> NDArray[Any]:
            return _widen_elements(
                self._load(node.reads[x], grid, extra), node.reads[x].dtype, compute.acc_dtype
            )

        result = _evaluate_body(compute.body, compute.acc_dtype, axes, read)
        result = np.broadcast_to(result, (self.count, 1, *points))
        over = tuple(range(2 + len(segments), 2 + extra))
        start = dtype.type(start_value(compute.combine, compute.acc_dtype))
        combine = _COMBINE[compute.combine]
        result = combine.reduce(result, axis=over, dtype=dtype, keepdims=True, initial=start)
        result = np.where(_inside(node.source.guards, grid), result, 0)
        sizes = points[: len(segments)]
        here = self._with_segments(segments, threads=False)
        where = np.broadcast_to(np.asarray(value(node.address, here)), (1, 1, *sizes)).ravel()
        self.buffers[node.buffer.name][:, :, where] = result.reshape(self.count, 1, -1)

    def _produce(self, node: StageNode, grid: Mapping[str, Any], extra: int) -> NDArray[Any]:
        compute = node.staging.produced_by
        assert compute is not None
        assert node.produced is not None
        produced, acc = node.produced, compute.acc_dtype
        axes = {a.name: value(f, grid) for a, f in zip(compute.spatial, node.source.index, strict=True)}

        def read(x: ex.Load) -> NDArray[Any]:
            return _widen_elements(self._load(produced[x], grid, extra), produced[x].dtype, acc)

        result = _evaluate_body(compute.body, acc, axes, read)
        result = converted(result, acc, node.buffer.dtype)
        return np.where(_inside(node.source.guards, grid), result, np.zeros((), result.dtype))

    def _with_segments(self, segments: Any, threads: bool = True, more: int = 0) -> dict[str, Any]:
        """The loop variables and segment coordinates, with `more` array axes behind those of the segments."""
        names = {x.name for x in self.kernel.thread_loops} if not threads else set()
        extra = len(segments) + more
        grid = {k: _expand(0 if k in names else v, extra) for k, v in self.env.items()}
        for i, s in enumerate(segments):
            grid[f"#{i}"] = np.arange(int(s.extent)).reshape(_axis(i, extra))
        return grid

    def _init(self, node: InitNode) -> None:
        compute = self.kernel.nest.compute
        start = start_value(compute.combine, compute.acc_dtype)
        if node.buffer is not None:
            self.buffers[node.buffer.name][...] = start
            return
        grid = self._with_segments(node.region.segments)
        where, mask = self._targets(node.target, grid, node.region)
        self.memory[node.target.spec.name].reshape(-1)[where[mask]] = start

    def _targets(
        self, target: Access, grid: Mapping[str, Any], region: Any
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        shape = (self.count, self.threads, *(int(s.extent) for s in region.segments))
        where = np.broadcast_to(np.asarray(value(target.address, grid)), shape)
        return where, np.broadcast_to(_inside(target.guards, grid), shape)

    def _combine(self, node: CombineNode) -> None:
        loops = self.kernel.thread_loops
        buffer = self.buffers[node.buffer.name]
        digits = buffer.reshape(self.count, *(int(x.extent) for x in reversed(loops)), -1)
        over = tuple(1 + i for i, x in enumerate(reversed(loops)) if x in node.lanes)
        total = _COMBINE[self.kernel.nest.compute.combine].reduce(digits, axis=over, keepdims=True)
        buffer[...] = np.broadcast_to(total, digits.shape).reshape(buffer.shape)

    def _write(self, node: WriteNode) -> None:
        grid = self._with_segments(node.region.segments)
        where, mask = self._targets(node.target, grid, node.region)
        for lane in node.lanes:
            mask = mask & (grid[lane.name] == 0)
        compute = self.kernel.nest.epilogue or self.kernel.nest.compute
        acc, segments = compute.acc_dtype, len(node.region.segments)
        axes = {a.name: value(f, grid) for a, f in zip(compute.spatial, node.target.index, strict=True)}
        # An element that is not written is not read for either.
        reads = {
            x: a if a.buffer else replace(a, guards=(*node.target.guards, *a.guards))
            for x, a in node.reads.items()
        }

        def read(x: ex.Load) -> NDArray[Any]:
            return _widen_elements(self._load(reads[x], grid, segments), reads[x].dtype, acc)

        result = _evaluate_body(node.value, acc, axes, read)
        result = converted(result, acc, node.target.dtype)
        out = self.memory[node.target.spec.name].reshape(-1)
        result = np.broadcast_to(result, where.shape)[mask]
        if node.atomic:
            np.add.at(out, where[mask], result)
        else:
            out[where[mask]] = result
        self.written.reshape(-1)[where[mask]] = True


def _widen_elements(values: NDArray[Any], source: DType, acc: DType) -> NDArray[Any]:
    """Elements in the type that arithmetic has them in."""
    return converted(values, source, find_read_type(source, acc))


def _evaluate_body(
    body: ex.Expr, acc: DType, axes: Mapping[str, Any], read: Callable[[ex.Load], Any]
) -> NDArray[Any]:
    """A body in the accumulator's type; each result of int32 wraps modulo 2**32."""
    if acc.integer:
        axes = {name: np.asarray(index).astype(acc.numpy) for name, index in axes.items()}
    return np.asarray(ex.evaluate(body, axes, read), acc.numpy)


def _axis_values(node: ComputeNode, grid: Mapping[str, Any]) -> dict[str, Any]:
    return {axis: value(form, grid) for axis, form in node.nest.index.items()}


def _inside(guards: tuple[Guard, ...], grid: Mapping[str, Any]) -> Any:
    inside: Any = True
    for g in guards:
        at = value(g.form, grid)
        inside = inside & (at >= 0) & (at < g.extent)
    return inside


def _expand(v: Any, extra: int) -> Any:
    return v.reshape(v.shape + (1,) * extra) if isinstance(v, np.ndarray) else v


def _axis(position: int, count: int) -> tuple[int, ...]:
    """A shape that is 1 but along axis 2 + position of `count` + 2."""
    return tuple(-1 if i == position + 2 else 1 for i in range(count + 2))


def _drop(v: Any, axes: tuple[int, ...]) -> Any:
    """An array without axes that were summed away (index 0 of each)."""
    if not isinstance(v, np.ndarray) or not axes:
        return v
    return v[tuple(slice(0, 1) if i in axes else slice(None) for i in range(v.ndim))].reshape(
        tuple(n for i, n in enumerate(v.shape) if i not in axes)
    )
