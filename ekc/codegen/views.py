"""What the templates print: one small record of C text per node of the tree.

Templates know node kinds (loop, stage, fragment, init, compute, product, combine, write, barrier) and
nothing of operators; everything that needs arithmetic is worked out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ekc.codegen.names import Names
from ekc.codegen.rounds import steady
from ekc.codegen.shared_memory import array_sizes
from ekc.codegen.tensor_views import fragment_text, product_text
from ekc.codegen.types import Arithmetic, converted, move_type, zero
from ekc.ir.access import Access, Buffer, moved
from ekc.ir.async_copy import groups_left, tiles_ahead
from ekc.ir.dtypes import DType, start_value
from ekc.ir.footprint import placed
from ekc.ir.issue import fetched
from ekc.ir.linear import Linear, variable
from ekc.ir.nodes import (
    BarrierNode,
    CombineNode,
    ComputeNode,
    FragmentNode,
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
from ekc.ir.region import Region, segment_cell
from ekc.ir.warp import WARP

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
            case LoopNode() if node.asynchronous:
                return self._overlapped(node)
            case LoopNode() if int(node.loop.pipeline) > 1 and _shared_stages(node):
                return self._pipelined(node)
            case LoopNode():
                return View("loop", self._loop(node), self.nodes(node.body))
            case StageNode() if node.buffer.scope == "shared":
                return View("shared_stage", self._cooperative(node))
            case StageNode():
                return View("register_stage", self._private(node))
            case FragmentNode():
                copy = self.parity.get(node.stage.staging.source, "")
                return View("fragment", fragment_text(node, self.names, copy))
            case MmaNode():
                return View("product", product_text(node, self.names))
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
            case BarrierNode() | WaitNode():
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

    def _overlapped(self, node: LoopNode) -> View:
        """Several copies: each tile is copied by itself some iterations before its use."""
        name, stages, copies = self.names[node.loop.name], int(node.loop.pipeline), _shared_stages(node)
        self.parity |= {s.buffer.name: f"{name}_copy" for s in copies}
        text = self._loop(node) | {
            "stages": stages,
            "ahead": tiles_ahead(stages),
            "left": groups_left(stages),
            "copies": tuple(
                View("async_stage", steady(self._cooperative(s), s.buffer.region)) for s in copies
            ),
        }
        rest = [n for n in node.body if n not in copies and not isinstance(n, WaitNode)]
        return View("async_pipeline", text, self.nodes(rest))

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
        acc = compute.acc_dtype
        arithmetic = Arithmetic(acc)
        value = names.value(compute.body, arithmetic, axes, lambda x: self._read(node.reads[x], acc, names))
        steps = -(-last.extent // group)
        text = {
            "what": f"{compute.combine} at {self._box(node.staging.tensor, region)} -> {names[buffer.name]}",
            "rounds": -(-size // per_round),
            "per_round": per_round,
            "exact": size % per_round == 0,
            "size": size,
            "group": group,
            "coordinates": self._coordinates(region, names),
            "start": arithmetic.literal(start_value(compute.combine, acc)),
            "others": [{"name": names[a.name], "extent": a.extent, "step": 1} for a in others],
            "last": names[last.name],
            "steps": steps,
            "tail": f"{names[last.name]} < {last.extent}" if steps * group != last.extent else "",
            "update": arithmetic.combined(compute.combine, "reduced", value),
            "meet": arithmetic.combined(
                compute.combine, "reduced", "__shfl_xor_sync(0xffffffffu, reduced, lane)"
            ),
            "guard": names.condition(node.source.guards),
            "type": buffer.dtype.cuda,
            "zero": zero(buffer.dtype),
            "part": names.cell(buffer, cell, f"thread / {WARP} % {warps}" if warps > 1 else ""),
            "warps": warps,
            "threads": self.threads,
            "join_rounds": -(-size // self.threads),
            "result": names.cell(buffer, cell, self.parity[buffer.name]),
            "join": arithmetic.combined(compute.combine, "reduced", names.cell(buffer, cell, "part")),
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
            "source": converted(source, dtype, buffer.dtype) if converts and vector == 1 else source,
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
            "values": [converted(f"moved[{v}]", dtype, buffer.dtype) for v in range(vector)],
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
        acc = compute.acc_dtype
        value = names.value(compute.body, Arithmetic(acc), axes, lambda x: self._read(reads[x], acc, names))
        return converted(value, acc, node.buffer.dtype)

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
        acc = compute.acc_dtype
        start = Arithmetic(acc).literal(start_value(compute.combine, acc))
        names, loops = self._segment_loops(node.region, None, 1)
        if node.buffer is not None:
            target = names.cell(node.buffer, segment_cell(node.region))
            return View("init", {"loops": loops, "target": target, "start": start, "guard": ""})
        guard, start = names.condition(node.target.guards), converted(start, acc, compute.output.dtype)
        return View(
            "init", {"loops": loops, "target": names.element(node.target), "start": start, "guard": guard}
        )

    def _compute(self, node: ComputeNode) -> View:
        compute = node.nest.compute
        acc = compute.acc_dtype
        arithmetic = Arithmetic(acc)
        value = self.names.value(
            compute.body, arithmetic, node.nest.index, lambda x: self._read(node.reads[x], acc, self.names)
        )
        target = self._copied(node.target, self.names)
        guard = self.names.condition(node.guards)
        if not compute.reduction:
            statement = f"{target} = {converted(value, acc, node.target.dtype)};"
            return View("compute", {"statement": statement, "guard": guard})
        statement = arithmetic.combined(compute.combine, target, value)
        return View("compute", {"statement": statement, "guard": guard})

    def _read(self, access: Access, acc: DType, names: Names) -> str:
        """A value read in the body, in the accumulator's type, 0 outside the tensor."""
        text = converted(self._copied(access, names), access.dtype, acc)
        guard = names.condition(access.guards)
        return f"({guard} ? {text} : {zero(acc)})" if guard else text

    def _combine(self, node: CombineNode) -> View:
        names, loops = self._segment_loops(node.buffer.region, None, 1)
        target = names.cell(node.buffer, segment_cell(node.buffer.region))
        lanes = 1
        for loop in node.lanes:
            lanes *= int(loop.extent)
        other = f"__shfl_xor_sync(0xffffffffu, {target}, lane)"
        compute = self.kernel.nest.compute
        update = Arithmetic(compute.acc_dtype).combined(compute.combine, target, other)
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
            "values": [converted(c, node.buffer.dtype, spec.dtype) for c in cells],
            "what": f"{names[node.buffer.name]} -> {names[spec.name]}",
        }
        if self.kernel.nest.epilogue is None:
            return View("write", text)
        return View("write_through", text | self._through(node, names))

    def _through(self, node: WriteNode, names: Names) -> dict[str, Any]:
        """An element worked out when it is written: what is read for it, and the value, in element `part`
        of the vector."""
        vector, spec, axis = int(node.vector), node.target.spec, f"#{node.vector_segment}"
        move = {axis: Linear(((axis, 1), ("part", 1)))} if vector > 1 else {}
        inside = names.also({"part": "part"})
        here = dict(zip(node.reads, names.free([f"{x.tensor}_here" for x in node.reads]), strict=True))
        near = dict(zip(node.reads, names.free([f"{x.tensor}_near" for x in node.reads]), strict=True))
        acc = (self.kernel.nest.epilogue or self.kernel.nest.compute).acc_dtype
        fetches, values = [], []
        for load, access in node.reads.items():
            width = int(fetched(node, access))
            text = self._read(moved(access, move), acc, inside)
            if width > 1:
                fetches.append(self._fetch(access, near[load], width, vector, axis, names))
                text = converted(f"{near[load]}[part]", access.dtype, acc)
            values.append({"name": here[load], "text": text})
        index = (form.substitute(move) for form in node.target.index)
        axes = dict(zip((a.name for a in self.kernel.nest.compute.spatial), index, strict=True))
        value = inside.value(node.value, Arithmetic(acc), axes, lambda x: here[x])
        return {
            "fetches": fetches,
            "held": acc.cuda,
            "reads": values,
            "value": converted(value, acc, spec.dtype),
        }

    def _fetch(
        self, access: Access, near: str, width: int, vector: int, axis: str, names: Names
    ) -> dict[str, Any]:
        """A read of the neighbours that a vector needs, `width` at a time."""
        dtype = access.dtype
        starts = [moved(access, {axis: Linear(((axis, 1),), at)}) for at in range(0, vector, width)]
        return {
            "declare": f"alignas({dtype.bytes * width}) {dtype.cuda} {near}[{vector}];",
            "move": move_type(dtype, width),
            "parts": [(f"{near}[{i * width}]", names.element(start)) for i, start in enumerate(starts)],
        }


def _shared_stages(node: LoopNode) -> list[StageNode]:
    """The copies that a pipelined loop overlaps; none where compute_at has moved them to another loop."""
    return [n for n in node.body if isinstance(n, StageNode) and n.buffer.scope == "shared"]


def declaration(buffer: Buffer, names: Names) -> str:
    """`alignas(16) float C_acc[2][4];`: what each thread has for itself."""
    return f"alignas(16) {buffer.dtype.cuda} {names[buffer.name]}{array_sizes(buffer)};"
