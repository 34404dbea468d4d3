"""A Program as text that a student can read: one line a node, remarks in a column on the right.

Blocks and threads are told once, above the body that every thread runs; copies into shared memory
are shared out over all threads of the block. Indices of a buffer count from the start of its tile,
indices of a tensor in global memory from the start of the tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ekc.ir import expr as ex
from ekc.ir.access import Access, Buffer, Guard, moved
from ekc.ir.async_copy import groups_left, tiles_ahead
from ekc.ir.dtypes import DType, start_value
from ekc.ir.fragment_loads import fit, pairs
from ekc.ir.linear import Atom, Extent, Linear
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
from ekc.ir.operator import Compute
from ekc.ir.program import Loop, Program
from ekc.ir.region import Region, Segment
from ekc.ir.tree import kernels
from ekc.ir.view import View
from ekc.ir.warpgroup import GroupProduct

_WIDEST = 68
"""A line longer than this has its remark right behind it and does not push the column."""


@dataclass(frozen=True)
class _Line:
    text: str
    remark: str = ""

    def inside(self) -> _Line:
        return _Line(f"  {self.text}", self.remark)


def show(program: Program) -> str:
    """The tree of a single Program, as text; the same Program always gives the same text.

    >>> print(show(ekc.Schedule(ekc.matmul(64, 64, 64)).program))
    """
    launches = kernels(program)
    lines: list[_Line] = []
    for number, kernel in enumerate(launches, 1):
        lines += [_Line("")] if lines else []
        label = f"launch {number} of {len(launches)}: " if len(launches) > 1 else ""
        lines += [_Line(f"{label}{kernel.nest.compute}")]
        lines += [_Line(f"{kernel.nest.epilogue}")] if kernel.nest.epilogue else []
        lines += _kernel(kernel)
    return "\n".join(_aligned(lines))


def _aligned(lines: Sequence[_Line]) -> Iterator[str]:
    column = max((len(x.text) for x in lines if x.remark and len(x.text) <= _WIDEST), default=0)
    for line in lines:
        yield f"{line.text:{column}}   {line.remark}" if line.remark else line.text


def _kernel(kernel: Kernel) -> Iterator[_Line]:
    blocks = [x for x in kernel.nest.loops if x.is_block]
    threads = [x for x in kernel.nest.loops if x.is_thread]
    yield _Line(_loops(blocks) or "one block", _counted(kernel.blocks, "block") if blocks else "")
    yield _Line(f"  {_loops(threads) or 'one thread'}", _counted(kernel.threads, "thread") if threads else "")
    for line in _body(kernel, kernel.body):
        yield line.inside().inside()


def _loops(loops: Iterable[Loop]) -> str:
    return ", ".join(f"{x.level} {x.name} in {x.extent}" for x in loops)


def _counted(number: Extent, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _body(kernel: Kernel, nodes: Sequence[Node]) -> Iterator[_Line]:
    for node in nodes:
        yield from _node(kernel, node)


def _node(kernel: Kernel, node: Node) -> Iterator[_Line]:
    match node:
        case LoopNode():
            yield _Line(f"for {node.loop.name} in {node.loop.extent}", _remarks(_loop_remarks(node)))
            for line in _body(kernel, node.body):
                yield line.inside()
        case StageNode():
            yield _stage(kernel, node)
        case FragmentNode():
            yield _fragment(kernel, node)
        case MmaNode():
            yield _mma(node)
        case GroupNode():
            yield from _body(kernel, node.body)
            yield _Line("wait for products")
        case ReduceNode():
            yield _reduce(node)
        case InitNode():
            yield _init(kernel.nest.compute, node)
        case ComputeNode():
            yield from _compute(node)
        case CombineNode():
            combine = kernel.nest.compute.combine
            yield _Line(f"{combine} {node.buffer.name} across lanes {_names(node.lanes)}", "shuffle")
        case WriteNode():
            yield _write(kernel, node)
        case BarrierNode():
            yield _Line("barrier")
        case WaitNode():
            left = groups_left(node.loop.pipeline)
            yield _Line(f"wait for tile {node.loop.name}, barrier", f"{_counted(left, 'tile')} on the way")


def _remarks(parts: Iterable[str]) -> str:
    return ", ".join(p for p in parts if p)


def _names(loops: Iterable[Loop]) -> str:
    return ", ".join(x.name for x in loops)


def _loop_remarks(node: LoopNode) -> Iterator[str]:
    loop = node.loop
    if loop.level != "serial":
        yield loop.level
    if loop.pipeline > 1:
        yield f"pipeline {loop.pipeline}{', async' if node.asynchronous else ''}"
    if node.written_out:
        yield "written out"
    elif loop.unroll > 1:
        yield "unroll" if loop.unroll >= loop.extent else f"unroll {loop.unroll}"


def _stage(kernel: Kernel, node: StageNode) -> _Line:
    buffer, staging = node.buffer, node.staging
    if node.source.buffer is None:
        place = _box(node.source.spec.name, buffer.region)
    else:
        place = _tile_box(node.source.buffer, buffer.region)
    made = f" = {staging.produced_by.body}" if staging.produced_by else ""
    verb = "compute" if staging.produced_by else "stage"
    text = f"{verb} {place}{made} -> {buffer.scope}{_shape(buffer, staging.pad)}"
    return _Line(text, _remarks(_stage_remarks(kernel, node)))


def _fragment(kernel: Kernel, node: FragmentNode) -> _Line:
    fits, pair = fit(node), int(pairs(node))
    if not fits.any:
        how = f"{node.registers * node.fragments} x {node.product.each} {node.source.dtype}"
    else:
        trans = "" if fits.along else ".trans"
        how = f"{node.fragments // pair} x ldmatrix.x{node.registers * pair}{trans}"
    return _Line(_stage(kernel, node.stage).text, how)


def _mma(node: MmaNode) -> _Line:
    """A product, told by the first element of its sums and factors."""
    tile = node.tile
    start = {x.name: Linear() for x in (*tile.inner, *tile.spread)}
    a, b = (_access(moved(node.compute.reads[load], start)) for load in (tile.a, tile.b))
    sums = _access(moved(node.compute.target, start))
    name = tile.product.name
    if isinstance(tile.product, GroupProduct) and tile.strips is not None:
        name = tile.product.sized(tile.strips.extent)
    return _Line(f"multiply {sums} += {a} * {b}", f"{name} {tile.product.dtype}")


def _reduce(node: ReduceNode) -> _Line:
    region, compute = node.buffer.region, node.compute
    over = ", ".join(f"{a.name} < {a.extent}" for a in compute.reduction)
    told = f"{compute.combine}[{over}] {_read_from(compute.body, node)}"
    place = _box(node.source.spec.name, region)
    return _Line(
        f"reduce {place} = {told} -> shared{_shape(node.buffer, 0)}",
        f"{_counted(node.staging.warps, 'warp')} an element",
    )


def _read_from(e: ex.Expr, node: ReduceNode) -> ex.Expr:
    """A body in its own axes, each read told from where it comes."""
    match e:
        case ex.Load():
            buffer = node.reads[e].buffer
            return e if buffer is None else ex.Load(buffer.name, e.index)
        case ex.Binary():
            return ex.Binary(e.op, _read_from(e.a, node), _read_from(e.b, node))
        case ex.Call():
            return ex.Call(e.function, _read_from(e.argument, node))
        case ex.Where():
            return ex.Where(e.op, *(_read_from(part, node) for part in ex.children(e)))
    return e


def _stage_remarks(kernel: Kernel, node: StageNode) -> Iterator[str]:
    buffer, width = node.buffer, node.staging.vector
    if buffer.scope == "fragment":
        yield "by the lanes of a warp together"
    elif buffer.scope == "shared":
        yield f"{_counted(kernel.threads, 'thread')} x {_vector(node.source.dtype, width)}"
    else:
        yield f"{-(-buffer.region.size // width)} x {_vector(node.source.dtype, width)}"
    before = node.source.buffer.order if node.source.buffer else tuple(range(len(buffer.order)))
    if buffer.order != before:
        yield "transposed"
    if buffer.panel:
        yield f"panels of {buffer.panel}"
    if buffer.swizzle > 1:
        yield f"swizzle {buffer.swizzle}"
    if node.asynchronous:
        yield f"{tiles_ahead(buffer.copies)} ahead"
    if node.source.guards:
        yield f"zero beyond {node.source.spec.name}"


def _vector(dtype: DType, width: Extent) -> str:
    name = dtype.cuda.removeprefix("signed ").removesuffix("_t")
    return name if width == 1 else f"{name}{width}"


def _shape(buffer: Buffer, pad: Extent) -> str:
    """Extents along each stored dimension of the tensor; dimensions of one element are left out."""
    extents = {dim: 1 for dim in buffer.order if buffer.segment_of(dim) is not None}
    for s in buffer.region.segments:
        extents[s.dim] *= s.extent
    return f"[{', '.join(map(str, extents.values()))}{f'+{pad}' if pad else ''}]"


def _box(name: str, region: Region) -> str:
    spans = [_span(form, _along(region, dim)) for dim, form in enumerate(region.told())]
    return f"{name}[{', '.join(spans)}]{''.join(_runs(region))}"


def _along(region: Region, dim: int) -> list[Segment]:
    return [s for s in region.segments if s.dim == dim and not s.joint]


def _runs(region: Region, within: View | None = None) -> Iterator[str]:
    """Which iterations of joint loops a tile takes: `, n_p_q = n_p_q.0*64 : 64`; of those that a larger tile
    does not cut itself."""
    known = {run.loops for run in within.runs} if within else set()
    for run in region.view.runs if region.view else ():
        if run.loops not in known:
            yield f", {run.name} = {_span(run.start, region.along_run(run.loops))}"


def _tile_box(tile: Buffer, region: Region) -> str:
    """The part of a tile that a region copies, counted from the tile's first element."""
    spans, view = [], tile.region.view
    known = {a for form in view.told for a, _ in form.terms} if view else set()
    for dim in tile.order:
        for s in tile.region.segments:
            if s.dim == dim and s.joint:
                spans.append(_span(region.outside(s), region.along_run({a for a, _ in s.terms})))
        along = _along(tile.region, dim)
        if along:
            start = tile.region.offset(region.told(), dim)
            start = Linear(tuple((a, c) for a, c in start.terms if a not in known), start.const)
            start = _divided(start, along[-1].stride)
            spans.append(_span(start, _along(region, dim), along[-1].stride))
    return f"{tile.name}[{', '.join(spans)}]{''.join(_runs(region, view))}"


def _divided(form: Linear, step: Extent) -> Linear:
    return Linear(tuple((a, c // step) for a, c in form.terms), form.const // step)


def _span(base: Linear, segments: Sequence[Segment], unit: Extent = 1) -> str:
    """`i.0*128 : 4 x2 every 64`: from there 4 elements, and again 64 further on."""
    if all(s.extent == 1 for s in segments):
        return _form(base)
    finest = segments[-1]
    text = f"{_form(base)} : {finest.extent}"
    if finest.stride != unit:
        text += f" every {finest.stride // unit}"
    for s in reversed(segments[:-1]):
        text += f" x{s.extent} every {s.stride // unit}"
    return text


def _init(compute: Compute, node: InitNode) -> _Line:
    value = start_value(compute.combine, compute.acc_dtype)
    start = f"{value:g}" if isinstance(value, float) else str(value)
    if node.buffer is not None:
        return _Line(f"register {node.buffer.name}{_shape(node.buffer, 0)} = {start}")
    name = compute.output.name
    return _Line(f"{_box(name, node.region)} = {start}", _only(name, node.target.guards))


def _only(name: str, guards: Sequence[Guard]) -> str:
    return f"only inside {name}" if guards else ""


def _compute(node: ComputeNode) -> Iterator[_Line]:
    compute = node.nest.compute
    body = _told(compute.body, node)
    target = _access(node.target)
    symbol = {"sum": "+=", "prod": "*="}.get(compute.combine, f"{compute.combine}=")
    beyond = dict.fromkeys(f"zero beyond {a.spec.name}" for a in node.reads.values() if a.guards)
    line = _Line(f"{target} {symbol if compute.reduction else '='} {body}", _remarks(beyond))
    if not node.guards:
        yield line
        return
    yield _Line(f"if {' and '.join(map(_guard, node.guards))}")
    yield line.inside()


def _guard(guard: Guard) -> str:
    low = "0 <= " if guard.below else ""
    high = f" < {guard.extent}" if guard.above else ""
    return f"{low}{_form(guard.form)}{high}"


def _told(e: ex.Expr, node: ComputeNode) -> ex.Expr:
    """The body with each read and axis replaced by the text of the place it stands for."""
    match e:
        case ex.Load():
            return ex.Var(_access(node.reads[e]))
        case ex.Var():
            text = _form(node.nest.index[e.name])
            return ex.Var(f"({text})" if " " in text else text)
        case ex.Binary():
            return ex.Binary(e.op, _told(e.a, node), _told(e.b, node))
        case ex.Call():
            return ex.Call(e.function, _told(e.argument, node))
        case ex.Where():
            return ex.Where(e.op, *(_told(part, node) for part in ex.children(e)))
    return e


def _access(access: Access) -> str:
    if access.buffer is None:
        return f"{access.spec.name}[{', '.join(map(_form, access.index))}]"
    places: dict[int, Linear] = {}
    for s, form in zip(access.buffer.region.segments, access.cell, strict=True):
        places[s.dim] = places.get(s.dim, Linear()).scaled(s.extent) + form
    stored = [_form(places[dim]) for dim in access.buffer.order if dim in places]
    return f"{access.buffer.name}[{', '.join(stored)}]"


def _write(kernel: Kernel, node: WriteNode) -> _Line:
    name, held = node.target.spec.name, kernel.nest.compute.output.name
    told = ex.with_loads(node.value, lambda x: ex.Var(node.buffer.name) if x.tensor == held else x)
    width = _vector(node.target.spec.dtype, node.vector) if node.vector > 1 else ""
    lanes = f"lane 0 of {_names(node.lanes)}" if node.lanes else ""
    verb, how = ("add", "atomic") if node.atomic else ("write", width)
    remarks = _remarks((how, lanes, _only(name, node.target.guards)))
    return _Line(f"{verb} {told} -> {name}", remarks)


def _form(form: Linear) -> str:
    """`i.0*128 + i.2*4 - 1`."""
    parts = [(c, _atom(a)) for a, c in form.terms if c != 0]
    text = "".join(f" {'-' if c < 0 else '+'} {_times(name, abs(c))}" for c, name in parts)
    if form.const or not parts:
        text += f" {'-' if form.const < 0 else '+'} {abs(form.const)}"
    return text[3:] if text.startswith(" + ") else f"-{text[3:]}"


def _times(name: str, coefficient: Extent) -> str:
    return name if coefficient == 1 else f"{name}*{coefficient}"


def _atom(atom: Atom) -> str:
    if isinstance(atom, str):
        return atom
    inner = _form(atom.inner)
    open_ended = " " in inner and len(atom.inner.terms) + bool(atom.inner.const) > 1
    return f"({f'({inner})' if open_ended else inner} {atom.op} {atom.divisor})"
