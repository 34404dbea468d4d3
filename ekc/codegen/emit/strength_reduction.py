"""Strength reduction of the addresses of cooperative copies: compute them before the loop, then only add.

A cooperative copy moves a tile in *rounds*: in each round, every thread of the block moves one vector. The
*tile loop* is the loop that loads a new tile in each iteration. Source offsets and shared addresses of all
rounds are computed before the tile loop, and the loop adds a constant to a pointer.

Two kinds of kernels use this. In kernels for tensor cores a few instructions do all the arithmetic, so every
other instruction counts. In kernels with im2col tiles, the quotients and remainders of a joint loop and the
guards on them change with the loops outside (a convolution's taps), not with the tile loop.

Three parts of an offset are separated. One part changes in no loop: it is computed before all loops and held
in a register, as the compiler would otherwise join it with the next part and compute both for every tap. One
part changes with the loops around the tile loop; it is the same for all rounds. The last part is the tile
loop's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ekc.codegen.emit.names import CNames, count_copy_elements
from ekc.ir.affine import AffineForm
from ekc.ir.lowering.buffers import BoundsGuard, Buffer, TensorAccess
from ekc.ir.lowering.nodes import LaunchTree, MmaNode, StageNode
from ekc.ir.lowering.regions import Region, make_segment_variables
from ekc.ir.program import Loop

MASK_BITS = 32
"""Bits of a mask of guards."""


@dataclass(frozen=True)
class OuterLoopOffsets:
    """Offsets that the serial loops around a tile loop add."""

    extents: dict[str, int]
    """Iterations of each serial loop but the tile loop, by name."""
    names: CNames
    """C names of the coordinates of a round."""

    def split_offset(self, source: TensorAccess) -> tuple[str, str] | None:
        """The constant part of an offset in elements, and the part that the loops add; None if they do not
        split.

        ((..n_p_q..) + r) * 3584   ->   (..n_p_q..) * 3584, r * 3584
        """
        adding = self._find_loop_terms(source.address)
        if not adding or self._has_loop_in_quotient(source.address) or self.names.offset_overflows(source):
            return None
        constant = replace(self.names, zero=self.names.zero | dict(adding).keys())
        return constant.format_offset(source), self.names.format_linear(AffineForm(adding))

    def split_condition(self, guards: tuple[BoundsGuard, ...]) -> tuple[str, str] | None:
        """A mask with a bit for each iteration of a loop that is out of bounds, and the bits to test; None if
        not possible.

        n < 16 && r + P - 1 in 0..13 && s + Q - 1 in 0..13   ->   n < 16 ? .. : ~0u, 1u << r | 1u << (s + 3)
        """
        varying = [(g, self._find_loop_terms(g.form)) for g in guards if self._find_loop_terms(g.form)]
        counts = [self.extents[name] for _, adding in varying for name, _ in adding]
        plain = not any(
            self._has_loop_in_quotient(g.form) or self.names.form_overflows(g.form) for g in guards
        )
        single = all(len(adding) == 1 for _, adding in varying)
        if not varying or not plain or not single or sum(counts) > MASK_BITS or self.names.divides_wide:
            return None
        masks, bits, first = [], [], 0
        for (g, ((loop, step),)), count in zip(varying, counts, strict=True):
            outer = AffineForm(tuple(t for t in g.form.terms if t[0] != loop), g.form.const)
            mask = f"out_of_bounds_mask<{count}, {step}>({self.names.format_linear(outer)}, {g.extent})"
            masks.append(f"{mask} << {first}" if first else mask)
            bits.append(f"1u << ({self.names[loop]} + {first})" if first else f"1u << {self.names[loop]}")
            first += count
        constant = self.names.format_condition(tuple(g for g in guards if not self._find_loop_terms(g.form)))
        mask = " | ".join(masks)
        return f"{constant} ? {mask} : ~0u" if constant else mask, " | ".join(bits)

    def _has_loop_in_quotient(self, form: AffineForm) -> bool:
        """Whether some of the loops appear in a quotient or remainder of the form."""
        return any(not isinstance(a, str) and a.find_variables() & self.extents.keys() for a, _ in form.terms)

    def _find_loop_terms(self, form: AffineForm) -> tuple[tuple[str, int], ...]:
        """The terms of a form that are serial loops around the tile loop."""
        return tuple((a, int(c)) for a, c in form.terms if isinstance(a, str) and a in self.extents)


def keep_address_in_register(element: str) -> str:
    """C call that holds the address of an element of a shared tile in a register."""
    return f"keep_in_register(shared_address(&{element}))"


CopyValues = dict[str, Any]
"""Values of one copy for the templates, as `build_cooperative_copy` makes them."""


def unroll_rounds(copy: CopyValues, region: Region) -> CopyValues:
    """A copy with all rounds unrolled; where sizes allow, a round moves the slowest coordinate only.

    With 32 threads that move 4 elements each into rows of 32::

        element = (round * 32 + thread) * 4        ->   i = thread * 4 / 32 + round * 4
        i = element / 32, k = element % 32              k = thread * 4 % 32

    Where the copy has several strips, each strip moves the fastest coordinate too.
    """
    round_text, strip_text = split_round_by_strip(copy)
    copy = copy | {"unroll": "", "turn": round_text}
    parts = [line.removesuffix(";").split(" = ") for line in copy["coordinates"]]
    step = copy["threads"] * copy["vector"]
    below = int(region.size) // copy["strips"] // int(region.segments[0].extent)
    if copy["rounds"] > 1 and step % below == 0:
        copy["slowest"] = step // below
        first = "thread" if copy["vector"] == 1 else f"thread * {copy['vector']}"
        parts = [[name, value.replace("element", first)] for name, value in parts]
        if round_text:
            parts[0][1] += f" + {round_text} * {copy['slowest']}"
    if strip_text:
        parts[-1][1] += f" + {strip_text} * {copy['strip']}"
    return copy | {"coordinates": [f"{name} = {value};" for name, value in parts]}


def split_round_by_strip(copy: CopyValues) -> tuple[str, str]:
    """C text of the number of a round within its strip, and of the number of the strip; "" where that is 0.

    6 rounds, 2 strips   ->   round % 3, round / 3
    """
    per_strip = copy["rounds"] // copy["strips"]
    if copy["strips"] == 1:
        return "round", ""
    return ("", "round") if per_strip == 1 else (f"round % {per_strip}", f"round / {per_strip}")


def uses_pointer_increments(kernel: LaunchTree) -> bool:
    """Whether the copies of a kernel are strength-reduced: it uses tensor cores or has im2col tiles."""
    tensor = any(isinstance(node, MmaNode) for node in kernel.nodes)
    return tensor or any(b.region.view is not None for b in kernel.buffers)


@dataclass(frozen=True)
class PerRound:
    """How a value of each round is computed before a loop: for the first round only, where the others follow
    by a constant step, or for every round of a strip."""

    round_count: int
    """Rounds whose value is computed, where the step from round to round is not constant."""
    round_step: int | None
    """Constant step of the value from one round of a strip to the next; None if it is not constant."""
    round_index: str
    """C text of the index of a round among those computed; "" where there is one only."""
    strip_offset: str
    """C text of what a strip adds to the value, such as " + round / 3 * 128"; "" where there is one strip."""

    @classmethod
    def for_copy(cls, copy: CopyValues, round_step: int | None, strip_step: int | None) -> PerRound:
        """The plan for a value with these steps from round to round and strip to strip (None: it varies)."""
        if copy["strips"] == 1 or strip_step is None:
            return cls(copy["rounds"], round_step if copy["strips"] == 1 else None, "round", "")
        round_text, strip_text = split_round_by_strip(copy)
        strip_offset = f" + {strip_text} * {strip_step}" if strip_step else ""
        return cls(copy["rounds"] // copy["strips"], round_step, round_text, strip_offset)

    def make_variable(self, kind: str, name: str, value: str) -> CopyValues:
        """Template values of a variable that is computed before the loop."""
        way = "each" if self.round_step is None else "once"
        return {"type": kind, "name": name, "way": way, "value": value, "count": self.round_count}

    def format_round(self, start: str) -> str:
        """C text of the value in one round, from the name of the variable `start`."""
        if self.round_step is None:
            return f"{start}[{self.round_index or 0}]{self.strip_offset}"
        moved = f" + {self.round_index} * {self.round_step}" if self.round_step and self.round_index else ""
        return f"{start}{moved}{self.strip_offset}"


@dataclass
class Preamble:
    """Variables of copies that are computed before loops, one entry a copy."""

    before_loops: list[CopyValues] = field(default_factory=list)
    """Computed before all loops."""
    before_tile_loop: list[CopyValues] = field(default_factory=list)
    """Computed before the tile loop."""

    def add_copy(self, copy: CopyValues, early: Sequence[CopyValues], late: Sequence[CopyValues]) -> None:
        """Append the variables of one copy: `early` before all loops, `late` before the tile loop."""
        for variables, entries in ((early, self.before_loops), (late, self.before_tile_loop)):
            if variables:
                parts = {way: [x for x in variables if x["way"] == way] for way in ("once", "each")}
                entries.append(copy | parts | {"exact": True})


def hoist_copy_starts(
    kernel: LaunchTree, names: CNames, loop: Loop, stages: Sequence[StageNode], copies: list[CopyValues]
) -> tuple[list[CopyValues], Preamble]:
    """The copies of a tile loop with their addresses hoisted, and the variables that this needs."""
    found, starts = [], Preamble()
    for node, copy in zip(stages, copies, strict=True):
        region = node.buffer.region
        inside = names.for_region(region, names.name_shared_coordinates(kernel, region))
        hoisted, early, late = _hoist_source(kernel, copy, node, loop, inside)
        hoisted, target_variables = _hoist_target(hoisted, node, inside)
        found.append(hoisted)
        starts.add_copy(hoisted, early, [*late, *target_variables])
    return found, starts


def _hoist_source(
    kernel: LaunchTree, copy: CopyValues, node: StageNode, loop: Loop, names: CNames
) -> tuple[CopyValues, list[CopyValues], list[CopyValues]]:
    """A copy that reads at offsets from a pointer that the tile loop increments, and the variables computed
    before all loops and before the tile loop. The copy is unchanged where `loop` moves its source by a
    quotient.

        &X[(..n_p_q..) * 3584 + c_0 * 32 + c]
          ->   &X_shared_pointer[X_shared_offset[round]], X_shared_pointer += 32
    """
    source = node.source
    if node.producer_reads is not None or _is_moved_by_quotient(node, loop.name):
        return copy, [], []
    parts = ("pointer", "offset", "inside", "outside")
    pointer, start, inside, outside = names.find_free_names([f"{copy['name']}_{part}" for part in parts])
    fixed = tuple(g for g in source.guards if loop.name not in g.form.find_variables())
    moving = names.format_condition(tuple(g for g in source.guards if loop.name in g.form.find_variables()))
    serial = {x.name: int(x.extent) for x in kernel.nest.loops if x.is_serial and x.name != loop.name}
    around = OuterLoopOffsets(serial, replace(names, zero=names.zero | {loop.name}))
    per_round = PerRound.for_copy(copy, _find_source_round_step(copy, node), int(copy["strip"]))
    early, late = _hoist_offset(around, source, start, per_round)
    test = ""
    if fixed:
        last = f"#{len(node.buffer.region.segments) - 1}"
        strip_step = None if any(last in g.form.find_variables() for g in fixed) else 0
        guard_rounds = PerRound.for_copy(copy, None, strip_step)
        masks, tests = _hoist_guards(around, fixed, inside, outside, guard_rounds)
        early, late, test = early + masks, late + tests, guard_rounds.format_round(inside)
    guard = " && ".join(filter(None, [test, moving]))
    step = int(dict(source.address.terms).get(loop.name, 0))
    kind, of = source.spec.dtype.cuda_name, names[source.spec.name]
    declared = {"type": kind, "name": pointer, "of": of, "step": step}
    element = f"{pointer}[{per_round.format_round(start)}]"
    return copy | {"source": element, "guard": guard, "pointer": declared}, early, late


def _hoist_offset(
    around: OuterLoopOffsets, source: TensorAccess, name: str, per_round: PerRound
) -> tuple[list[CopyValues], list[CopyValues]]:
    """Variables of the source offsets of rounds: those computed before all loops, and before the tile loop.

    X_shared_offset[round] = X_shared_offset_base[round] + r * 3584
    """
    parts = around.split_offset(source)
    if parts is None:
        integer = "long long" if around.names.offset_overflows(source) else "int"
        return [], [per_round.make_variable(integer, name, around.names.format_offset(source))]
    (base,) = around.names.find_free_names([f"{name}_base"])
    constant, adding = parts
    which = "[round]" if per_round.round_step is None else ""
    late = per_round.make_variable("int", name, f"{base}{which} + {adding}")
    return [per_round.make_variable("int", base, f"keep_in_register({constant})")], [late]


def _hoist_guards(
    around: OuterLoopOffsets, guards: tuple[BoundsGuard, ...], name: str, outside: str, per_round: PerRound
) -> tuple[list[CopyValues], list[CopyValues]]:
    """Variables for whether rounds read within bounds: computed before all loops, and before the tile loop.

    X_shared_inside[round] = (X_shared_outside[round] & (1u << r)) == 0
    """
    parts = around.split_condition(guards)
    if parts is None:
        return [], [per_round.make_variable("bool", name, around.names.format_condition(guards))]
    mask, bits = parts
    late = per_round.make_variable("bool", name, f"({outside}[round] & ({bits})) == 0")
    return [per_round.make_variable("unsigned int", outside, f"keep_in_register({mask})")], [late]


def _hoist_target(copy: CopyValues, node: StageNode, names: CNames) -> tuple[CopyValues, list[CopyValues]]:
    """A copy that writes at a byte address computed in the first copy of its tile, and that variable. The
    copy is unchanged where the elements of a vector are not neighbours in the tile.

        &X_shared[c_0_copy][n_p_q][c]   ->   X_shared_address + round * 2560 + c_0_copy * 5120
    """
    if copy["vector"] > 1 and not copy["contiguous"]:
        return copy, []
    buffer = node.buffer
    (start,) = names.find_free_names([f"{copy['name']}_address"])
    strip_step = _convert_step_to_bytes(buffer, int(buffer.strides[-1]) * int(copy["strip"]))
    per_round = PerRound.for_copy(copy, _find_target_round_step(copy, buffer), strip_step)
    address = f"{per_round.format_round(start)} + {format_copy_offset(buffer, copy['parity'])}"
    first = keep_address_in_register(names.format_cell(buffer, make_segment_variables(buffer.region), "0"))
    at = f"shared_element<{buffer.dtype.cuda_name}>({address})"
    return copy | {"target": at, "address": address}, [per_round.make_variable("unsigned int", start, first)]


@dataclass(frozen=True)
class HoistedAddress:
    """Shared-memory address of a tile, or of a part of one, of which a part is computed before a loop."""

    start_values: dict[str, Any]
    """Template values of the variable computed before the loop."""
    source: str
    """C text of the address inside the loop."""


def format_copy_offset(buffer: Buffer, copy: str) -> str:
    """C text of the bytes from the first copy of a pipelined tile to copy `copy`."""
    factor = copy if copy.isidentifier() else f"({copy})"
    return f"{factor} * {count_copy_elements(buffer) * buffer.dtype.bytes}"


def _find_source_round_step(copy: CopyValues, node: StageNode) -> int | None:
    """Elements from one round to the next in the source, where rounds move one coordinate that is in no
    quotient; a constant that an instruction can hold."""
    if copy["rounds"] == copy["strips"]:
        return 0
    if "slowest" not in copy or _is_moved_by_quotient(node, "#0"):
        return None
    return int(dict(node.source.address.terms).get("#0", 0)) * int(copy["slowest"])


def _find_target_round_step(copy: CopyValues, buffer: Buffer) -> int | None:
    """Bytes from one round to the next in the tile; None if not constant."""
    if copy["rounds"] == copy["strips"]:
        return 0
    if "slowest" not in copy:
        return None
    return _convert_step_to_bytes(buffer, int(buffer.strides[0]) * int(copy["slowest"]))


def _convert_step_to_bytes(buffer: Buffer, step: int) -> int | None:
    """Bytes that a step of `step` elements moves the stored address; None if the swizzle makes it vary."""
    distance = buffer.compute_stored_distance(step)
    return None if distance is None else distance * buffer.dtype.bytes


def _is_moved_by_quotient(node: StageNode, name: str) -> bool:
    """Whether a variable appears in a quotient or remainder of the source address."""
    return any(not isinstance(a, str) and name in a.find_variables() for a, _ in node.source.address.terms)
