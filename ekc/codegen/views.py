"""What the templates print: one small record of C text per node of the tree.

Templates know node kinds (loop, stage, init, compute, combine, write, barrier) and nothing of
operators; everything that needs arithmetic is worked out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ekc.codegen.names import Names
from ekc.ir.access import Access, Buffer
from ekc.ir.dtypes import DType
from ekc.ir.footprint import placed
from ekc.ir.linear import Linear, variable
from ekc.ir.operator import COMBINERS, Compute
from ekc.ir.program import THREAD_LEVELS
from ekc.ir.region import Region
from ekc.ir.tree import (
    BarrierNode,
    CombineNode,
    ComputeNode,
    InitNode,
    Kernel,
    LoopNode,
    Node,
    ReduceNode,
    StageNode,
    WriteNode,
)
from ekc.ir.warp import WARP

HARDWARE = {"block": "blockIdx", "thread": "threadIdx"}
_MOVES = {
    ("float", 2): "float2",
    ("float", 4): "float4",
    ("half_t", 2): "unsigned int",
    ("half_t", 4): "uint2",
    ("half_t", 8): "uint4",
}
_COPIES_WRITTEN_OUT = 8
"""Cooperative copies of up to this many rounds are unrolled whole; longer ones four rounds at a time."""


@dataclass(frozen=True)
class View:
    """One node for the templates: its kind and the C text it needs."""

    kind: str
    text: dict[str, Any] = field(default_factory=dict)
    body: tuple[View, ...] = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self.text[name]
        except KeyError:
            raise AttributeError(name) from None


def index_lines(kernel: Kernel, names: Names) -> list[str]:
    """`const int i_0 = blockIdx.y;` for every bound loop, and the linear thread number."""
    lines = []
    for level in ("block.z", "block.y", "block.x", *reversed(THREAD_LEVELS)):
        loops = kernel.bound(level)
        where = f"{HARDWARE[level[:-2]]}.{level[-1]}"
        for position, loop in enumerate(loops):
            below = 1
            for inner in loops[position + 1 :]:
                below *= int(inner.extent)
            lines.append(
                f"const int {names[loop.name]} = {_digit(where, below, int(loop.extent), position == 0)};"
            )
    x, y = int(kernel.extent("thread.x")), int(kernel.extent("thread.y"))
    terms = ["threadIdx.x"]
    if y > 1:
        terms.insert(0, f"threadIdx.y * {x}")
    if int(kernel.extent("thread.z")) > 1:
        terms.insert(0, f"threadIdx.z * {x * y}")
    if any(b.scope == "shared" for b in kernel.buffers):
        lines.append(f"const int thread = {' + '.join(terms)};")
    return lines


def _digit(where: str, below: int, extent: int, slowest: bool) -> str:
    text = where if below == 1 else f"{where} / {below}"
    return text if slowest else f"{text} % {extent}"


class Views:
    """Builds the views of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names = Names.of(kernel)
        self.threads = int(kernel.threads)
        self.parity: dict[str, str] = {}

    def nodes(self, nodes: Sequence[Node]) -> tuple[View, ...]:
        """The views of nodes in order."""
        return tuple(self._node(n) for n in nodes)

    def _node(self, node: Node) -> View:
        match node:
            case LoopNode() if int(node.loop.pipeline) > 1 and _shared_stages(node):
                return self._pipelined(node)
            case LoopNode():
                return View("loop", self._loop(node), self.nodes(node.body))
            case StageNode() if node.buffer.scope == "shared":
                return View("shared_stage", self._cooperative(node))
            case StageNode():
                return View("register_stage", self._private(node))
            case ReduceNode():
                return self._reduce(node)
            case InitNode():
                return self._init(node)
            case ComputeNode():
                return self._compute(node)
            case CombineNode():
                return self._combine(node)
            case WriteNode():
                return self._write(node)
            case BarrierNode():
                return View("barrier")

    def _loop(self, node: LoopNode) -> dict[str, Any]:
        loop = node.loop
        full = node.written_out or int(loop.unroll) >= int(loop.extent)
        unroll = "" if full else f" {int(loop.unroll)}"
        counter = "long long" if int(loop.extent) >= 2**31 else "int"
        return {"name": self.names[loop.name], "type": counter, "extent": int(loop.extent), "unroll": unroll}

    def _pipelined(self, node: LoopNode) -> View:
        """Two copies: fetch the next tile into registers, use this one, then store the fetched tile."""
        name = self.names[node.loop.name]
        stages = _shared_stages(node)
        rest = [n for n in node.body if n not in stages and not isinstance(n, BarrierNode)]
        for s in stages:
            self.parity[s.buffer.name] = f"{name} % 2"
        # The fetched elements live in registers, which have no index: every round is written out.
        copies = [self._cooperative(s) | {"unroll": ""} for s in stages]
        fetches, commits = (tuple(View(kind, c) for c in copies) for kind in ("fetch", "commit"))
        inner = self.nodes(rest)
        text = self._loop(node) | {
            "fetches": fetches,
            "commits": commits,
            "buffers": [self._fetched(s) for s in stages],
        }
        return View("pipeline", text, inner)

    def _fetched(self, s: StageNode) -> dict[str, Any]:
        elements = self._rounds(s) * int(s.staging.vector)
        return {
            "type": s.buffer.dtype.cuda,
            "name": f"{self.names[s.buffer.name]}_next",
            "elements": elements,
        }

    def _rounds(self, node: StageNode) -> int:
        moves = int(node.buffer.region.size) // int(node.staging.vector)
        return -(-moves // self.threads)

    def _cooperative(self, node: StageNode) -> dict[str, Any]:
        """A copy by all threads: element numbers, their coordinates, source and destination."""
        size, vector, rounds = int(node.buffer.region.size), int(node.staging.vector), self._rounds(node)
        names = self.names.within(self.names.shared_coordinates(self.kernel, node.buffer.region))
        text = self._copy(node, vector, names)
        return text | {
            "rounds": rounds,
            "unroll": "" if rounds <= _COPIES_WRITTEN_OUT else " 4",
            "threads": self.threads,
            "size": size,
            "exact": rounds * self.threads * vector == size,
            "coordinates": self._coordinates(node.buffer.region, names),
            "next": f"{self.names[node.buffer.name]}_next",
            "parity": self.parity.get(node.buffer.name, ""),
        }

    def _reduce(self, node: ReduceNode) -> View:
        """Elements of a region dealt out to groups of warps; each copy of the buffer is what one warp has."""
        compute, buffer, region = node.compute, node.buffer, node.buffer.region
        names = self.names.within(self.names.shared_coordinates(self.kernel, region))
        size, warps = int(region.size), int(node.staging.warps)
        group, per_round = WARP * warps, self.threads // (WARP * warps)
        *others, last = compute.reduction
        cell = segment_cell(region)
        self.parity[buffer.name] = "0" if warps > 1 else ""
        axes = placed(compute, node.source.index) | {a.name: variable(a.name) for a in compute.reduction}
        value = names.value(compute.body, axes, lambda x: self._read(node.reads[x], names))
        steps = -(-last.extent // group)
        text = {
            "what": f"{compute.combine} at {self._box(node.staging.tensor, region)} -> {names[buffer.name]}",
            "rounds": -(-size // per_round),
            "per_round": per_round,
            "exact": size % per_round == 0,
            "size": size,
            "group": group,
            "coordinates": self._coordinates(region, names),
            "start": constant(COMBINERS[compute.combine]),
            "others": [{"name": names[a.name], "extent": a.extent, "step": 1} for a in others],
            "last": names[last.name],
            "steps": steps,
            "tail": f"{names[last.name]} < {last.extent}" if steps * group != last.extent else "",
            "update": _combined(compute, "reduced", value),
            "meet": _combined(compute, "reduced", "__shfl_xor_sync(0xffffffffu, reduced, lane)"),
            "guard": names.condition(node.source.guards),
            "type": buffer.dtype.cuda,
            "zero": zero(buffer.dtype),
            "part": names.cell(buffer, cell, f"thread / {WARP} % {warps}" if warps > 1 else ""),
            "warps": warps,
            "threads": self.threads,
            "join_rounds": -(-size // self.threads),
            "result": names.cell(buffer, cell, self.parity[buffer.name]),
            "join": _combined(compute, "reduced", names.cell(buffer, cell, "part")),
        }
        return View("reduce", text)

    def _coordinates(self, region: Region, names: Names) -> list[str]:
        """`const int i = element / 8;` for each segment."""
        lines, below = [], int(region.size)
        for i, s in enumerate(region.segments):
            below //= int(s.extent)
            text = "element" if below == 1 else f"element / {below}"
            lines.append(f"const int {names[f'#{i}']} = {text if i == 0 else f'{text} % {int(s.extent)}'};")
        return lines

    def _copy(self, node: StageNode, vector: int, names: Names) -> dict[str, Any]:
        """Source element, destination cells, guard and types of one move of `vector` elements."""
        buffer, dtype = node.buffer, node.buffer.dtype if node.produced is not None else node.source.dtype
        copy = self.parity.get(buffer.name, "")
        cell = segment_cell(buffer.region)
        converts = dtype is not buffer.dtype
        source = self._source(node, names)
        return {
            "what": self._box(node.staging.tensor, node.buffer.region),
            "source": widened(source, dtype) if converts and vector == 1 else source,
            "produced": node.produced is not None,
            "guard": names.condition(node.source.guards),
            "type": dtype.cuda,
            "zero": zero(buffer.dtype),
            "vector": vector,
            "move": move_type(dtype, vector),
            "contiguous": vector == 1 or (buffer.fastest == node.vector_segment and not converts),
            "bytes": dtype.bytes * vector,
            "target": names.cell(buffer, cell, copy),
            "targets": [
                names.cell(buffer, self._stepped(cell, node.vector_segment, v), copy) for v in range(vector)
            ],
            "values": [widened(f"moved[{v}]", dtype) if converts else f"moved[{v}]" for v in range(vector)],
            "name": names[buffer.name],
        }

    def _stepped(self, cell: tuple[Linear, ...], segment: int | None, by: int) -> tuple[Linear, ...]:
        return tuple(form.shifted(by) if i == segment else form for i, form in enumerate(cell))

    def _box(self, tensor: str, region: Region) -> str:
        starts = [self.names.linear(f) for f in region.base]
        spans = [1] * len(starts)
        for s in region.segments:
            spans[s.dim] *= int(s.extent)
        box = ", ".join(
            f"{start} : {span}" if span > 1 else start for start, span in zip(starts, spans, strict=True)
        )
        return f"{tensor}[{box}]"

    def _source(self, node: StageNode, names: Names) -> str:
        if node.produced is None:
            return self._copied(node.source, names)
        compute = node.staging.produced_by
        assert compute is not None
        axes = dict(zip((a.name for a in compute.spatial), node.source.index, strict=True))
        reads = node.produced
        value = names.value(compute.body, axes, lambda x: self._read(reads[x], names))
        return rounded(value, node.buffer.dtype)

    def _copied(self, access: Access, names: Names) -> str:
        if access.buffer is None:
            return names.element(access)
        return names.cell(access.buffer, access.cell, self.parity.get(access.buffer.name, ""))

    def _private(self, node: StageNode) -> dict[str, Any]:
        """A copy by each thread for itself: plain nested loops, all written out."""
        vector = int(node.staging.vector)
        names, loops = self._segment_loops(node.buffer.region, node.vector_segment, vector)
        return self._copy(node, vector, names) | {"loops": loops, "declare": declaration(node.buffer, names)}

    def _segment_loops(
        self, region: Region, segment: int | None, vector: int
    ) -> tuple[Names, list[dict[str, Any]]]:
        """The loops over a thread's tile, and the names inside; loops of one round are left out."""
        steps = [vector if i == segment else 1 for i in range(len(region.segments))]
        once = frozenset(f"#{i}" for i, s in enumerate(region.segments) if int(s.extent) == steps[i])
        names = self.names.within(self.names.own_coordinates(region), once)
        loops = [
            {"name": names[f"#{i}"], "extent": int(s.extent), "step": steps[i]}
            for i, s in enumerate(region.segments)
            if f"#{i}" not in once
        ]
        return names, loops

    def _init(self, node: InitNode) -> View:
        compute = self.kernel.nest.compute
        start = constant(COMBINERS[compute.combine])
        names, loops = self._segment_loops(node.region, None, 1)
        if node.buffer is not None:
            target = names.cell(node.buffer, segment_cell(node.region))
            return View("init", {"loops": loops, "target": target, "start": start, "guard": ""})
        guard, start = names.condition(node.target.guards), rounded(start, compute.output.dtype)
        return View(
            "init", {"loops": loops, "target": names.element(node.target), "start": start, "guard": guard}
        )

    def _compute(self, node: ComputeNode) -> View:
        compute = node.nest.compute
        value = self.names.value(
            compute.body, node.nest.index, lambda x: self._read(node.reads[x], self.names)
        )
        target = self._copied(node.target, self.names)
        guard = self.names.condition(node.guards)
        if not compute.reduction:
            stored = node.target.buffer.dtype if node.target.buffer else compute.output.dtype
            return View("compute", {"statement": f"{target} = {rounded(value, stored)};", "guard": guard})
        return View("compute", {"statement": _combined(compute, target, value), "guard": guard})

    def _read(self, access: Access, names: Names) -> str:
        """A value read in the body, as float, 0 outside the tensor."""
        text = widened(self._copied(access, names), access.dtype)
        guard = names.condition(access.guards)
        return f"({guard} ? {text} : 0.0f)" if guard else text

    def _combine(self, node: CombineNode) -> View:
        names, loops = self._segment_loops(node.buffer.region, None, 1)
        target = names.cell(node.buffer, segment_cell(node.buffer.region))
        lanes = 1
        for loop in node.lanes:
            lanes *= int(loop.extent)
        other = f"__shfl_xor_sync(0xffffffffu, {target}, lane)"
        update = _combined(self.kernel.nest.compute, target, other)
        return View("combine", {"loops": loops, "half": lanes // 2, "update": update, "lanes": lanes})

    def _write(self, node: WriteNode) -> View:
        vector, spec = int(node.vector), node.target.spec
        names, loops = self._segment_loops(node.region, node.vector_segment, vector)
        cell = segment_cell(node.region)
        cells = [names.cell(node.buffer, self._stepped(cell, node.vector_segment, v)) for v in range(vector)]
        first = [f"{names[x.name]} == 0" for x in node.lanes]
        guards = [*first, *filter(None, [names.condition(node.target.guards)])]
        text = {
            "loops": loops,
            "guard": " && ".join(guards),
            "vector": vector,
            "move": move_type(spec.dtype, vector),
            "target": names.element(node.target),
            "type": spec.dtype.cuda,
            "bytes": spec.dtype.bytes * vector,
            "same": spec.dtype is node.buffer.dtype,
            "source": cells[0],
            "values": [rounded(c, spec.dtype) for c in cells],
            "what": f"{names[node.buffer.name]} -> {names[spec.name]}",
        }
        return View("write", text)


def _combined(compute: Compute, target: str, value: str) -> str:
    """The statement that combines a value into a target."""
    if compute.combine == "sum":
        return f"{target} += {value};"
    return f"{target} = f{compute.combine}f({target}, {value});"


def _shared_stages(node: LoopNode) -> list[StageNode]:
    """The copies that a pipelined loop overlaps; none where compute_at has moved them to another loop."""
    return [n for n in node.body if isinstance(n, StageNode) and n.buffer.scope == "shared"]


def segment_cell(region: Region) -> tuple[Linear, ...]:
    """The cell whose coordinates are the segment variables themselves."""
    return tuple(Linear(((f"#{i}", 1),)) for i in range(len(region.segments)))


def move_type(dtype: DType, vector: int) -> str:
    """The built-in type that moves `vector` elements at once."""
    return dtype.cuda if vector == 1 else _MOVES[(dtype.cuda, vector)]


def zero(dtype: DType) -> str:
    """0 of a type."""
    return "half_t{0}" if dtype.cuda == "half_t" else "0.0f"


def constant(number: float) -> str:
    """A float literal; infinities by their bits, which needs no header."""
    if number in (float("inf"), float("-inf")):
        return "__int_as_float(0x7f800000)" if number > 0 else "__int_as_float(0xff800000)"
    return f"{number!r}f"


def widened(value: str, dtype: DType) -> str:
    """A stored value as float."""
    return f"to_float({value})" if dtype.cuda == "half_t" else value


def rounded(value: str, dtype: DType) -> str:
    """A float value as the stored type."""
    return f"to_half({value})" if dtype.cuda == "half_t" else value


def declaration(buffer: Buffer, names: Names) -> str:
    """`__shared__ __align__(16) float A_shared[2][8][132];`."""
    extents = [int(s) for s in buffer.sizes]
    if buffer.scope == "shared" and len(extents) == 1:
        # A row by itself: the next copy must start where a vector may, and of 12 bytes the compiler reads 16.
        extents[0] += -extents[0] % (16 // buffer.dtype.bytes)
    if int(buffer.copies) > 1:
        extents.insert(0, int(buffer.copies))
    sizes = "".join(f"[{s}]" for s in extents)
    prefix = "__shared__ __align__(16)" if buffer.scope == "shared" else "alignas(16)"
    return f"{prefix} {buffer.dtype.cuda} {names[buffer.name]}{sizes};"
