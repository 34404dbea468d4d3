"""C names and C expressions for loops, tensors and index arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product

from ekc.codegen.reach import divides_far, leaves_int, offset_leaves_int
from ekc.codegen.types import Arithmetic
from ekc.ir import expr as ex
from ekc.ir.access import Access, Buffer, Guard
from ekc.ir.footprint import global_reads, index_of
from ekc.ir.linear import Atom, Extent, Linear
from ekc.ir.nodes import Kernel
from ekc.ir.on_the_spot import reads_on_the_spot
from ekc.ir.program import Nest
from ekc.ir.region import Region
from ekc.ir.swizzle import CHUNK_BYTES
from ekc.ir.warpgroup import MOST_STRIPS, PRODUCTS, GroupInstruction

_LOCALS = frozenset(
    ("element", "round", "thread", "moved", "lane", "step", "reduced", "part", *(f"d{i}" for i in range(64)))
)
"""Names that the templates use for their own."""
_WORDS = """
alignof and_eq asm bitand bitor char16_t char32_t char8_t co_await co_return co_yield compl concept
const_cast consteval constexpr constinit decltype dynamic_cast explicit friend mutable noexcept not_eq
nullptr or_eq reinterpret_cast requires static_assert static_cast thread_local typeid typename wchar_t
xor xor_eq NULL NAN INFINITY EOF linux unix dim3 float2 float4 uint2 uint4 to_float to_half expf sqrtf
rsqrtf tanhf erff fabsf fmaxf fminf floorf bf16_t atomicAdd to_bf16 to_tf32 to_int8 abs
maximum minimum add subtract multiply absolute
copy_async_4 copy_async_8 copy_async_16 commit_copies wait_copies swizzled paneled shared_memory
kept shared_place shared_at turns_outside
matrix_row matrix_low matrix_high load_matrices_2 load_matrices_4 load_matrices_2_transposed
described show_to_products begin_products commit_products wait_for_products
load_matrices_4_transposed mma_m16n8k16_float16 mma_m16n8k16_bfloat16 mma_m16n8k8_tf32 mma_m16n8k32_int8
"""
_GROUP_PRODUCTS = (
    GroupInstruction(p, strips, *ways).function
    for p in PRODUCTS
    for strips in range(1, MOST_STRIPS + 1)
    for ways in product((False, True), repeat=2)
)
RESERVED = frozenset((*_WORDS.split(), *_GROUP_PRODUCTS))
"""Words that operators may use but C++, CUDA or the generated code has taken."""


def _derived(c_name: str) -> tuple[str, ...]:
    """Names that a pipeline makes: of the loop counter, of the fetched tile, and of copies of a tile."""
    return f"{c_name}_now", f"{c_name}_next", f"{c_name}_copy", f"{c_name}_slot", f"{c_name}_spent"


@dataclass(frozen=True)
class Names:
    """Unique C names within one kernel."""

    table: Mapping[str, str]
    extents: Mapping[str, Extent]
    """How many values each variable takes: what leaves int is written wider."""
    zero: frozenset[str] = frozenset()
    """Variables that are 0 here and need not be written."""
    far: bool = False
    """Whether quotients and remainders are taken of more than an int counts: of a long joint loop."""

    @classmethod
    def of(cls, kernel: Kernel) -> Names:
        """Tensors keep their names; `i.0` becomes `i_0`; a name that is taken gets an underscore more."""
        table: dict[str, str] = {}
        taken = set(_LOCALS | RESERVED)
        wanted = [*kernel.tensors, *(b.name for b in kernel.buffers), *(x.name for x in kernel.nest.loops)]
        wanted += kernel.nest.reduced_inside
        for name in wanted:
            c_name = name.replace(".", "_")
            while taken & {c_name, *_derived(c_name)}:
                c_name += "_"
            taken |= {c_name, *_derived(c_name)}
            table[name] = c_name
        extents = kernel.nest.extents | kernel.nest.reduced_inside
        return cls(table, extents, far=_goes_far(kernel.nest, extents))

    def __getitem__(self, name: str) -> str:
        return self.table[name]

    def within(self, region: Region, wanted: list[str], zero: frozenset[str] = frozenset()) -> Names:
        """The names inside a copy of a region, its segment coordinates called as wanted."""
        local: dict[str, str] = {}
        for i, name in enumerate(wanted):
            if name in local.values():
                while name in local.values() or name in self.table.values():
                    name += "_"
            local[f"#{i}"] = name
        extents = {f"#{i}": s.extent for i, s in enumerate(region.segments)}
        return replace(self, table={**self.table, **local}, extents={**self.extents, **extents}, zero=zero)

    def also(self, more: Mapping[str, str], extents: Mapping[str, Extent] | None = None) -> Names:
        """With names for more variables, and their extents where an index outside a tile has them."""
        return replace(self, table={**self.table, **more}, extents={**self.extents, **(extents or {})})

    def free(self, wanted: list[str]) -> list[str]:
        """The names as wanted, an underscore more wherever one is taken."""
        found: list[str] = []
        for name in wanted:
            while name in found or name in self.table.values() or name in _LOCALS | RESERVED:
                name += "_"
            found.append(name)
        return found

    def shared_coordinates(self, kernel: Kernel, region: Region) -> list[str]:
        """Coordinates of a tile that a block copies: named after the axis where there is one."""
        axis_of = {x.name: x.axis for x in kernel.nest.loops}
        names = []
        for i, s in enumerate(region.segments):
            axes = {axis_of.get(a, "") if isinstance(a, str) else "" for a, _ in s.terms}
            axis = axes.pop() if len(axes) == 1 else ""
            axis = axis.replace("+", "_") if s.joint else axis
            free = axis.isidentifier() and axis not in _LOCALS | RESERVED and not self._takes(axis)
            names.append(axis if free else f"d{i}")
        return names

    def _takes(self, name: str) -> bool:
        return any(name in (c_name, *_derived(c_name)) for c_name in self.table.values())

    def own_coordinates(self, region: Region) -> list[str]:
        """Coordinates of a tile of one thread: named after the loop that will use it."""
        single = [s.terms[0][0] if len(s.terms) == 1 else None for s in region.segments]
        return [f"{self[a]}" if isinstance(a, str) else f"d{i}" for i, a in enumerate(single)]

    def atom(self, atom: Atom) -> str:
        """A loop variable, or a quotient or remainder."""
        if isinstance(atom, str):
            return self[atom]
        inner, divisor = self.linear(atom.inner, self.far), int(atom.divisor)
        if not _negative(atom.inner):
            return f"({inner}) {'/' if atom.op == '//' else '%'} {divisor}"
        # C rounds a quotient towards 0, the IR downwards.
        rest = f"(({inner}) % {divisor} + {divisor}) % {divisor}"
        return rest if atom.op == "%" else f"({inner} - {rest}) / {divisor}"

    def linear(self, form: Linear, wide: bool = False) -> str:
        """A sum of terms: `i_0 * 128 + d0`."""
        parts = [self._term(a, int(c), wide) for a, c in form.terms if int(c) != 0 and a not in self.zero]
        if int(form.const) or not parts:
            parts.append(str(int(form.const)))
        return " + ".join(parts).replace("+ -", "- ")

    def _term(self, atom: Atom, coefficient: int, wide: bool) -> str:
        name = self.atom(atom)
        if wide:
            return f"{name} * {coefficient}LL"
        if not isinstance(atom, str):
            name = f"({name})"
        return name if coefficient == 1 else f"{name} * {coefficient}"

    def element(self, access: Access) -> str:
        """`A[(i_0 * 128 + d0) * 4096 + d1]` or `A_shared[d1][d0]`."""
        if access.buffer is not None:
            return self.cell(access.buffer, access.cell)
        return f"{self[access.spec.name]}[{self.offset(access)}]"

    def cell(self, buffer: Buffer, cell: tuple[Linear, ...], copy: str = "") -> str:
        """An element of a buffer; `copy` picks the copy of a pipelined one."""
        inside = "".join(f"[{self.linear(cell[i])}]" for i in buffer.stored)
        if not laid_out_plainly(buffer):
            inside = f"[{self.placed(buffer, self.linear(buffer.address(cell)))}]"
        which = f"[{copy}]" if copy else ""
        return f"{self[buffer.name]}{which}{inside}"

    def placed(self, buffer: Buffer, address: str) -> str:
        """Where the element at an address lies: `swizzled<8, 8>(paneled<128, 64, 64>(d0 * 128 + d1))`."""
        if buffer.panel:
            address = f"paneled<{int(buffer.width)}, {int(buffer.rows)}, {buffer.panel}>({address})"
        if int(buffer.swizzle) > 1:
            each = CHUNK_BYTES // buffer.dtype.bytes
            address = f"swizzled<{int(buffer.swizzle)}, {each}>({address})"
        return address

    def offset(self, access: Access) -> str:
        """Elements from the start of a tensor, `(i_0 * 128 + d0) * 4096 + d1`."""
        wide = self.far_offset(access)
        parts = []
        for form, stride in zip(access.index, access.spec.strides, strict=True):
            text = self.linear(form, self.leaves_int(form))
            if text == "0":
                continue
            if stride == 1 and not wide:
                parts.append(text)
            else:
                factor = f"{stride}LL" if wide else str(stride)
                parts.append(f"({text}) * {factor}" if " " in text else f"{text} * {factor}")
        return " + ".join(parts) or "0"

    def far_offset(self, access: Access) -> bool:
        """Whether `offset` is one that an int does not hold."""
        return offset_leaves_int(access.index, access.spec.strides, self.extents)

    def leaves_int(self, form: Linear) -> bool:
        """Whether an int does not hold a form."""
        return leaves_int(form, self.extents)

    def condition(self, guards: tuple[Guard, ...]) -> str:
        """`row >= 0 && row < 4096`, empty where nothing needs checking."""
        parts = []
        for g in guards:
            text = self.linear(g.form, self.leaves_int(g.form))
            if g.below:
                parts.append(f"{text} >= 0")
            if g.above:
                parts.append(f"{text} < {g.extent}")
        return " && ".join(parts)

    def value(
        self,
        e: ex.Expr,
        arithmetic: Arithmetic,
        axes: Mapping[str, Linear],
        load: Callable[[ex.Load], str],
    ) -> str:
        """A value expression in the accumulator's type."""
        if isinstance(e, ex.Const):
            return arithmetic.literal(e.value)
        if isinstance(e, ex.Var):
            form = axes[e.name]
            return arithmetic.cast(self.linear(form, self.leaves_int(form)))
        if isinstance(e, ex.Load):
            return load(e)
        if isinstance(e, ex.Call):
            return arithmetic.call(e.function, self.value(e.argument, arithmetic, axes, load))
        if isinstance(e, ex.Where):
            compared = arithmetic.choose_comparison(e)
            a, b = (self.value(part, compared, axes, load) for part in (e.a, e.b))
            then, otherwise = (self.value(part, arithmetic, axes, load) for part in (e.then, e.otherwise))
            return f"({a} {e.op} {b} ? {then} : {otherwise})"
        assert isinstance(e, ex.Binary)
        a, b = (self.value(part, arithmetic, axes, load) for part in (e.a, e.b))
        return arithmetic.binary(e, a, b)


def laid_out_plainly(buffer: Buffer) -> bool:
    """Whether elements lie where their coordinates say, as in a C array."""
    return int(buffer.swizzle) == 1 and not buffer.panel


def _goes_far(nest: Nest, extents: Mapping[str, Extent]) -> bool:
    """Whether an axis or a read, of the body or of what is computed on the spot or behind it, divides more
    than an int counts."""
    reads = [index_of(load, nest.forms) for load in ex.loads(nest.compute.body)]
    reads += [read for found in global_reads(nest).values() for read in found]
    reads += [read for s in nest.stagings for read in reads_on_the_spot(nest, s)]
    forms = (*nest.index.values(), *(form for read in reads for form in read))
    return any(divides_far(form, extents) for form in forms)


def _negative(form: Linear) -> bool:
    """Whether a form of loop variables could be below 0."""
    return int(form.const) < 0 or any(int(c) < 0 or (int(c) and _negative_atom(a)) for a, c in form.terms)


def _negative_atom(atom: Atom) -> bool:
    return not isinstance(atom, str) and atom.op == "//" and _negative(atom.inner)
