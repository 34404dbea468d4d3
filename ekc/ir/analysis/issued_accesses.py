"""Accesses that the compiler issues, and their widths, from the accesses that a schedule has.

Two optimizations of NVRTC, as its PTX shows: a value that neighbouring iterations share stays in a register,
and neighbouring reads of shared memory become one vector access. Both stop at a branch, and a guard is a
branch. Of a pointer to global memory the compiler knows only that elements are aligned, so such reads are
exactly as wide as the schedule says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ekc.ir.affine import Atom, Extent, choose, find_atom_variables, max_extent, min_extent
from ekc.ir.analysis.population_math import Lookup, to_float64
from ekc.ir.dtypes import BFLOAT16, FLOAT16, TF32, DType
from ekc.ir.lowering.buffers import BoundsGuard, TensorAccess, has_needed_guard
from ekc.ir.lowering.nodes import ComputeNode, InitNode, LoopNode, Node, ReduceNode, StageNode, WriteNode
from ekc.ir.program import Nest

_ASM_CONVERTED_DTYPES = (FLOAT16, TF32)
"""Element types whose reads use inline assembly; neighbouring reads of these are not joined."""
_JOINED_WIDTHS = (2, 4)
"""Numbers of neighbouring reads that the compiler joins."""

_BITWISE_CONVERSION_COST = 1 / 8
"""Cost of a conversion by a shift or sign extension, relative to one in the conversion pipe (estimate)."""


class UnrolledLoop(NamedTuple):
    """Iterations of a loop, and copies of its body in the code."""

    extent: Extent
    """Iterations of the loop."""
    copies: Extent
    """Copies of the body that follow each other in the code without a branch; 1 where it is not unrolled."""


def compute_issued_share(
    path: Sequence[LoopNode], access: TensorAccess, nest: Nest, guards: Sequence[BoundsGuard]
) -> Extent:
    """Share of iterations in which a read of the body, or an update of memory, is issued.

    The compiler keeps a value in a register over the innermost loops that do not move its address, also past
    unrolled loops. It does not keep it past a loop that runs and moves the address, past the loop that
    refills its tile, or over a loop that moves one of its `guards`. `path` has the loops around the body,
    outermost first.
    """
    staging = nest.find_staging(access.buffer.name) if access.buffer is not None else None
    moves, is_kept = access.address.find_variables(), np.True_
    share: Extent = 1.0
    for node in reversed(path):
        if staging is not None and node.loop.name == staging.at:
            break
        extent = to_float64(node.loop.extent)
        if guards:
            own = [g for g in guards if node.loop.name in g.form.find_variables()]
            is_kept = is_kept & ~has_needed_guard(own)
        if node.loop.name not in moves:
            share = choose(is_kept, share / extent, share)
        elif not node.must_unroll:
            is_kept = is_kept & (node.loop.unroll >= extent)
    return share


def compute_read_share(path: Sequence[LoopNode], access: TensorAccess, nest: Nest) -> Extent:
    """Share of iterations in which a read of the body is issued; 1 where the read has a guard."""
    return choose(has_needed_guard(access.guards), 1.0, compute_issued_share(path, access, nest, ()))


def compute_conversion_cost(source: DType, target: DType) -> float:
    """Cost of converting an element, in instructions of the conversion pipe."""
    if source is target:
        return 0.0
    is_bitwise = source is BFLOAT16 or (source.is_integer and target.is_integer)
    return _BITWISE_CONVERSION_COST if is_bitwise else 1.0


def compute_converted_share(path: Sequence[LoopNode], access: TensorAccess, nest: Nest) -> Extent:
    """Share of iterations that convert a value: 1 for inline assembly, else the share of issued reads."""
    return 1.0 if access.dtype in _ASM_CONVERTED_DTYPES else compute_read_share(path, access, nest)


def compute_merged_width(access: TensorAccess, unrolled_loops: Mapping[Atom, UnrolledLoop]) -> Extent:
    """Neighbouring reads that the compiler joins into one vector access; 1 for global memory.

    It joins reads of unrolled copies of the statement, 4 or 2 at a time, where they are contiguous and every
    other step of the address keeps them aligned. `unrolled_loops` has loops and segment coordinates with
    known extents.
    """
    if access.buffer is None or access.dtype in _ASM_CONVERTED_DTYPES:
        return 1
    other_steps, copied = access.address.const, []
    for atom, step in access.address.terms:
        loop = unrolled_loops.get(atom)
        if loop is None:
            other_steps = other_steps | step
        elif np.ndim(loop.copies) == 0 and int(loop.copies) == 1:
            other_steps = other_steps | choose(loop.extent == 1, 0, step)
        else:
            copied += _encode_loop(step, loop)
    if not copied:
        return 1
    # Steps that join nothing matter only for the alignment.
    alignment = other_steps & max(_JOINED_WIDTHS) - 1
    is_separate = has_needed_guard(access.guards)
    if access.buffer.is_swizzled:
        # The compiler does not see that neighbours stay neighbours in a swizzled tile.
        is_separate = is_separate | (access.buffer.swizzle != 1)
    return _MERGED_WIDTH_LOOKUP(is_separate, alignment, *copied)[0]


def _encode_loop(step: Extent, loop: UnrolledLoop) -> list[Extent]:
    """Two columns for an unrolled loop: its step, and twice its copies plus 1 where it is unrolled in part.

    A step that is a multiple of the widest access changes nothing. It is encoded as no loop, so that there
    are fewer patterns.
    """
    matters = step & max(_JOINED_WIDTHS) - 1 != 0
    copies = 2 * loop.copies + (loop.copies < loop.extent)
    return [choose(matters, step, 0), choose(matters, copies, 0)]


def _compute_widths(rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Width of the access, for rows of: whether the reads stay separate, bits of the other steps, and the
    columns of each unrolled loop (`_encode_loop`)."""
    steps, encoded = rows[:, 2::2].T, rows[:, 3::2].T
    copies, partly = encoded >> 1, encoded & 1
    run, joined = np.ones(len(rows), np.int64), np.zeros(steps.shape, bool)
    for _ in steps:
        for i, step in enumerate(steps):
            joins = ~joined[i] & (step == run) & (copies[i] > 1)
            run = np.where(joins, run * copies[i], run)
            joined[i] |= joins
    # A loop of one iteration takes no step.
    remaining = np.where(joined, partly * steps * copies, np.where((copies == 1) & (partly == 0), 0, steps))
    remaining = np.bitwise_or.reduce(np.concatenate([rows[None, :, 1], remaining]))
    width = np.ones(len(rows))
    for joined_width in _JOINED_WIDTHS:
        fits = (run % joined_width == 0) & (remaining % joined_width == 0)
        width[(rows[:, 0] == 0) & fits] = joined_width
    return width[:, None]


_MERGED_WIDTH_LOOKUP = Lookup(_compute_widths, 1)


def compute_copy_width(stage: StageNode, path: Sequence[LoopNode], nest: Nest) -> Extent:
    """Elements per access of a private copy of a thread: its vector, or the joined width if larger."""
    segments = [s.extent for s in stage.buffer.region.segments]
    own = {f"#{i}": UnrolledLoop(extent, extent) for i, extent in enumerate(segments)}
    unrolled = list_unrolled_loops(path, nest) | own
    return max_extent(stage.staging.vector, compute_merged_width(stage.source, unrolled))


def compute_fetch_width(write: WriteNode, access: TensorAccess) -> Extent:
    """Elements per access of a read of an epilogue.

    It is the vector of the store, up to 16 bytes, where the elements are contiguous, aligned, and under no
    guard but that of the store; else 1.
    """
    own = f"#{write.vector_segment}"
    others = [(atom, step) for atom, step in access.address.terms if atom != own]
    if access.buffer is not None or any(own in find_atom_variables(atom) for atom, _ in others):
        return 1
    width = min_extent(write.vector, 16 // access.dtype.bytes)
    contiguous = dict(access.address.terms).get(own, 0) == 1
    fits = contiguous & ~has_needed_guard(access.guards) & (access.address.const % width == 0)
    for _, step in others:
        fits = fits & (step % width == 0)
    return choose(fits, width, 1)


def compute_epilogue_read_share(write: WriteNode, access: TensorAccess) -> Extent:
    """Share of stored elements for which a read of an epilogue is issued.

    The stores are unrolled, so the compiler keeps a value over the elements that share it: over those of a
    vector, and over segments that move neither the address nor a guard of the store.
    """
    moves = access.address.find_variables()
    share = 1.0 / to_float64(compute_fetch_width(write, access))
    for i, segment in enumerate(write.region.segments):
        name = f"#{i}"
        if name not in moves:
            together = write.vector if i == write.vector_segment else 1
            is_guarded = has_needed_guard(g for g in write.target.guards if name in g.form.find_variables())
            share = share / choose(is_guarded, together, segment.extent)
    return share


def list_unrolled_loops(path: Sequence[LoopNode], nest: Nest) -> dict[Atom, UnrolledLoop]:
    """The loops of a nest; loops around a statement with the unrolled copies that no branch separates.

    A loop that is unrolled in part counts only where its extent is a multiple of the copies; else there is a
    remainder loop.
    """
    found: dict[Atom, UnrolledLoop] = {x.name: UnrolledLoop(x.extent, 1) for x in nest.loops}
    for node in path:
        extent = node.loop.extent
        copies = node.copies
        if isinstance(copies, int) and copies == 1:
            continue
        is_straight = (extent % max_extent(copies, 1) == 0) & ~has_needed_guard(_collect_guards(node.body))
        found[node.loop.name] = UnrolledLoop(extent, choose(is_straight, copies, 1))
    return found


def _collect_guards(nodes: Sequence[Node]) -> list[BoundsGuard]:
    """Every guard in some nodes and their bodies."""
    found: list[BoundsGuard] = []
    for node in nodes:
        match node:
            case LoopNode():
                found += _collect_guards(node.body)
            case StageNode() | ReduceNode():
                found += node.source.guards
            case ComputeNode():
                found += [*node.guards, *(g for access in node.reads.values() for g in access.guards)]
            case InitNode():
                found += node.target.guards
            case WriteNode():
                found += [*node.target.guards, *(g for access in node.reads.values() for g in access.guards)]
    return found
