"""A Program as text that a student can read: one line a node, remarks in a column on the right.

Blocks and threads are printed once, above the body that every thread runs. All threads of a block share the
copies into shared memory. Indices of a buffer count from the start of its tile,
indices of a tensor in global memory from the start of the tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ekc.ir import expr as ex
from ekc.ir.affine import AffineForm, Atom, Extent
from ekc.ir.compute import Compute
from ekc.ir.dtypes import DType, find_reduction_identity
from ekc.ir.hardware.cp_async import count_pending_groups, count_tiles_ahead
from ekc.ir.hardware.wgmma import WgmmaFamily
from ekc.ir.lowering import nodes as tree
from ekc.ir.lowering.buffers import BoundsGuard, Buffer, TensorAccess, substitute_access
from ekc.ir.lowering.fragments import count_fragments_per_load, derive_ldmatrix_fit
from ekc.ir.lowering.implicit_gemm import ImplicitGemmView
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.lowering.regions import Region, Segment
from ekc.ir.program import Loop, Program
from ekc.tables import count_nouns

_MAX_ALIGNED_WIDTH = 68
"""Columns of text; a longer line has its remark right behind it and does not move the column of remarks."""


@dataclass(frozen=True)
class TextLine:
    """A line of the text, with the remark in the column on its right."""

    text: str
    remark: str = ""

    def indent(self) -> TextLine:
        """The line one level deeper."""
        return TextLine(f"  {self.text}", self.remark)


def format_program(program: Program) -> str:
    """The tree of a single Program, as text; the same Program always gives the same text.

    >>> print(format_program(ekc.Schedule(ekc.matmul(64, 64, 64)).program))
    """
    launches = derive_launches(program)
    lines: list[TextLine] = []
    for number, kernel in enumerate(launches, 1):
        lines += [TextLine("")] if lines else []
        label = f"launch {number} of {len(launches)}: " if len(launches) > 1 else ""
        lines += [TextLine(f"{label}{kernel.nest.compute}")]
        lines += [TextLine(f"{kernel.nest.epilogue}")] if kernel.nest.epilogue else []
        lines += _format_launch(kernel)
    return "\n".join(_align_remarks(lines))


def _align_remarks(lines: Sequence[TextLine]) -> Iterator[str]:
    column = max((len(x.text) for x in lines if x.remark and len(x.text) <= _MAX_ALIGNED_WIDTH), default=0)
    for line in lines:
        yield f"{line.text:{column}}   {line.remark}" if line.remark else line.text


def _format_launch(kernel: LaunchTree) -> Iterator[TextLine]:
    blocks = [x for x in kernel.nest.loops if x.is_block]
    threads = [x for x in kernel.nest.loops if x.is_thread]
    remark = count_nouns(kernel.block_count, "block") if blocks else ""
    yield TextLine(_format_loops(blocks) or "one block", remark)
    remark = count_nouns(kernel.thread_count, "thread") if threads else ""
    yield TextLine(f"  {_format_loops(threads) or 'one thread'}", remark)
    for line in _format_body(kernel, kernel.body):
        yield line.indent().indent()


def _format_loops(loops: Iterable[Loop]) -> str:
    return ", ".join(f"{x.level} {x.name} in {x.extent}" for x in loops)


def _format_body(kernel: LaunchTree, nodes: Sequence[tree.Node]) -> Iterator[TextLine]:
    for node in nodes:
        yield from format_node(kernel, node)


def format_node(kernel: LaunchTree, node: tree.Node) -> Iterator[TextLine]:
    """The lines of a node; those of its body are indented."""
    match node:
        case tree.LoopNode():
            remark = join_remarks(list_loop_remarks(node))
            yield TextLine(f"for {node.loop.name} in {node.loop.extent}", remark)
            for line in _format_body(kernel, node.body):
                yield line.indent()
        case tree.StageNode():
            yield _format_stage(kernel, node)
        case tree.FragmentNode():
            yield _format_fragment(kernel, node)
        case tree.MmaNode():
            yield _format_mma(node)
        case tree.WgmmaGroupNode():
            yield from _format_body(kernel, node.body)
            yield TextLine("wait for products")
        case tree.ReduceNode():
            yield _format_reduce(node)
        case tree.InitNode():
            yield _format_init(kernel.nest.compute, node)
        case tree.ComputeNode():
            yield from _format_compute(node)
        case tree.LaneCombineNode():
            combine, lanes = kernel.nest.compute.combine, _join_names(node.reduction_lanes)
            yield TextLine(f"{combine} {node.buffer.name} across lanes {lanes}", "shuffle")
        case tree.WriteNode():
            yield _format_write(kernel, node)
        case tree.BarrierNode():
            yield TextLine("barrier")
        case tree.CopyWaitNode():
            left = count_nouns(count_pending_groups(node.loop.stages), "tile")
            yield TextLine(f"wait for tile {node.loop.name}, barrier", f"{left} in flight")


def join_remarks(parts: Iterable[str]) -> str:
    """Remarks in one line, separated by commas; empty ones are left out."""
    return ", ".join(p for p in parts if p)


def _join_names(loops: Iterable[Loop]) -> str:
    return ", ".join(x.name for x in loops)


def list_loop_remarks(node: tree.LoopNode) -> Iterator[str]:
    """Remarks on a serial loop: its level, its pipeline, how far it is unrolled."""
    loop = node.loop
    if loop.level != "serial":
        yield loop.level
    if loop.stages > 1:
        yield f"pipeline {loop.stages}{', async' if node.is_async else ''}"
    if node.must_unroll:
        yield "written out"
    elif loop.unroll == 0:
        yield "unrolled by the compiler"
    elif loop.unroll > 1:
        yield "unroll" if loop.unroll >= loop.extent else f"unroll {loop.unroll}"


def _format_stage(kernel: LaunchTree, node: tree.StageNode) -> TextLine:
    buffer, staging = node.buffer, node.staging
    if node.source.buffer is None:
        place = _format_box(node.source.spec.name, buffer.region)
    else:
        place = _format_tile_box(node.source.buffer, buffer.region)
    body = f" = {staging.producer.body}" if staging.producer else ""
    verb = "compute" if staging.producer else "stage"
    text = f"{verb} {place}{body} -> {buffer.scope}{format_shape(buffer, staging.pad)}"
    return TextLine(text, join_remarks(_list_stage_remarks(kernel, node)))


def _format_fragment(kernel: LaunchTree, node: tree.FragmentNode) -> TextLine:
    fits, pair = derive_ldmatrix_fit(node), int(count_fragments_per_load(node))
    if not fits.is_possible:
        count = node.registers_per_lane * node.fragment_count
        how = f"{count} x {node.instruction.elements_per_register} {node.source.dtype}"
    else:
        trans = "" if fits.direct else ".trans"
        how = f"{node.fragment_count // pair} x ldmatrix.x{node.registers_per_lane * pair}{trans}"
    return TextLine(_format_stage(kernel, node.stage).text, how)


def _format_mma(node: tree.MmaNode) -> TextLine:
    """A tensor-core product, printed by the first element of its sums and factors."""
    tile = node.tile
    start = {x.name: AffineForm() for x in (*tile.inner_loops, *tile.spread_loops)}
    reads = node.compute.reads
    accesses = (reads[tile.a_load], reads[tile.b_load], node.compute.target)
    a, b, sums = (_format_access(substitute_access(x, start)) for x in accesses)
    name = tile.instruction.name
    if isinstance(tile.instruction, WgmmaFamily) and tile.strip_loop is not None:
        name = tile.instruction.format_name(tile.strip_loop.extent)
    return TextLine(f"multiply {sums} += {a} * {b}", f"{name} {tile.instruction.dtype}")


def _format_reduce(node: tree.ReduceNode) -> TextLine:
    region, compute = node.buffer.region, node.compute
    over = ", ".join(f"{a.name} < {a.extent}" for a in compute.reduction_axes)
    value = f"{compute.combine}[{over}] {_name_read_sources(compute.body, node)}"
    place = _format_box(node.source.spec.name, region)
    text = f"reduce {place} = {value} -> shared{format_shape(node.buffer, 0)}"
    return TextLine(text, f"{count_nouns(node.staging.warps, 'warp')} an element")


def _name_read_sources(e: ex.Expr, node: tree.ReduceNode) -> ex.Expr:
    """A body in its own axes, with the buffer that each read comes from."""

    def name_source(load: ex.Load) -> ex.Load:
        buffer = node.reads[load].buffer
        return load if buffer is None else ex.Load(buffer.name, load.index)

    return ex.replace_loads(e, name_source)


def _list_stage_remarks(kernel: LaunchTree, node: tree.StageNode) -> Iterator[str]:
    buffer, width = node.buffer, node.staging.vector
    if buffer.scope == "fragment":
        yield "by the lanes of a warp together"
    elif buffer.scope == "shared":
        threads = count_nouns(kernel.thread_count, "thread")
        yield f"{threads} x {_format_vector_type(node.source.dtype, width)}"
    else:
        yield f"{-(-buffer.region.size // width)} x {_format_vector_type(node.source.dtype, width)}"
    before = node.source.buffer.order if node.source.buffer else tuple(range(len(buffer.order)))
    if buffer.order != before:
        yield "transposed"
    if buffer.panel:
        yield f"panels of {buffer.panel}"
    if buffer.swizzle > 1:
        yield f"swizzle {buffer.swizzle}"
    if node.staging.unroll > 0:
        yield f"unroll {node.staging.unroll}"
    if node.is_async:
        yield f"{count_tiles_ahead(buffer.copy_count)} ahead"
    if node.source.guards:
        yield f"zero beyond {node.source.spec.name}"


def _format_vector_type(dtype: DType, width: Extent) -> str:
    name = dtype.cuda_name.removeprefix("signed ").removesuffix("_t")
    return name if width == 1 else f"{name}{width}"


def format_shape(buffer: Buffer, pad: Extent) -> str:
    """Extents along each stored dimension of the tensor; dimensions of one element are left out."""
    extents = {dim: 1 for dim in buffer.order if buffer.find_segment(dim) is not None}
    for s in buffer.region.segments:
        extents[s.dim] *= s.extent
    return f"[{', '.join(map(str, extents.values()))}{f'+{pad}' if pad else ''}]"


def _format_box(name: str, region: Region) -> str:
    starts = enumerate(region.find_printed_start())
    spans = [_format_span(form, _find_segments_along(region, dim)) for dim, form in starts]
    return f"{name}[{', '.join(spans)}]{''.join(_format_joint_ranges(region))}"


def _find_segments_along(region: Region, dim: int) -> list[Segment]:
    return [s for s in region.segments if s.dim == dim and not s.is_joint]


def _format_joint_ranges(region: Region, within: ImplicitGemmView | None = None) -> Iterator[str]:
    """The iterations of joint loops that a tile, and no larger one, cuts: `, n_p_q = n_p_q.0*64 : 64`."""
    cut_runs = {run.pieces for run in within.joint_ranges} if within else set()
    for run in region.view.joint_ranges if region.view else ():
        if run.pieces not in cut_runs:
            yield f", {run.name} = {_format_span(run.start, region.find_joint_segments(run.pieces))}"


def _format_tile_box(tile: Buffer, region: Region) -> str:
    """The part of a tile that a region copies, counted from the tile's first element."""
    spans, view = [], tile.region.view
    printed = {a for form in view.printed_forms for a, _ in form.terms} if view else set()
    for dim in tile.order:
        for s in tile.region.segments:
            if s.dim == dim and s.is_joint:
                joint = region.find_joint_segments({a for a, _ in s.terms})
                spans.append(_format_span(region.find_outer_coordinate(s), joint))
        along = _find_segments_along(tile.region, dim)
        if along:
            start = tile.region.compute_offset(region.find_printed_start(), dim)
            unit = along[-1].stride
            terms = tuple((a, c // unit) for a, c in start.terms if a not in printed)
            start = AffineForm(terms, start.const // unit)
            spans.append(_format_span(start, _find_segments_along(region, dim), unit))
    return f"{tile.name}[{', '.join(spans)}]{''.join(_format_joint_ranges(region, view))}"


def _format_span(base: AffineForm, segments: Sequence[Segment], unit: Extent = 1) -> str:
    """`i.0*128 : 4 x2 every 64`: 4 elements from there, and again 4 that start 64 later."""
    if all(s.extent == 1 for s in segments):
        return format_form(base)
    finest = segments[-1]
    text = f"{format_form(base)} : {finest.extent}"
    if finest.stride != unit:
        text += f" every {finest.stride // unit}"
    for s in reversed(segments[:-1]):
        text += f" x{s.extent} every {s.stride // unit}"
    return text


def _format_init(compute: Compute, node: tree.InitNode) -> TextLine:
    value = find_reduction_identity(compute.combine, compute.acc_dtype)
    start = f"{value:g}" if isinstance(value, float) else str(value)
    if node.buffer is not None:
        return TextLine(f"register {node.buffer.name}{format_shape(node.buffer, 0)} = {start}")
    name = compute.output.name
    remark = _format_bounds_remark(name, node.target.guards)
    return TextLine(f"{_format_box(name, node.region)} = {start}", remark)


def _format_bounds_remark(name: str, guards: Sequence[BoundsGuard]) -> str:
    return f"only inside {name}" if guards else ""


def _format_compute(node: tree.ComputeNode) -> Iterator[TextLine]:
    compute = node.nest.compute
    body = _substitute_places(compute.body, node)
    target = _format_access(node.target)
    symbol = {"sum": "+=", "prod": "*="}.get(compute.combine, f"{compute.combine}=")
    beyond = dict.fromkeys(f"zero beyond {a.spec.name}" for a in node.reads.values() if a.guards)
    line = TextLine(f"{target} {symbol if compute.reduction_axes else '='} {body}", join_remarks(beyond))
    if not node.guards:
        yield line
        return
    yield TextLine(f"if {' and '.join(map(_format_guard, node.guards))}")
    yield line.indent()


def _format_guard(guard: BoundsGuard) -> str:
    low = "0 <= " if guard.needs_lower_check else ""
    high = f" < {guard.extent}" if guard.needs_upper_check else ""
    return f"{low}{format_form(guard.form)}{high}"


def _substitute_places(e: ex.Expr, node: tree.ComputeNode) -> ex.Expr:
    """The body with each read and axis replaced by the text of its place."""
    forms = {name: format_form(node.nest.axis_forms[name]) for name in ex.find_variables(e)}
    places = {name: ex.Var(f"({text})" if " " in text else text) for name, text in forms.items()}
    return ex.substitute(ex.replace_loads(e, lambda load: ex.Var(_format_access(node.reads[load]))), places)


def _format_access(access: TensorAccess) -> str:
    if access.buffer is None:
        return f"{access.spec.name}[{', '.join(map(format_form, access.index))}]"
    places: dict[int, AffineForm] = {}
    for s, form in zip(access.buffer.region.segments, access.segment_coordinates, strict=True):
        places[s.dim] = places.get(s.dim, AffineForm()).scale(s.extent) + form
    stored = [format_form(places[dim]) for dim in access.buffer.order if dim in places]
    return f"{access.buffer.name}[{', '.join(stored)}]"


def _format_write(kernel: LaunchTree, node: tree.WriteNode) -> TextLine:
    name, output = node.target.spec.name, kernel.nest.compute.output.name
    value = ex.replace_loads(node.value, lambda x: ex.Var(node.buffer.name) if x.tensor == output else x)
    width = _format_vector_type(node.target.spec.dtype, node.vector) if node.vector > 1 else ""
    lanes = f"lane 0 of {_join_names(node.reduction_lanes)}" if node.reduction_lanes else ""
    verb, how = ("add", "atomic") if node.is_atomic else ("write", width)
    remarks = join_remarks((how, lanes, _format_bounds_remark(name, node.target.guards)))
    return TextLine(f"{verb} {value} -> {name}", remarks)


def format_form(form: AffineForm) -> str:
    """A form as text: `i.0*128 + i.2*4 - 1`."""
    parts = [(c, _format_atom(a)) for a, c in form.terms if c != 0]
    text = "".join(f" {'-' if c < 0 else '+'} {_format_term(name, abs(c))}" for c, name in parts)
    if form.const or not parts:
        text += f" {'-' if form.const < 0 else '+'} {abs(form.const)}"
    return text[3:] if text.startswith(" + ") else f"-{text[3:]}"


def _format_term(name: str, coefficient: Extent) -> str:
    return name if coefficient == 1 else f"{name}*{coefficient}"


def _format_atom(atom: Atom) -> str:
    if isinstance(atom, str):
        return atom
    inner = format_form(atom.inner)
    open_ended = " " in inner and len(atom.inner.terms) + bool(atom.inner.const) > 1
    return f"({f'({inner})' if open_ended else inner} {atom.op} {atom.divisor})"
