"""CLBlast's Xgemm, one recorded configuration as a schedule of ekc.

CLBlast computes a column-major C[m, n] from A stored [k][m] and B stored [k][n]; row by row that is ekc's
matmul with m and n exchanged and the first operand transposed. A work-group of MDIMC x NDIMC threads computes
MWG x NWG of C with KWG of K at a time; a thread owns MWG/MDIMC x NWG/NDIMC elements, side by side (STRM, STRN
= 0) or in vectors at the distance of a work-group (1). SA, SB: that operand comes through shared memory.

Two things are CLBlast's own and are written into the text of the kernel: which thread copies what into
shared memory (MDIMA and NDIMB shape the threads; with STRM, STRN = 0 each copies neighbours, which makes
banks collide), and the alignment of tiles of scalars, which the recorded kernels load one by one, but for the
second tile where the first is of vectors. Left out: the read of C that beta asks for, and sizes known only at
run time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

import ekc
from ekc.codegen.cache import compile_cached
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import GeneratedSource, assemble_kernel, generate
from ekc.ir.hardware.target import LaunchLimits

WIDEST = 4
"""Floats that one access moves at most."""
UNBOUNDED = LaunchLimits(registers_per_thread=2**31, registers_per_sm=2**40)
"""CLBlast's tiles may spill, and the recordings hold such rows: ptxas says how much."""


@dataclass(frozen=True)
class Xgemm:
    """The parameters that change the kernel, by CLBlast's names."""

    mwg: int
    nwg: int
    kwg: int
    mdimc: int
    ndimc: int
    mdima: int
    ndimb: int
    kwi: int
    vwm: int
    vwn: int
    strm: int
    strn: int
    sa: int
    sb: int

    @property
    def threads(self) -> int:
        """Threads of a work-group."""
        return self.mdimc * self.ndimc

    def without_copy_shape(self) -> Xgemm:
        """The configuration without the shape of threads that copy, on which its schedule does not depend."""
        return replace(self, mdima=0, ndimb=0)

    @property
    def thread_tile(self) -> int:
        """Elements of C that one thread owns."""
        return self.mwg // self.mdimc * (self.nwg // self.ndimc)


def parse_configuration(row: Mapping[str, str]) -> Xgemm:
    """The configuration of a row; without a copy to shared memory, its shape of threads is 0."""
    one = Xgemm(**{field.name: int(row[field.name.upper()]) for field in fields(Xgemm)})
    return replace(one, mdima=one.mdima * one.sa, ndimb=one.ndimb * one.sb)


def build_schedule(one: Xgemm, side: int) -> ekc.Schedule:
    """The configuration for square matrices of `side`; `ScheduleError` where it breaks a rule."""
    op = ekc.matmul(side, side, side, transpose_a=True)
    cut = (
        ekc.Schedule(op)
        .split("i", _compute_tile_factors(one.nwg, one.ndimc, min(one.vwn, WIDEST), one.strn))
        .split("j", _compute_tile_factors(one.mwg, one.mdimc, min(one.vwm, WIDEST), one.strm))
        .split("k", (one.kwg // one.kwi, one.kwi))
    )
    # Strided, the thread comes between the pieces of its own tile; side by side, outside them.
    rows = ("i.2", "i.1", "i.3") if one.strn else ("i.1", "i.2")
    columns = ("j.2", "j.1", "j.3") if one.strm else ("j.1", "j.2")
    cut = (
        cut.reorder("i.0", "j.0", rows[0], columns[0], "k.0", "k.1", "k.2", *rows[1:], *columns[1:])
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind(rows[0], "thread.y")
        .bind(columns[0], "thread.x")
    )
    for loop, strided in ((rows[1], one.strn), (columns[1], one.strm)):
        cut = cut.bind(loop, "vthread") if strided else cut
    cut = cut.cache_write("C", "register", vector=min(one.vwm, WIDEST))
    for tensor, shared, vector in (("A", one.sb, one.vwn), ("B", one.sa, one.vwm)):
        width = min(vector, WIDEST)
        cut = cut.cache_read(tensor, "shared", at="k.0", vector=width) if shared else cut
        cut = cut.cache_read(f"{tensor}.shared" if shared else tensor, "register", at="k.2", vector=width)
    return cut.unroll("k.2")


def compile_kernel(one: Xgemm, side: int, arch: str) -> CompiledKernel:
    """The configuration through NVRTC, or from the compile cache."""
    made = build_schedule(one, side)
    text = generate(made, UNBOUNDED)
    source = text.source
    for tensor, alignment in zip("BA", compute_alignments(one), strict=True):
        source = _limit_alignment(source, tensor, alignment)
    for tensor, is_shared, shape in (
        ("B", one.sa, (one.mwg, one.mdima, one.vwm, one.strm)),
        ("A", one.sb, (one.nwg, one.ndimb, one.vwn, one.strn)),
    ):
        if is_shared:
            source = _replace_copy(source, tensor, _format_copied_element(one, *shape))
    return assemble_kernel(made, GeneratedSource(source, text.launches), compile_cached(source, arch))


def _limit_alignment(source: str, tensor: str, alignment: int) -> str:
    """The text with a tile at a place that the compiler only knows to be a multiple of so many bytes.

    An attribute is not enough: ptxas places the tile itself, and joins loads of neighbours as it knows the
    place. The number of the block along z is 0, which no compiler knows."""
    if alignment >= 16:
        return source
    return re.sub(
        rf"__shared__ __align__\(16\) float {tensor}_shared\[(\d+)\]\[(\d+)\];",
        rf"__shared__ __align__(16) float {tensor}_place[\1 * \2];\n"
        rf"    float (* const {tensor}_shared)[\2] = "
        rf"reinterpret_cast<float (*)[\2]>({tensor}_place + {alignment // 4} * blockIdx.z);",
        source,
    )


def _replace_copy(source: str, tensor: str, element: str) -> str:
    """The text with another order of copying a tile; `element` may use `round` and `thread`."""
    stage = rf"(// stage {tensor}\[.*\n +#pragma unroll.*\n +for .*\n +)const int element = .*;"
    found, count = re.subn(stage, rf"\1const int element = {element};", source)
    if count != 1:
        raise RuntimeError(f"{count} copies of {tensor} in the text, expected 1")
    return found


def compute_copied_elements(
    one: Xgemm, tile: int, across: int, vector: int, strided: int, turn: int, thread: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Where in a tile each thread copies in a turn: CLBlast's GlobalToLocalA and GlobalToLocalB."""
    width, deep = min(vector, WIDEST), one.kwg * across // one.threads
    side_by_side = thread % across * (tile // across) + turn // deep * width
    along = (thread % across + turn // deep * across) * width if strided else side_by_side
    return (thread // across * deep + turn % deep) * tile + along


def _format_copied_element(one: Xgemm, tile: int, across: int, vector: int, strided: int) -> str:
    """The same in C, where the turn is called round."""
    width, deep = min(vector, WIDEST), one.kwg * across // one.threads
    along = f"thread % {across} * {tile // across} + round / {deep} * {width}"
    if strided:
        along = f"(thread % {across} + round / {deep} * {across}) * {width}"
    return f"(thread / {across} * {deep} + round % {deep}) * {tile} + {along}"


def compute_alignments(one: Xgemm) -> tuple[int, int]:
    """Bytes that the compiler of the recorded kernels can rely on for the tile of M, and for that of N.

    A tile has the alignment of its vectors. The tile of N follows that of M and has its alignment too:
    recorded rows with VWM = 4 and VWN = 1 are as fast as if N were loaded by fours, those with VWM = 1 and
    VWN = 4 as slow as if M were loaded one by one. ekc aligns all tiles to 16: NVRTC would join all loads."""
    m, n = (min(vector, WIDEST) for vector in (one.vwm, one.vwn))
    return 4 * m, 4 * (max(m, n) if one.sa else n)


def _compute_tile_factors(group: int, threads: int, vector: int, strided: int) -> tuple[int, ...]:
    """Factors that give each thread its elements of a work-group's tile."""
    each = group // threads
    return (each // vector, threads, vector) if strided else (threads, each)
