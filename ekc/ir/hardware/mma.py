"""Products that a warp does together on tensor cores, as data: what each does, who holds what, and the PTX.

An instruction multiplies a tile of 16 rows by one of 8 columns and adds to the 16 x 8 sums that its warp
holds: every lane has four of them, and some 32-bit registers of elements of either factor. Elements stand in
registers as neighbours along the depth. With group = lane / 4 and place = lane % 4 (PTX ISA, "Matrix
fragments for mma.m16n8k16" and its neighbours; the maps of all four types are one, told in registers):

    sums       element e             row group + 8 * (e / 2), column 2 * place + e % 2
    factor a   register r, slot s    row group + 8 * (r % 2), depth each * (place + 4 * (r / 2)) + s
    factor b   register r, slot s    column group,            depth each * (place + 4 * r) + s
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.dtypes import BFLOAT16, FLOAT16, INT8, TF32, DType, convert_values, parse_dtype

MMA_ROWS, MMA_COLUMNS = 16, 8
LANE_GROUPS, LANES_PER_GROUP = 8, 4
"""How the lanes of a warp are numbered: group * 4 + place."""
SUMS_PER_LANE = 4
"""That each lane holds: two rows, eight apart, by two neighbouring columns."""
REGISTER_BYTES = 4
LDMATRIX_ROW_BYTES = 16
"""What one lane points at for `ldmatrix`: a row of a matrix of 8 rows."""


@dataclass(frozen=True)
class MmaInstruction:
    """One instruction: `c += a @ b` for a of 16 x depth, b of depth x 8 and c of 16 x 8."""

    name: str
    dtype: DType
    """Of both factors; the sums have its accumulator's."""
    depth: int
    ptx_types: str
    """Of d, a, b and c, in PTX."""

    @property
    def ptx(self) -> str:
        """Operands, %0 and on: the sums, a's registers, b's registers."""
        sums, a, b = SUMS_PER_LANE, self.a_registers, self.b_registers
        groups = [
            format_register_group(0, sums),
            format_register_group(sums, a),
            format_register_group(sums + a, b),
            format_register_group(0, sums),
        ]
        shape = self.name.removeprefix("mma.")
        return f"mma.sync.aligned.{shape}.row.col.{self.ptx_types} {', '.join(groups)};"

    @property
    def elements_per_register(self) -> int:
        """Elements in a register."""
        return REGISTER_BYTES // self.dtype.bytes

    @property
    def a_registers(self) -> int:
        """Of a lane, for its part of a."""
        return MMA_ROWS * self.depth // (LANE_GROUPS * LANES_PER_GROUP * self.elements_per_register)

    @property
    def b_registers(self) -> int:
        """Of a lane, for its part of b."""
        return MMA_COLUMNS * self.depth // (LANE_GROUPS * LANES_PER_GROUP * self.elements_per_register)

    def find_a_element(self, register: int, slot: int) -> tuple[int, int]:
        """(which half of the rows, depth beyond `each * place`) of an element of a; its row within the half
        is the lane's group."""
        return register % 2, self.elements_per_register * LANES_PER_GROUP * (register // 2) + slot

    def find_b_element(self, register: int, slot: int) -> int:
        """Depth beyond `each * place` of an element of b; its column is the lane's group."""
        return self.elements_per_register * LANES_PER_GROUP * register + slot

    def find_sum_element(self, element: int) -> tuple[int, int]:
        """(which half of the rows, which of two columns) of a sum; beyond them the lane's group and place."""
        return element // 2, element % 2

    def multiply(self, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
        """What it means: a [..., 16, depth] and b [..., depth, 8] as stored, c [..., 16, 8] as summed."""
        acc = parse_dtype(self.dtype.default_accumulator)
        left, right = (convert_values(x, self.dtype, acc) for x in (a, b))
        return np.asarray(c + np.matmul(left, right), acc.numpy_dtype)


MMA_INSTRUCTIONS = (
    MmaInstruction("mma.m16n8k16", FLOAT16, 16, "f32.f16.f16.f32"),
    MmaInstruction("mma.m16n8k16", BFLOAT16, 16, "f32.bf16.bf16.f32"),
    MmaInstruction("mma.m16n8k8", TF32, 8, "f32.tf32.tf32.f32"),
    MmaInstruction("mma.m16n8k32", INT8, 32, "s32.s8.s8.s32"),
)
"""The deepest of each type that all targets from sm_80 on have: fewest instructions for the work."""


def find_mma_instruction(dtype: DType) -> MmaInstruction | None:
    """The instruction for factors of a type, if there is one."""
    return next((p for p in MMA_INSTRUCTIONS if p.dtype is dtype), None)


@dataclass(frozen=True)
class LdmatrixInstruction:
    """`ldmatrix`: matrices of 8 rows of 16 bytes, each row pointed at by a lane, dealt out as `Product`
    wants them: register m is matrix m, whose rows lanes 8 m to 8 m + 7 point at."""

    matrix_count: int
    is_transposed: bool
    """Columns take the part of rows; of elements of 2 bytes alone."""

    @property
    def ptx(self) -> str:
        """Operands, %0 and on: the registers, the address of a row."""
        what = f"ldmatrix.sync.aligned.m8n8.x{self.matrix_count}{'.trans' * self.is_transposed}.shared.b16"
        return f"{what} {format_register_group(0, self.matrix_count)}, [%{self.matrix_count}];"


def format_register_group(first: int, count: int) -> str:
    """A group of registers in PTX: {%4, %5}."""
    return "{" + ", ".join(f"%{first + i}" for i in range(count)) + "}"
