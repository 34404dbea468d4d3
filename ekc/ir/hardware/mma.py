"""Tensor-core products of a warp (mma and ldmatrix): semantics, register layout and PTX.

An instruction multiplies a tile of 16 rows by a tile of 8 columns and adds to 16 x 8 sums. Every lane has
four of the sums, and some 32-bit registers of each factor; a register has neighbours along the depth. In
registers the layout is the same for all four types. With group = lane / 4 and place = lane % 4 (PTX ISA,
"Matrix fragments for mma.m16n8k16" and the sections beside it):

    sums       element e             row group + 8 * (e / 2), column 2 * place + e % 2
    factor a   register r, slot s    row group + 8 * (r % 2), depth each * (place + 4 * (r / 2)) + s
    factor b   register r, slot s    column group,            depth each * (place + 4 * r) + s

where each is `elements_per_register`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ekc.ir.dtypes import BFLOAT16, FLOAT16, INT8, TF32, DType

MMA_ROWS, MMA_COLUMNS = 16, 8
LANE_GROUPS, LANES_PER_GROUP = 8, 4
"""Groups of lanes in a warp, and lanes of a group: lane = group * 4 + place."""
SUMS_PER_LANE = 4
"""Sums of each lane: two rows, at a distance of eight, by two neighbouring columns."""
REGISTER_BYTES = 4
LDMATRIX_ROW_BYTES = 16
"""Bytes of a matrix row of `ldmatrix`; one lane gives its address."""


@dataclass(frozen=True)
class MmaInstruction:
    """One instruction: `c += a @ b` for a of 16 x depth, b of depth x 8 and c of 16 x 8."""

    name: str
    dtype: DType
    """Type of both factors; the sums have its default accumulator type."""
    depth: int
    ptx_types: str
    """PTX types of d, a, b and c."""

    @property
    def ptx(self) -> str:
        """PTX text; operands from %0 on: the sums, the registers of a, the registers of b."""
        sums, a, b = SUMS_PER_LANE, self.a_registers, self.b_registers
        places = ((0, sums), (sums, a), (sums + a, b), (0, sums))
        groups = ", ".join(format_register_group(first, count) for first, count in places)
        shape = self.name.removeprefix("mma.")
        return f"mma.sync.aligned.{shape}.row.col.{self.ptx_types} {groups};"

    @property
    def elements_per_register(self) -> int:
        """Elements in a 32-bit register."""
        return REGISTER_BYTES // self.dtype.bytes

    @property
    def a_registers(self) -> int:
        """Registers of a lane for its part of a."""
        return MMA_ROWS * self.depth // (LANE_GROUPS * LANES_PER_GROUP * self.elements_per_register)

    @property
    def b_registers(self) -> int:
        """Registers of a lane for its part of b."""
        return MMA_COLUMNS * self.depth // (LANE_GROUPS * LANES_PER_GROUP * self.elements_per_register)

    def find_a_element(self, register: Any, slot: Any) -> tuple[Any, Any]:
        """(half of the rows, depth offset from `elements_per_register * place`); the group has its row."""
        return register % 2, self.elements_per_register * LANES_PER_GROUP * (register // 2) + slot

    def find_b_element(self, register: Any, slot: Any) -> Any:
        """Depth offset of an element of b from `elements_per_register * place`; the group has its column."""
        return self.elements_per_register * LANES_PER_GROUP * register + slot

    def find_sum_element(self, element: Any) -> tuple[Any, Any]:
        """(half of the rows, column of two) of a sum; the lane's group and place give the rest."""
        return element // 2, element % 2


MMA_INSTRUCTIONS = (
    MmaInstruction("mma.m16n8k16", FLOAT16, 16, "f32.f16.f16.f32"),
    MmaInstruction("mma.m16n8k16", BFLOAT16, 16, "f32.bf16.bf16.f32"),
    MmaInstruction("mma.m16n8k8", TF32, 8, "f32.tf32.tf32.f32"),
    MmaInstruction("mma.m16n8k32", INT8, 32, "s32.s8.s8.s32"),
)
"""The deepest instruction of each type that all targets from sm_80 on have: fewest for the work."""


def find_mma_instruction(dtype: DType) -> MmaInstruction | None:
    """The instruction for factors of a type, if there is one."""
    return next((p for p in MMA_INSTRUCTIONS if p.dtype is dtype), None)


@dataclass(frozen=True)
class LdmatrixInstruction:
    """`ldmatrix`: loads matrices of 8 rows of 16 bytes into registers as `MmaInstruction` needs them.

    Register m gets matrix m; lanes 8 m to 8 m + 7 give the addresses of its rows.
    """

    matrix_count: int
    is_transposed: bool
    """Whether rows and columns are exchanged; for elements of 2 bytes only."""

    @property
    def ptx(self) -> str:
        """PTX text; operands from %0 on: the registers, the address of a row."""
        name = f"ldmatrix.sync.aligned.m8n8.x{self.matrix_count}{'.trans' * self.is_transposed}.shared.b16"
        return f"{name} {format_register_group(0, self.matrix_count)}, [%{self.matrix_count}];"


def format_register_group(first: int, count: int) -> str:
    """A group of registers in PTX: {%4, %5}."""
    return "{" + ", ".join(f"%{first + i}" for i in range(count)) + "}"
