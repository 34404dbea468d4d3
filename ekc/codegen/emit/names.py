"""C names, and C expressions of index arithmetic: offsets, guards, values, and indices of blocks and threads.

An index is written as int where an int holds it. C computes a sum term by term, so an int must hold each
partial sum too.

Shared memory of a kernel: tiles declared one by one, or cut from one dynamic allocation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ekc.codegen.emit.types import Arithmetic
from ekc.ir import expr as ex
from ekc.ir.affine import AffineForm, Atom, Extent, QuasiAffine, compute_atom_range
from ekc.ir.hardware.memory import CHUNK_BYTES
from ekc.ir.hardware.target import STATIC_SHARED_BYTES
from ekc.ir.lowering.buffers import BoundsGuard, Buffer, TensorAccess
from ekc.ir.lowering.fusion import find_fused_reads
from ekc.ir.lowering.memory_access import find_global_reads, to_affine_index
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.lowering.regions import Region
from ekc.ir.program import THREAD_LEVELS, Nest

_INT_MAX = 2**31 - 1


def overflows_int(form: AffineForm, extents: Mapping[str, Extent]) -> bool:
    """Whether an int cannot hold the form, a term of it or a partial sum."""
    return _is_outside_int(_compute_range(form, extents))


def has_wide_division(form: AffineForm, extents: Mapping[str, Extent]) -> bool:
    """Whether the dividend of a quotient or remainder in the form needs more than an int."""
    inside = [atom.inner for atom, _ in form.terms if isinstance(atom, QuasiAffine)]
    return any(overflows_int(x, extents) or has_wide_division(x, extents) for x in inside)


def _compute_range(form: AffineForm, extents: Mapping[str, Extent]) -> tuple[int, int]:
    """The least and the greatest of 0, the terms and the partial sums."""
    low = high = least = most = 0
    for atom, coefficient in form.terms:
        ends = [int(coefficient) * int(end) for end in compute_atom_range(atom, extents)]
        low, high = low + min(ends), high + max(ends)
        least, most = min(least, low, *ends), max(most, high, *ends)
    return min(least, low + int(form.const)), max(most, high + int(form.const))


def _is_outside_int(ends: tuple[int, int]) -> bool:
    return ends[0] < -_INT_MAX - 1 or ends[1] > _INT_MAX


_COORDINATES = frozenset(f"d{i}" for i in range(64))
"""Names of coordinates that no axis gives a name; an axis may have one of these names too."""
_SHORT_NAME = re.compile(r"[A-Z]|[a-z]\d*(_[a-z]\d*)*")
"""A letter, or small letters joined as in fused axes: no header defines a macro of this form."""


def to_c_name(name: str) -> str:
    """The name in C of a tensor, axis, buffer or loop: `i_0` for `i.0`, `ekc_bias_shared` for `bias.shared`.

    No header of CUDA or C defines a name that begins with `ekc_`, and neither does the generator. So the
    names of an operator's tensors and axes (BUFSIZ, M_PI) collide with nothing.
    """
    own, *parts = name.replace("+", "_").split(".")
    return "_".join([own if _SHORT_NAME.fullmatch(own) else f"ekc_{own}", *parts])


def _list_derived_names(own: str) -> tuple[str, ...]:
    """Names that a pipelined loop makes from a name: its counter, the fetched tile, and indices of copies."""
    return f"{own}_now", f"{own}_next", f"{own}_copy", f"{own}_slot", f"{own}_free"


@dataclass(frozen=True)
class CNames:
    """Unique C names within one kernel."""

    table: Mapping[str, str]
    extents: Mapping[str, Extent]
    """Values that each variable takes; an index that may leave int is written as long long."""
    zero: frozenset[str] = frozenset()
    """Variables whose value is 0 in this place; they are left out."""
    divides_wide: bool = False
    """Whether a dividend, as of a long joint loop, needs more than an int; divisions are then long long."""

    @classmethod
    def for_kernel(cls, kernel: LaunchTree) -> CNames:
        """The names of a kernel, by `to_c_name`; a name that is taken gets one more underscore."""
        table: dict[str, str] = {}
        taken = set(_COORDINATES)
        wanted = [*kernel.tensors, *(b.name for b in kernel.buffers), *(x.name for x in kernel.nest.loops)]
        wanted += kernel.nest.fused_reduction_extents
        for name in wanted:
            own = to_c_name(name)
            while taken & {own, *_list_derived_names(own)}:
                own += "_"
            taken |= {own, *_list_derived_names(own)}
            table[name] = own
        extents = kernel.nest.extents | kernel.nest.fused_reduction_extents
        return cls(table, extents, divides_wide=_needs_wide_division(kernel.nest, extents))

    def __getitem__(self, name: str) -> str:
        return self.table[name]

    def for_region(self, region: Region, preferred: list[str], zero: frozenset[str] = frozenset()) -> CNames:
        """The names inside a copy of a region, with the preferred names for its segment coordinates."""
        local: dict[str, str] = {}
        for i, name in enumerate(preferred):
            if name in local.values():
                while name in local.values() or name in self.table.values():
                    name += "_"
            local[f"#{i}"] = name
        extents = {f"#{i}": s.extent for i, s in enumerate(region.segments)}
        return replace(self, table={**self.table, **local}, extents={**self.extents, **extents}, zero=zero)

    def with_names(self, more: Mapping[str, str], extents: Mapping[str, Extent] | None = None) -> CNames:
        """The names, with names for more variables, and their extents where those matter for overflow."""
        return replace(self, table={**self.table, **more}, extents={**self.extents, **(extents or {})})

    def find_free_names(self, preferred: list[str]) -> list[str]:
        """The preferred names, with one more underscore where one is taken."""
        found: list[str] = []
        for name in preferred:
            while name in found or name in self.table.values():
                name += "_"
            found.append(name)
        return found

    def name_shared_coordinates(self, kernel: LaunchTree, region: Region) -> list[str]:
        """Names of the coordinates of a tile that a block copies: after the axis where one has it."""
        axis_of = {x.name: x.axis for x in kernel.nest.loops}
        taken = {
            *_COORDINATES,
            *(name for own in self.table.values() for name in (own, *_list_derived_names(own))),
        }
        names = []
        for i, s in enumerate(region.segments):
            axes = {axis_of.get(a, "") if isinstance(a, str) else "" for a, _ in s.terms}
            axis = axes.pop() if len(axes) == 1 else ""
            own = to_c_name(axis) if axis and (s.is_joint or "+" not in axis) else ""
            names.append(own if own and own not in taken else f"d{i}")
        return names

    def name_thread_coordinates(self, region: Region) -> list[str]:
        """Names of the coordinates of a tile of one thread: after the loop that uses the tile."""
        single = [s.terms[0][0] if len(s.terms) == 1 else None for s in region.segments]
        return [f"{self[a]}" if isinstance(a, str) else f"d{i}" for i, a in enumerate(single)]

    def format_atom(self, atom: Atom) -> str:
        """C text of a loop variable, a quotient or a remainder."""
        if isinstance(atom, str):
            return self[atom]
        inner, divisor = self.format_linear(atom.inner, self.divides_wide), int(atom.divisor)
        if not _can_be_negative(atom.inner):
            return f"({inner}) {'/' if atom.op == '//' else '%'} {divisor}"
        # C rounds a quotient towards 0, the IR downwards.
        rest = f"(({inner}) % {divisor} + {divisor}) % {divisor}"
        return rest if atom.op == "%" else f"({inner} - {rest}) / {divisor}"

    def format_linear(self, form: AffineForm, wide: bool = False) -> str:
        """C text of a sum of terms: `i_0 * 128 + d0`."""
        zero = self.zero
        parts = [self._format_term(a, int(c), wide) for a, c in form.terms if int(c) and a not in zero]
        if int(form.const) or not parts:
            parts.append(str(int(form.const)))
        return " + ".join(parts).replace("+ -", "- ")

    def _format_term(self, atom: Atom, coefficient: int, wide: bool) -> str:
        name = self.format_atom(atom)
        if wide:
            return f"{name} * {coefficient}LL"
        if not isinstance(atom, str):
            name = f"({name})"
        return name if coefficient == 1 else f"{name} * {coefficient}"

    def format_element(self, access: TensorAccess) -> str:
        """C text of an element: `A[(i_0 * 128 + d0) * 4096 + d1]` or `A_shared[d1][d0]`."""
        if access.buffer is not None:
            return self.format_cell(access.buffer, access.segment_coordinates)
        return f"{self[access.spec.name]}[{self.format_offset(access)}]"

    def format_cell(self, buffer: Buffer, cell: tuple[AffineForm, ...], copy: str = "") -> str:
        """C text of an element of a buffer; `copy` is the index of the copy of a pipelined buffer."""
        inside = "".join(f"[{self.format_linear(cell[i])}]" for i in buffer.segment_order)
        if not is_row_major(buffer):
            inside = f"[{self.format_stored_index(buffer, self.format_linear(buffer.compute_address(cell)))}]"
        which = f"[{copy}]" if copy else ""
        return f"{self[buffer.name]}{which}{inside}"

    def format_stored_index(self, buffer: Buffer, address: str) -> str:
        """C text of the stored index, `swizzle_index<8, 8>(panel_index<128, 64, 64>(d0 * 128 + d1))`."""
        if buffer.panel:
            pitch, rows = int(buffer.row_pitch), int(buffer.row_count)
            address = f"panel_index<{pitch}, {rows}, {buffer.panel}>({address})"
        if int(buffer.swizzle) > 1:
            chunk = CHUNK_BYTES // buffer.dtype.bytes
            address = f"swizzle_index<{int(buffer.swizzle)}, {chunk}>({address})"
        return address

    def format_offset(self, access: TensorAccess) -> str:
        """C text of the elements from the start of a tensor, `(i_0 * 128 + d0) * 4096 + d1`."""
        wide = self.offset_overflows(access)
        parts = []
        for form, stride in zip(access.index, access.spec.strides, strict=True):
            text = self.format_linear(form, self.form_overflows(form))
            if text == "0":
                continue
            if stride == 1 and not wide:
                parts.append(text)
            else:
                factor = f"{stride}LL" if wide else str(stride)
                parts.append(f"({text}) * {factor}" if " " in text else f"{text} * {factor}")
        return " + ".join(parts) or "0"

    def offset_overflows(self, access: TensorAccess) -> bool:
        """Whether an int cannot hold `(form) * stride + ...`: an index may be far outside a small tensor."""
        low = high = 0
        for form, stride in zip(access.index, access.spec.strides, strict=True):
            least, most = (end * stride for end in _compute_range(form, self.extents))
            low, high = low + least, high + most
        return _is_outside_int((low, high))

    def form_overflows(self, form: AffineForm) -> bool:
        """Whether an int cannot hold a form."""
        return overflows_int(form, self.extents)

    def format_condition(self, guards: tuple[BoundsGuard, ...]) -> str:
        """C text of guards, `row >= 0 && row < 4096`; "" where none is needed."""
        parts = []
        for g in guards:
            text = self.format_linear(g.form, self.form_overflows(g.form))
            if g.needs_lower_check:
                parts.append(f"{text} >= 0")
            if g.needs_upper_check:
                parts.append(f"{text} < {g.extent}")
        return " && ".join(parts)

    def format_value(
        self,
        e: ex.Expr,
        arithmetic: Arithmetic,
        axes: Mapping[str, AffineForm],
        load: Callable[[ex.Load], str],
    ) -> str:
        """C text of a value expression, in the type of the accumulator."""
        if isinstance(e, ex.Const):
            return arithmetic.format_literal(e.value)
        if isinstance(e, ex.Var):
            form = axes[e.name]
            index = self.format_linear(form, self.form_overflows(form))
            return f"static_cast<{arithmetic.dtype.cuda_name}>({index})"
        if isinstance(e, ex.Load):
            return load(e)
        if isinstance(e, ex.Call):
            return arithmetic.format_call(e.function, self.format_value(e.argument, arithmetic, axes, load))
        if isinstance(e, ex.Where):
            compared = arithmetic.choose_comparison(e)
            a, b = (self.format_value(part, compared, axes, load) for part in (e.a, e.b))
            arms = (e.then, e.otherwise)
            then, otherwise = (self.format_value(part, arithmetic, axes, load) for part in arms)
            return f"({a} {e.op} {b} ? {then} : {otherwise})"
        assert isinstance(e, ex.Binary)
        a, b = (self.format_value(part, arithmetic, axes, load) for part in (e.a, e.b))
        return arithmetic.format_binary(e, a, b)


def is_row_major(buffer: Buffer) -> bool:
    """Whether a buffer is a plain C array: neither swizzled nor in panels."""
    return int(buffer.swizzle) == 1 and not buffer.panel


def _needs_wide_division(nest: Nest, extents: Mapping[str, Extent]) -> bool:
    """Whether an axis or a read of the nest, fused computes included, divides more than an int holds."""
    reads = [to_affine_index(load, nest.index_forms) for load in ex.find_loads(nest.compute.body)]
    reads += [read for found in find_global_reads(nest).values() for read in found]
    reads += [read for s in nest.stagings for read in find_fused_reads(nest, s)]
    forms = (*nest.axis_forms.values(), *(form for read in reads for form in read))
    return any(has_wide_division(form, extents) for form in forms)


def _can_be_negative(form: AffineForm) -> bool:
    """Whether a form of loop variables can be below 0."""
    quotients = (a for a, c in form.terms if int(c) and not isinstance(a, str) and a.op == "//")
    return any(int(n) < 0 for n in (form.const, *(c for _, c in form.terms))) or any(
        _can_be_negative(atom.inner) for atom in quotients
    )


HARDWARE_INDICES = {"block": "blockIdx", "thread": "threadIdx"}
"""CUDA variable of each level that a loop can be bound to."""


def format_index_lines(kernel: LaunchTree, names: CNames) -> list[str]:
    """`const int i_0 = blockIdx.y;` for every bound loop, and the number of the thread in its block."""
    lines = []
    for level in ("block.z", "block.y", "block.x", *reversed(THREAD_LEVELS)):
        loops = kernel.find_bound_loops(level)
        where = f"{HARDWARE_INDICES[level[:-2]]}.{level[-1]}"
        for position, loop in enumerate(loops):
            below = math.prod(int(inner.extent) for inner in loops[position + 1 :])
            digit = format_digit(where, below, int(loop.extent), position == 0)
            lines.append(f"const int {names[loop.name]} = {digit};")
    x, y = int(kernel.compute_level_extent("thread.x")), int(kernel.compute_level_extent("thread.y"))
    terms = ["threadIdx.x"]
    if y > 1:
        terms.insert(0, f"threadIdx.y * {x}")
    if int(kernel.compute_level_extent("thread.z")) > 1:
        terms.insert(0, f"threadIdx.z * {x * y}")
    if any(b.scope == "shared" for b in kernel.buffers):
        lines.append(f"const int thread = {' + '.join(terms)};")
    return lines


def format_digit(index_text: str, stride: int, extent: int, is_slowest: bool) -> str:
    """C text of one digit of an index that loops share; `stride`: product of the faster extents."""
    text = index_text if stride == 1 else f"{index_text} / {stride}"
    return text if is_slowest else f"{text} % {extent}"


POOL_NAME = "shared_memory"
"""C name of dynamic shared memory; its alignment is appended, as one extern name has one alignment."""


def count_dynamic_shared_bytes(kernel: LaunchTree) -> int:
    """Dynamic shared memory of a launch in bytes; 0 where the tiles can be declared."""
    total = int(kernel.shared_bytes)
    return total if total > STATIC_SHARED_BYTES else 0


def format_shared_declarations(kernel: LaunchTree, names: CNames) -> list[str]:
    """Declarations of tiles: `__shared__ __align__(16) float A_shared[2][132];`, or references to a pool."""
    tiles = [b for b in kernel.buffers if b.scope == "shared"]
    if not count_dynamic_shared_bytes(kernel):
        return [
            f"__shared__ __align__({b.alignment_bytes}) {b.dtype.cuda_name} "
            f"{names[b.name]}{format_array_sizes(b)};"
            for b in tiles
        ]
    # The strictest alignment first: tile sizes are multiples of their alignments, so all tiles are aligned.
    tiles.sort(key=lambda b: -b.alignment_bytes)
    pool = f"{POOL_NAME}_{tiles[0].alignment_bytes}"
    lines, offset = [f"extern __shared__ __align__({tiles[0].alignment_bytes}) unsigned char {pool}[];"], 0
    for b in tiles:
        kind, sizes = b.dtype.cuda_name, format_array_sizes(b)
        place = f"*reinterpret_cast<{kind} (*){sizes}>({pool} + {offset})"
        lines.append(f"{kind} (&{names[b.name]}){sizes} = {place};")
        offset += int(b.aligned_bytes)
    return lines


def format_array_sizes(buffer: Buffer) -> str:
    """`[2][8][132]`: copies, then extents as stored; one extent for a tile that is swizzled or in panels."""
    extents = _list_extents(buffer)
    if int(buffer.copy_count) > 1:
        extents.insert(0, int(buffer.copy_count))
    return "".join(f"[{s}]" for s in extents)


def count_copy_elements(buffer: Buffer) -> int:
    """Elements of one copy of a tile."""
    return math.prod(_list_extents(buffer))


def _list_extents(buffer: Buffer) -> list[int]:
    """Extents of one copy of a tile, as declared."""
    extents = [int(s) for s in buffer.storage_extents] if is_row_major(buffer) else [int(buffer.elements)]
    if buffer.scope == "shared" and len(extents) == 1:
        # A single row: the next copy must be aligned for vectors, and the compiler reads 16 bytes of 12.
        extents[0] = int(buffer.bytes) // int(buffer.copy_count) // buffer.dtype.bytes
    return extents
