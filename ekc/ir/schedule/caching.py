"""Steps that stage data: tiles in shared memory and registers, accumulators, and producers (compute_at)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ekc.ir.affine import Extent
from ekc.ir.dtypes import DType
from ekc.ir.hardware.memory import SHARED_LINE_BYTES, count_panel_elements
from ekc.ir.lowering.fusion import (
    compute_staging_depth,
    find_misplaced_producer,
    has_load,
    is_clamped_on_store,
)
from ekc.ir.program import Nest, Program, Staging
from ekc.ir.refusal import (
    Check,
    at_least,
    fits,
    make_over_limit_error,
    make_unknown_name_error,
)
from ekc.ir.schedule.step import Step, is_vector_width

SCOPES = ("shared", "register", "fragment")
_VECTOR_WIDTHS = "must be 1, 2, 4, 8 or 16"


def _check_at(rule: str, nest: Nest, at: str | None) -> None:
    """Refuse a staging in a loop that is not a serial loop of its nest; None is outside all loops."""
    if at is None:
        return
    serial = [x.name for x in nest.loops if x.is_serial and x.level != "vector"]
    if at not in serial:
        raise make_unknown_name_error(rule, "serial loop", at, serial, "use at=None")


@dataclass(frozen=True)
class CacheRead(Step):
    """Copy the region of a tensor that the loops inside `at` read into shared memory or registers.

    `cache_read("A", "shared", at="k.0", vector=4, order=(1, 0), pad=4)`::

        for k.0                ->   for k.0
          ... A[i, k] ...             stage A[i.0*128 : 128, k.0*8 : 8] -> shared[8, 128+4]
                                      barrier
                                      ... A.shared[k, i] ...

    The copy is named `A.shared` (or `A.register`) and may itself be the source of another. `vector` elements
    move at once (up to 16 bytes); `order` gives the tensor's dimensions as stored, slowest first; `pad` adds
    elements to each stored row, against bank conflicts. `swizzle=8` (or 4, 2) does the same without extra
    space: chunks of 16 bytes change places within each line of 128 bytes, by the line's number. It costs
    integer instructions for each read, few where a lane reads full chunks. `panel=64` (lines of 128 bytes)
    stores the first line of every row before the second line of any row, as wgmma needs it. Threads copy a
    shared tile in rounds, of which `unroll` are written out: all up to 8 by default, else 4. A pipeline
    writes all of them out; rules refuse another number there. A "fragment" is
    spread over the lanes of a warp, for `tensorize`. It is filled from a shared copy, and the instruction
    fixes its layout. Where several computes read the tensor, the loop `at` selects one; `reader`, the name of
    its output, selects it without a loop. Halide and TVM call it cache_read too, Exo stage_mem. Refuses: an
    unknown tensor, scope, loop or reader; a copy that exists; shared memory filled from registers; a fragment
    filled from other memory than shared, or with a layout of its own; panels that are not lines of 128 bytes,
    or not in shared memory.
    """

    kind: ClassVar[str] = "cache_read"
    source: str
    scope: str
    at: str | None = None
    vector: Extent = 1
    order: tuple[int, ...] = ()
    pad: Extent = 0
    swizzle: Extent = 1
    reader: str = ""
    panel: int = 0
    unroll: Extent = 0

    def apply(self, program: Program) -> Program:
        """See the class."""
        if self.scope not in SCOPES:
            raise make_unknown_name_error("cache_read", "scope", self.scope, SCOPES)
        tensor = self.source.split(".")[0]
        nest = _find_reader_nest(program, tensor, self.source, self.at, self.reader)
        _check_at("cache_read", nest, self.at)
        rank = len(program.op.tensors[tensor].shape)
        if self.order and sorted(self.order) != list(range(rank)):
            dims = str(tuple(range(rank)))
            raise make_over_limit_error(
                "cache_read",
                need=f"order {self.order}",
                limit=f"must be a permutation of {dims}",
                nearest=dims,
            )
        self._check_panels(program.op.tensors[tensor].dtype)
        layout = (self.vector, self.order, self.pad, self.swizzle, self.panel)
        new = Staging(tensor, self.source, self.scope, self.at, *layout, unroll=self.unroll)
        self._check_staging(nest, new)
        legal = is_vector_width(np.asanyarray(self.vector))
        rule = f"cache_read {new.name}"
        checks = (
            fits(rule, legal, self.vector, _VECTOR_WIDTHS, "4", "elements at once"),
            at_least(rule, self.pad, 0, "as pad"),
            self._make_swizzle_check(rule),
            self._make_unroll_check(rule),
        )
        return program.replace_nest(nest, replace(nest, stagings=(*nest.stagings, new)), *checks)

    def _make_unroll_check(self, rule: str) -> Check:
        """The check that only a copy by all threads, in shared memory, has rounds to unroll."""
        rounds, is_shared = np.asanyarray(self.unroll), self.scope == "shared"
        return fits(
            rule,
            rounds >= 0 if is_shared else rounds == 0,
            self.unroll,
            limit_text="must be 0 or more" if is_shared else "must be 0 outside of shared memory",
            nearest="0",
            unit="rounds to unroll",
        )

    def _make_swizzle_check(self, rule: str) -> Check:
        """The check that a swizzle is 2, 4 or 8 chunks, of a tile in shared memory."""
        chunks = np.asanyarray(self.swizzle)
        legal = (chunks == 1) | ((chunks == 2) | (chunks == 4) | (chunks == 8)) & (self.scope == "shared")
        return fits(
            rule,
            legal,
            self.swizzle,
            limit_text="must be 1, 2, 4 or 8" if self.scope == "shared" else "must be 1",
            nearest="8" if self.scope == "shared" else "1",
            unit="chunks to swizzle",
        )

    def _check_panels(self, dtype: DType) -> None:
        """Refuse panels that are no lines of shared memory."""
        line = count_panel_elements(dtype.bytes)
        if self.panel and (self.panel != line or self.scope != "shared"):
            raise make_over_limit_error(
                "cache_read",
                need=f"panel={self.panel} in scope {self.scope!r}",
                limit=f"must be {line} of {dtype} (a line of {SHARED_LINE_BYTES} bytes), in shared memory",
                nearest=f"use panel={line}",
            )

    def _check_fragment(self, nest: Nest, new: Staging) -> None:
        """Refuse a fragment that is not filled from a shared tile, or that has a layout of its own."""
        source = nest.find_staging(new.source)
        if source is None or source.scope != "shared":
            raise self.make_error(
                need=f"{new.name} filled from shared memory",
                problem=f"{new.source} is not in shared memory, from which fragments are filled",
                remedy=f'call cache_read("{new.tensor}", "shared") first, then read "{new.tensor}.shared"',
            )
        if source.panel:
            raise self.make_error(
                need=f"{new.name} filled from whole rows",
                problem=f"{source.name} is stored in panels",
                remedy=f"leave panel= of {source.name} out",
            )
        usual: dict[str, Any] = {"vector": 1, "order": (), "pad": 0, "swizzle": 1, "panel": 0}
        given = [name for name, value in usual.items() if not np.array_equal(getattr(self, name), value)]
        if given:
            raise self.make_error(
                need=f"{new.name} without {given[0]}",
                problem=f"the instruction fixes the layout of {new.name}, and {given[0]} is given",
                remedy=f"give {given[0]} to {new.source}",
            )

    def _check_staging(self, nest: Nest, new: Staging) -> None:
        if nest.find_staging(new.name):
            raise self.make_error(
                need=f"a new {new.name}",
                problem=f"{new.name} exists already",
                remedy="move it with compute_at",
            )
        if new.scope == "fragment":
            self._check_fragment(nest, new)
        if new.source == new.tensor:
            if any(s.source == new.tensor for s in nest.stagings):
                other = next(s for s in nest.stagings if s.source == new.tensor)
                raise self.make_error(
                    need=f"{new.tensor} read from global memory",
                    problem=f"{other.name} is a copy of {new.tensor} already",
                    remedy=repr(other.name),
                )
            return
        source = nest.find_staging(new.source)
        assert source is not None
        if source.scope != "shared":
            raise self.make_error(
                f"{new.source} in shared memory",
                f"{new.source} is in registers of one {'thread' if source.scope == 'register' else 'warp'}",
                f'use cache_read("{new.tensor}", ...)',
            )
        if new.scope == "shared":
            raise self.make_error(
                need=f"{new.source} copied to shared",
                problem=f"{new.source} is in shared memory already",
                remedy='use "register"',
            )
        if compute_staging_depth(nest, new.at) < compute_staging_depth(nest, source.at):
            raise self.make_error(
                need=f"at={new.at!r} inside {source.at!r}",
                problem=f"{source.name} is filled in {source.at}, and at={new.at!r} is outside",
                remedy=repr(source.at),
            )


def _make_unpipelined_check(nest: Nest, tensor: str, at: str | None) -> Check:
    """The check that the loop of a tile computed on the spot has one stage: no tile is fetched ahead."""
    stages = 1 if at is None else nest.find_loop(at).stages
    ok = np.asanyarray(stages) <= 1
    return fits(f"compute_at {tensor}", ok, stages, "must be 1", "1", f"stages in {at}")


def _find_reader_nest(program: Program, tensor: str, source: str, at: str | None, reader: str) -> Nest:
    """The nest whose body reads `tensor`; of several the one that writes `reader`, or has the loop `at`."""
    readers = [n for n in program.nests if has_load(n.compute, tensor)]
    readers = [n for n in readers if source == tensor or n.find_staging(source)]
    if not readers:
        names = [load.tensor for n in program.nests for load in n.compute.loads]
        names += [s.name for n in program.nests for s in n.stagings]
        raise make_unknown_name_error("cache_read", "tensor read", source, names, plural="tensors read")
    if reader:
        outputs = [n.compute.output.name for n in readers]
        if reader not in outputs:
            raise make_unknown_name_error(
                "cache_read", f"reader of {source}", reader, outputs, plural="readers"
            )
        return readers[outputs.index(reader)]
    holding = [n for n in readers if at in n.extents]
    return holding[0] if holding else readers[0]


@dataclass(frozen=True)
class CacheWrite(Step):
    """Keep the output of a compute in registers until it is complete, then write it once.

    `cache_write("C", "register", vector=4)`::

        for k                  ->   register C.acc[8, 8] = 0
          C[i, j] += ...            for k
                                      C.acc[...] += ...
                                    write C.acc -> C            float4

    The accumulator has the accumulation dtype of the compute; an output of another type needs it.
    Refuses: a tensor that no compute writes, a scope other than register, a second accumulator.
    """

    kind: ClassVar[str] = "cache_write"
    tensor: str
    scope: str = "register"
    vector: Extent = 1

    def apply(self, program: Program) -> Program:
        """See the class."""
        nest = program.find_output_nest(self.tensor, self.kind)
        if self.scope != "register":
            raise make_unknown_name_error("cache_write", "scope", self.scope, ["register"])
        if nest.has_accumulator:
            raise self.make_error(
                need=f"no accumulator of {self.tensor}",
                problem=f"{self.tensor} has an accumulator already",
                remedy="leave the second out",
            )
        legal = is_vector_width(np.asanyarray(self.vector))
        rule = f"cache_write {self.tensor}"
        check = fits(rule, legal, self.vector, _VECTOR_WIDTHS, "4", "elements at once")
        new = replace(nest, has_accumulator=True, store_vector=self.vector)
        return program.replace_nest(nest, new, check)


@dataclass(frozen=True)
class ComputeAt(Step):
    """Move a staging to another loop, or compute an earlier tensor on the spot, in shared memory.

    `compute_at("T", "k.0")` where T[p, q] = relu(X[p, q]) was a launch of its own::

        launch 1: for p, q: T[p, q] = relu(X[p, q])
        launch 2: for i, j, k: C[i, j] += T[i, k] * B[k, j]
          ->
        launch 1: for i.0, j.0, k.0:
                    stage relu(X[p, q]) at T[i.0*64 : 64, k.0*8 : 8] -> shared[64, 8]
                    barrier
                    ... T.shared[i, k] ...

    Where the earlier tensor is a reduction, `warps` warps share each of its elements: their lanes move along
    the last reduction axis side by side, and combine their values by shuffles. `compute_at("top", None,
    warps=2)`::

        launch 1: for i, k: top[i] = max(X[i, k])
        launch 2: for p, q: Y[p, q] = X[p, q] - top[p]
          ->
        launch 1: for p.0:
                    reduce max(X[p, k]) at top[p.0*4 : 4] -> shared[4]      2 warps an element
                    barrier
                    ... Y[p, q] = X[p, q] - top.shared[p]

    The computed values may read an earlier copy in shared memory. All readers of the tensor must be in one
    nest: move the last tensor of a chain first. Halide and TVM: compute_at. Elements that two blocks need are
    computed twice. Refuses: an unknown name or loop; a tensor that is read in more than one nest, is copied
    already, or has scheduled loops; a place inside that of a computed reader; a pipelined loop; a reduction
    that storing clamps; `warps` where nothing is reduced.
    """

    kind: ClassVar[str] = "compute_at"
    what: str
    at: str | None
    warps: Extent = 1

    def apply(self, program: Program) -> Program:
        """See the class."""
        for nest in program.nests:
            if nest.find_staging(self.what):
                return self._move_staging(program, nest)
        producers = [n for n in program.nests[:-1] if n.output.name == self.what]
        if producers:
            return self._fuse_producer(program, producers[0])
        names = [s.name for n in program.nests for s in n.stagings]
        names += [n.output.name for n in program.nests[:-1]]
        raise make_unknown_name_error(
            "compute_at", "movable tensor", self.what, names, remedy="call cache_read first"
        )

    def _move_staging(self, program: Program, nest: Nest) -> Program:
        _check_at("compute_at", nest, self.at)
        self._check_no_warps(self.what)
        moved = next(s for s in nest.stagings if s.name == self.what)
        source = nest.find_staging(moved.source)
        if source and compute_staging_depth(nest, self.at) < compute_staging_depth(nest, source.at):
            raise self.make_error(
                need=f"at={self.at!r} inside {source.at!r}",
                problem=f"{source.name} is filled in {source.at}, and at={self.at!r} is outside",
                remedy=repr(source.at),
            )
        depth = compute_staging_depth(nest, self.at)
        for user in nest.stagings:
            if user.source == moved.name and compute_staging_depth(nest, user.at) < depth:
                raise self.make_error(
                    need=f"at={self.at!r} outside {user.at!r}",
                    problem=f"{user.name} reads {moved.name} in {user.at}, and at={self.at!r} is inside",
                    remedy=repr(user.at),
                )
        stagings = tuple(replace(s, at=self.at) if s is moved else s for s in nest.stagings)
        checks = [_make_unpipelined_check(nest, self.what, self.at)] if moved.producer else []
        new = self._check_producer_order(replace(nest, stagings=stagings))
        return program.replace_nest(nest, new, *checks)

    def _check_no_warps(self, tensor: str) -> None:
        """Refuse `warps` for a tensor that is no reduction."""
        if np.any(np.not_equal(self.warps, 1)):
            raise self.make_error(f"a reduction {tensor}", f"{tensor} reduces nothing", "use warps=1")

    def _fuse_producer(self, program: Program, producer: Nest) -> Program:
        tensor = producer.compute.output.name
        if not producer.is_unscheduled:
            raise self.make_error(
                need=f"unscheduled {tensor}",
                problem=f"the loops of {tensor} were changed",
                remedy="compute_at first",
            )
        if producer.compute.reduction_axes and is_clamped_on_store(producer.compute):
            raise self.make_error(
                need=f"{tensor} as {producer.output.dtype}",
                problem=f"only storing {tensor} clamps it to {producer.output.dtype}",
                remedy="leave it a launch of its own",
            )
        if not producer.compute.reduction_axes:
            self._check_no_warps(tensor)
        readers = [n for n in program.nests if any(has_load(c, tensor) for c in n.computes)]
        behind = [n for n in program.nests if n.epilogue is not None and has_load(n.epilogue, tensor)]
        if len(readers) != 1 or behind:
            raise self.make_error(
                need=f"{tensor} read in one nest",
                problem=f"{len(readers) + len(behind)} nests read {tensor}",
                remedy="call compute_at on its other readers first, or leave it a launch of its own",
            )
        nest = readers[0]
        _check_at("compute_at", nest, self.at)
        copied = [s.name for s in nest.stagings if s.tensor == tensor]
        if copied:
            raise self.make_error(
                need=f"no copy of {tensor}",
                problem=f"{copied[0]} is a copy of {tensor}",
                remedy=f"call compute_at({tensor!r}, ...) first",
            )
        staging = Staging(tensor, tensor, "shared", self.at, producer=producer.compute, warps=self.warps)
        new = self._check_producer_order(replace(nest, stagings=(*nest.stagings, staging)))
        nests = tuple(new if n is nest else n for n in program.nests if n is not producer)
        some = at_least(f"compute_at {tensor}", self.warps, 1, "warps")
        checks = (*program.checks, some, _make_unpipelined_check(nest, tensor, self.at))
        return Program(program.op, nests, checks)

    def _check_producer_order(self, nest: Nest) -> Nest:
        """The nest; refused where a producer is computed outside the place of a tensor that it reads."""
        wrong = find_misplaced_producer(nest)
        if wrong:
            source, user = wrong
            raise self.make_error(
                f"{source.tensor} at {source.at!r} outside {user.tensor} at {user.at!r}",
                f"{user.tensor} at {user.at!r} is computed from {source.tensor}, which is at {source.at!r}",
                f"use at={user.at!r} for both",
            )
        return nest
