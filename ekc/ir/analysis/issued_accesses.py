"""Which of the accesses a schedule writes down the compiler really issues, and how wide.

Two habits of NVRTC's compiler, seen in its PTX: it keeps a value that nearby iterations share, and it
joins neighbouring reads of shared memory into one vector access. Both end at a branch, which is what a
guard becomes. Global memory is behind a pointer, of which it knows no more than that elements are aligned:
reads of that are as wide as a schedule says, and no wider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ekc.ir.affine import Atom, Extent, find_atom_variables, min_extent
from ekc.ir.analysis.population_math import Lookup
from ekc.ir.dtypes import BFLOAT16, FLOAT16, TF32, DType
from ekc.ir.lowering.buffers import BoundsGuard, TensorAccess, has_needed_guard
from ekc.ir.lowering.nodes import ComputeNode, InitNode, LoopNode, Node, ReduceNode, StageNode, WriteNode
from ekc.ir.program import Nest

_ASM_CONVERTED_DTYPES = (FLOAT16, TF32)
"""Element types that pass through inline assembly when they are read: neighbouring reads stay apart."""
_JOINED_WIDTHS = (2, 4)
"""So many others are joined at a time."""

_BITWISE_CONVERSION_COST = 1 / 8
"""A conversion that is a shift or an extension of the sign, over one that the conversion pipe does."""


class UnrolledLoop(NamedTuple):
    """A loop: its iterations, and how many of them stand one after another in the code."""

    extent: Extent
    copies: Extent


def compute_issued_share(
    path: Sequence[LoopNode], access: TensorAccess, nest: Nest, guards: Sequence[BoundsGuard]
) -> Extent:
    """The share of iterations in which a read of the body, or an update of memory, is really issued.

    The compiler keeps a value over the innermost loops that do not move its address, past loops that are
    written out, but not past a loop that runs and moves it, nor past the one that refills its tile, nor over
    one that moves the `guards` it is under. `path` is the loops around the body, outermost first.
    """
    staging = nest.find_staging(access.buffer.name) if access.buffer is not None else None
    moves, kept = access.address.find_variables(), np.asanyarray(True)
    share: Extent = 1.0
    for node in reversed(path):
        if staging is not None and node.loop.name == staging.at:
            break
        extent = np.asanyarray(node.loop.extent, dtype=np.float64)
        kept = kept & ~has_needed_guard(g for g in guards if node.loop.name in g.form.find_variables())
        if node.loop.name not in moves:
            share = np.where(kept, share / extent, share)
        elif not node.must_unroll:
            kept = kept & (node.loop.unroll >= extent)
    return share


def compute_read_share(path: Sequence[LoopNode], access: TensorAccess, nest: Nest) -> Extent:
    """The share of iterations in which a read of the body is issued: all, where it is read under a guard."""
    return np.where(has_needed_guard(access.guards), 1.0, compute_issued_share(path, access, nest, ()))


def compute_conversion_cost(source: DType, target: DType) -> float:
    """What converting an element costs, in instructions of the conversion pipe."""
    if source is target:
        return 0.0
    return (
        _BITWISE_CONVERSION_COST if source is BFLOAT16 or (source.is_integer and target.is_integer) else 1.0
    )


def compute_converted_share(path: Sequence[LoopNode], access: TensorAccess, nest: Nest) -> Extent:
    """The share of iterations in which a value read in the body is converted: each, where that is inline
    assembly; as often as it is read, where the compiler may keep the result."""
    return 1.0 if access.dtype in _ASM_CONVERTED_DTYPES else compute_read_share(path, access, nest)


def compute_merged_width(access: TensorAccess, unrolled_loops: Mapping[Atom, UnrolledLoop]) -> Extent:
    """How many neighbouring reads the compiler joins into one vector access: 1 of global memory.

    It joins reads of copies of the statement that make one run of neighbours, 4 or 2 at a time, where every
    other step of the address keeps them aligned. `written` gives the loops and segment coordinates whose
    extents are known.
    """
    if access.buffer is None or access.dtype in _ASM_CONVERTED_DTYPES:
        return np.asanyarray(1)
    apart, copied = np.asanyarray(access.address.const), []
    for atom, step in access.address.terms:
        loop = unrolled_loops.get(atom)
        if loop is None:
            apart = apart | step
        elif np.ndim(loop.copies) == 0 and int(loop.copies) == 1:
            apart = apart | np.where(np.asanyarray(loop.extent) == 1, 0, step)
        else:
            copied += _encode_loop(np.asanyarray(step), loop)
    if not copied:
        return np.asanyarray(1)
    # Of the steps that join nothing, only what they do to alignment matters.
    alignment, kept = np.bitwise_and(apart, max(_JOINED_WIDTHS) - 1), has_needed_guard(access.guards)
    if access.buffer.is_swizzled:
        # The compiler does not see that neighbours stay neighbours.
        kept = kept | (np.asanyarray(access.buffer.swizzle) != 1)
    return _MERGED_WIDTH_LOOKUP(kept, alignment, *copied)[0]


def _encode_loop(step: Extent, loop: UnrolledLoop) -> list[Extent]:
    """What is looked up of a loop that is written out: step, and twice the copies, plus 1 where they are not
    all of it. A step of whole widest accesses changes nothing, joined or not: it is told as none, for the
    patterns to be few."""
    matters = np.bitwise_and(step, max(_JOINED_WIDTHS) - 1) != 0
    copies = 2 * np.asanyarray(loop.copies) + (loop.copies < loop.extent)
    return [np.where(matters, step, 0), np.where(matters, copies, 0)]


def _compute_widths(rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """The width of rows of: whether something keeps the reads apart, the alignment of the rest, and each loop
    that is written out as `_copied`."""
    steps, told = rows[:, 2::2].T, rows[:, 3::2].T
    copies, partly = told >> 1, told & 1
    run, joined = np.ones(len(rows), np.int64), np.zeros(steps.shape, bool)
    for _ in steps:
        for i, step in enumerate(steps):
            joins = ~joined[i] & (step == run) & (copies[i] > 1)
            run = np.where(joins, run * copies[i], run)
            joined[i] |= joins
    # A loop of one iteration takes no step.
    left = np.where(joined, partly * steps * copies, np.where((copies == 1) & (partly == 0), 0, steps))
    left = np.bitwise_or.reduce(np.concatenate([rows[None, :, 1], left]))
    width = np.ones(len(rows))
    for wide in _JOINED_WIDTHS:
        width[(rows[:, 0] == 0) & (run % wide == 0) & (left % wide == 0)] = wide
    return width[:, None]


_MERGED_WIDTH_LOOKUP = Lookup(_compute_widths, 1)


def compute_copy_width(stage: StageNode, path: Sequence[LoopNode], nest: Nest) -> Extent:
    """Elements per access of a copy made by each thread for itself: its vector, or what is joined."""
    segments = [s.extent for s in stage.buffer.region.segments]
    own = {f"#{i}": UnrolledLoop(extent, extent) for i, extent in enumerate(segments)}
    written = list_unrolled_loops(path, nest) | own
    return np.maximum(np.asanyarray(stage.staging.vector), compute_merged_width(stage.source, written))


def compute_fetch_width(write: WriteNode, access: TensorAccess) -> Extent:
    """Elements per access of a read for an epilogue: as many as are written at once, up to 16 bytes, where
    they lie side by side, start where a vector may, and stand under no guard but that of the write."""
    own = f"#{write.vector_segment}"
    others = [(atom, step) for atom, step in access.address.terms if atom != own]
    if access.buffer is not None or any(own in find_atom_variables(atom) for atom, _ in others):
        return 1
    width = min_extent(write.vector, 16 // access.dtype.bytes)
    beside = np.asanyarray(dict(access.address.terms).get(own, 0)) == 1
    fits = beside & ~has_needed_guard(access.guards) & (np.asanyarray(access.address.const) % width == 0)
    for _, step in others:
        fits = fits & (np.asanyarray(step) % width == 0)
    return np.where(fits, width, 1)


def compute_epilogue_read_share(write: WriteNode, access: TensorAccess) -> Extent:
    """The share of written elements for which a read of an epilogue is really issued.

    The elements are written out, so that the compiler keeps a value over those that share it: over all
    within a vector, and over segments that move neither the address nor a guard of the write.
    """
    moves, share = (
        access.address.find_variables(),
        1.0 / np.asanyarray(compute_fetch_width(write, access), dtype=np.float64),
    )
    for i, segment in enumerate(write.region.segments):
        name = f"#{i}"
        if name not in moves:
            together = write.vector if i == write.vector_segment else 1
            apart = has_needed_guard(g for g in write.target.guards if name in g.form.find_variables())
            share = share / np.where(apart, together, segment.extent)
    return share


def list_unrolled_loops(path: Sequence[LoopNode], nest: Nest) -> dict[Atom, UnrolledLoop]:
    """The loops of a nest; those around a statement with the copies of it that no branch keeps apart.

    A loop that is unrolled in part counts where its extent is a multiple: else a rest is left over.
    """
    found: dict[Atom, UnrolledLoop] = {x.name: UnrolledLoop(x.extent, np.asanyarray(1)) for x in nest.loops}
    for node in path:
        extent = np.asanyarray(node.loop.extent)
        copies = extent if node.must_unroll else np.minimum(node.loop.unroll, extent)
        whole = (extent % np.maximum(copies, 1) == 0) & ~has_needed_guard(_collect_guards(node.body))
        found[node.loop.name] = UnrolledLoop(extent, np.where(whole, copies, 1))
    return found


def _collect_guards(nodes: Sequence[Node]) -> list[BoundsGuard]:
    """Every guard below some nodes."""
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
            case _:
                pass
    return found
