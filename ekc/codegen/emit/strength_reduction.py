"""Copies that walk: where each round of them starts, and where it goes, is worked out before the loop that
brings the tiles, and the loop only adds.

In kernels for tensor cores, where a few instructions do all the arithmetic and every other one shows, and in
those whose tiles are those of a view: the quotients and remainders of a joint loop, and the guards on what
they give, change with the loops outside (a convolution's taps), not with the one that brings the tiles.

What loops around a walking copy add to it: a few numbers that are the same for all of its rounds.

What is left of a round without them never changes. It is worked out once and kept in a register; the compiler
would join the two again, and then work out both for each tap of a convolution.

Rounds of a copy by all threads: what a thread adds to an address, worked out once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ekc.codegen.emit.names import CNames
from ekc.codegen.emit.shared_memory import count_copy_elements
from ekc.ir.affine import AffineForm
from ekc.ir.lowering.buffers import BoundsGuard, Buffer, TensorAccess
from ekc.ir.lowering.nodes import LaunchTree, MmaNode, StageNode, walk_nodes
from ekc.ir.lowering.regions import Region, make_segment_variables
from ekc.ir.program import Loop

MASK_BITS = 32
"""Of a mask."""


@dataclass(frozen=True)
class OuterLoopOffsets:
    """The loops that each thread runs, but for the one that brings the tiles."""

    extents: dict[str, int]
    names: CNames

    @classmethod
    def for_loop(cls, kernel: LaunchTree, loop: Loop, names: CNames) -> OuterLoopOffsets:
        """Those around `loop`; `names` are those that rounds are told by."""
        own = {x.name: int(x.extent) for x in kernel.nest.loops if x.is_serial and x.name != loop.name}
        return cls(own, names)

    def split_offset(self, source: TensorAccess) -> tuple[str, str] | None:
        """Elements from the start of a tensor: what never changes of them, and what the loops add.

        ((..n_p_q..) + r) * 3584   ->   (..n_p_q..) * 3584, r * 3584
        """
        adding = self._find_loop_terms(source.address)
        if not adding or self._has_loop_in_quotient(source.address) or self.names.offset_overflows(source):
            return None
        still = replace(self.names, zero=self.names.zero | dict(adding).keys())
        return still.format_offset(source), self.names.format_linear(AffineForm(adding))

    def split_condition(self, guards: tuple[BoundsGuard, ...]) -> tuple[str, str] | None:
        """A mask with a bit for each turn of the loops that leads outside, and which bits are meant.

        n < 16 && r + P - 1 in 0..13 && s + Q - 1 in 0..13   ->   n < 16 ? .. : ~0u, 1u << r | 1u << (s + 3)
        """
        moved = [(g, self._find_loop_terms(g.form)) for g in guards if self._find_loop_terms(g.form)]
        counts = [self.extents[name] for _, adding in moved for name, _ in adding]
        plain = not any(
            self._has_loop_in_quotient(g.form) or self.names.form_overflows(g.form) for g in guards
        )
        alone = all(len(adding) == 1 for _, adding in moved)
        if not moved or not plain or not alone or sum(counts) > MASK_BITS or self.names.divides_wide:
            return None
        masks, turns, first = [], [], 0
        for (g, ((loop, step),)), count in zip(moved, counts, strict=True):
            left = AffineForm(tuple(t for t in g.form.terms if t[0] != loop), g.form.const)
            mask = f"out_of_bounds_mask<{count}, {step}>({self.names.format_linear(left)}, {g.extent})"
            masks.append(f"{mask} << {first}" if first else mask)
            turns.append(f"1u << ({self.names[loop]} + {first})" if first else f"1u << {self.names[loop]}")
            first += count
        still = self.names.format_condition(tuple(g for g in guards if not self._find_loop_terms(g.form)))
        mask = " | ".join(masks)
        return f"{still} ? {mask} : ~0u" if still else mask, " | ".join(turns)

    def _has_loop_in_quotient(self, form: AffineForm) -> bool:
        """Whether some of the loops are in a quotient or remainder."""
        return any(not isinstance(a, str) and a.find_variables() & self.extents.keys() for a, _ in form.terms)

    def _find_loop_terms(self, form: AffineForm) -> tuple[tuple[str, int], ...]:
        """The terms of a form that are loops around."""
        return tuple((a, int(c)) for a, c in form.terms if isinstance(a, str) and a in self.extents)


def keep_in_register(number: str) -> str:
    """A number that stays in a register."""
    return f"keep_in_register({number})"


def keep_address_in_register(element: str) -> str:
    """The place of an element of a shared tile, likewise."""
    return keep_in_register(f"shared_address(&{element})")


def unroll_rounds(text: dict[str, Any], region: Region) -> dict[str, Any]:
    """A copy with its rounds all written out, which move the slowest coordinate alone where sizes allow.

    With 32 threads that move 4 elements each into rows of 32::

        element = (round * 32 + thread) * 4        ->   i = thread * 4 / 32 + round * 4
        i = element / 32, k = element % 32              k = thread * 4 % 32

    Of several strips each moves the fastest coordinate too.
    """
    turn, again = split_round_by_strip(text)
    text = text | {"unroll": "", "turn": turn}
    parts = [line.removesuffix(";").split(" = ") for line in text["coordinates"]]
    step = text["threads"] * text["vector"]
    below = int(region.size) // text["strips"] // int(region.segments[0].extent)
    if text["rounds"] > 1 and step % below == 0:
        text["slowest"] = step // below
        at = "thread" if text["vector"] == 1 else f"thread * {text['vector']}"
        parts = [[name, value.replace("element", at)] for name, value in parts]
        if turn:
            parts[0][1] += f" + {turn} * {text['slowest']}"
    if again:
        parts[-1][1] += f" + {again} * {text['strip']}"
    return text | {"coordinates": [f"{name} = {value};" for name, value in parts]}


def split_round_by_strip(text: dict[str, Any]) -> tuple[str, str]:
    """Which round of its strip a round is, and of which strip; nothing where there is but one.

    6 rounds, 2 strips   ->   round % 3, round / 3
    """
    each = text["rounds"] // text["strips"]
    if text["strips"] == 1:
        return "round", ""
    return ("", "round") if each == 1 else (f"round % {each}", f"round / {each}")


CopyValues = dict[str, Any]


def uses_pointer_increments(kernel: LaunchTree) -> bool:
    """Whether some tile of a kernel feeds tensor cores, or is one of a view."""
    tensor = any(isinstance(node, MmaNode) for node in walk_nodes(kernel.body))
    return tensor or any(b.region.view is not None for b in kernel.buffers)


@dataclass(frozen=True)
class PerRound:
    """What is told before a loop of the rounds of a copy: of one round, or of each of a strip; the others
    are numbers apart."""

    round_count: int
    """How many rounds it is told of, unless one is enough."""
    round_step: int | None
    """From one round of a strip to the next, where that is a number: then one is enough."""
    round_index: str
    """Which of these a round is, in text; nothing where there is but one."""
    strip_offset: str
    """What a strip adds."""

    @classmethod
    def for_copy(cls, text: CopyValues, round_step: int | None, strip_step: int | None) -> PerRound:
        """`apart`: from one round of a strip to the next, where that is a number; `strip_apart`: from one
        strip to the next."""
        if text["strips"] == 1 or strip_step is None:
            return cls(text["rounds"], round_step if text["strips"] == 1 else None, "round", "")
        turn, again = split_round_by_strip(text)
        further = f" + {again} * {strip_step}" if strip_step else ""
        return cls(text["rounds"] // text["strips"], round_step, turn, further)

    def make_variable(self, kind: str, name: str, value: str) -> CopyValues:
        """A variable worked out before the loop."""
        way = "each" if self.round_step is None else "once"
        return {"type": kind, "name": name, "way": way, "value": value, "count": self.round_count}

    def format_round(self, start: str) -> str:
        """The text of what was told, in one round."""
        if self.round_step is None:
            return f"{start}[{self.round_index or 0}]{self.strip_offset}"
        return f"{start}{f' + {self.round_index} * {self.round_step}' if self.round_step and self.round_index else ''}{self.strip_offset}"


@dataclass
class Preamble:
    """What tells where rounds of copies start and go: before all loops, and before the one that brings the
    tiles."""

    before_loops: list[CopyValues] = field(default_factory=list)
    before_tile_loop: list[CopyValues] = field(default_factory=list)

    def add_copy(self, copy: CopyValues, early: Sequence[CopyValues], late: Sequence[CopyValues]) -> None:
        """What is told of one copy."""
        for told, where in ((early, self.before_loops), (late, self.before_tile_loop)):
            if told:
                parts = {way: [x for x in told if x["way"] == way] for way in ("once", "each")}
                where.append(copy | parts | {"exact": True})


def hoist_copy_starts(
    kernel: LaunchTree, names: CNames, loop: Loop, stages: Sequence[StageNode], texts: list[CopyValues]
) -> tuple[list[CopyValues], Preamble]:
    """The texts of all copies that a loop makes in a kernel that walks, and what tells where each starts and
    goes."""
    found, starts = [], Preamble()
    for node, text in zip(stages, texts, strict=True):
        region = node.buffer.region
        inside = names.for_region(region, names.name_shared_coordinates(kernel, region))
        copy, early, here = _hoist_source(kernel, text, node, loop, inside)
        copy, there = _hoist_target(copy, node, inside)
        found.append(copy)
        starts.add_copy(copy, early, [*here, *there])
    return found, starts


def _hoist_source(
    kernel: LaunchTree, text: CopyValues, node: StageNode, loop: Loop, names: CNames
) -> tuple[CopyValues, list[CopyValues], list[CopyValues]]:
    """The text of a copy whose rounds start so far from a pointer that the loop moves on, and what tells how
    far, early and late; as it was where `loop` moves the source by a quotient or remainder.

        &X[(..n_p_q..) * 3584 + c_0 * 32 + c]   ->   &X_shared_pointer[X_shared_offset[round]], X_shared_pointer += 32
    """
    source = node.source
    if node.producer_reads is not None or _is_moved_by_quotient(node, loop.name):
        return text, [], []
    pointer, start, inside, outside = names.find_free_names(
        [f"{text['name']}_{part}" for part in ("pointer", "offset", "inside", "outside")]
    )
    fixed = tuple(g for g in source.guards if loop.name not in g.form.find_variables())
    moving = names.format_condition(tuple(g for g in source.guards if loop.name in g.form.find_variables()))
    around = OuterLoopOffsets.for_loop(kernel, loop, replace(names, zero=names.zero | {loop.name}))
    each = PerRound.for_copy(text, _find_source_round_step(text, node), int(text["strip"]))
    early, late = _hoist_offset(around, source, start, each)
    test = ""
    if fixed:
        last = f"#{len(node.buffer.region.segments) - 1}"
        whether = PerRound.for_copy(
            text, None, None if any(last in g.form.find_variables() for g in fixed) else 0
        )
        masks, tests = _hoist_guards(around, fixed, inside, outside, whether)
        early, late, test = early + masks, late + tests, whether.format_round(inside)
    guard = " && ".join(filter(None, [test, moving]))
    step = int(dict(source.address.terms).get(loop.name, 0))
    declared = {
        "type": source.spec.dtype.cuda_name,
        "name": pointer,
        "of": names[source.spec.name],
        "step": step,
    }
    element = f"{pointer}[{each.format_round(start)}]"
    return text | {"source": element, "guard": guard, "pointer": declared}, early, late


def _hoist_offset(
    around: OuterLoopOffsets, source: TensorAccess, name: str, each: PerRound
) -> tuple[list[CopyValues], list[CopyValues]]:
    """How far rounds start, told early and late.

    X_shared_offset[round] = X_shared_offset_base[round] + r * 3584
    """
    parted = around.split_offset(source)
    if parted is None:
        far = "long long" if around.names.offset_overflows(source) else "int"
        return [], [each.make_variable(far, name, around.names.format_offset(source))]
    (base,) = around.names.find_free_names([f"{name}_base"])
    still, adding = parted
    which = "[round]" if each.round_step is None else ""
    return [each.make_variable("int", base, keep_in_register(still))], [
        each.make_variable("int", name, f"{base}{which} + {adding}")
    ]


def _hoist_guards(
    around: OuterLoopOffsets, guards: tuple[BoundsGuard, ...], name: str, outside: str, each: PerRound
) -> tuple[list[CopyValues], list[CopyValues]]:
    """Whether rounds read inside, told early and late.

    X_shared_inside[round] = (X_shared_outside[round] & (1u << r)) == 0
    """
    parted = around.split_condition(guards)
    if parted is None:
        return [], [each.make_variable("bool", name, around.names.format_condition(guards))]
    mask, turn = parted
    late = each.make_variable("bool", name, f"({outside}[round] & ({turn})) == 0")
    return [each.make_variable("unsigned int", outside, keep_in_register(mask))], [late]


def _hoist_target(text: CopyValues, node: StageNode, names: CNames) -> tuple[CopyValues, list[CopyValues]]:
    """The text of a copy that goes where it was told in the first copy of its tile, and what tells it, in
    bytes; as it was where neighbours in a vector are none in the tile.

        &X_shared[c_0_copy][n_p_q][c]   ->   X_shared_address + round * 2560 + c_0_copy * 5120
    """
    if text["vector"] > 1 and not text["contiguous"]:
        return text, []
    buffer = node.buffer
    (start,) = names.find_free_names([f"{text['name']}_address"])
    each = PerRound.for_copy(
        text, _find_target_round_step(text, buffer), _find_target_strip_step(text, buffer)
    )
    address = f"{each.format_round(start)} + {format_copy_offset(buffer, text['parity'])}"
    first = keep_address_in_register(names.format_cell(buffer, make_segment_variables(buffer.region), "0"))
    at = f"shared_element<{buffer.dtype.cuda_name}>({address})"
    return text | {"target": at, "address": address}, [each.make_variable("unsigned int", start, first)]


def format_copy_offset(buffer: Buffer, copy: str) -> str:
    """Bytes from the first copy of a tile to the one in use."""
    factor = copy if copy.isidentifier() else f"({copy})"
    return f"{factor} * {count_copy_elements(buffer) * buffer.dtype.bytes}"


def _find_source_round_step(text: CopyValues, node: StageNode) -> int | None:
    """Elements from one round to the next in the source, where they move one plain coordinate: a number that
    an instruction can hold."""
    if text["rounds"] == text["strips"]:
        return 0
    if "slowest" not in text or _is_moved_by_quotient(node, "#0"):
        return None
    return int(dict(node.source.address.terms).get("#0", 0)) * int(text["slowest"])


def _find_target_round_step(text: CopyValues, buffer: Buffer) -> int | None:
    """Bytes from one round to the next in the tile, where that is a number."""
    if text["rounds"] == text["strips"]:
        return 0
    if "slowest" not in text:
        return None
    return _convert_step_to_bytes(buffer, int(buffer.strides[0]) * int(text["slowest"]))


def _find_target_strip_step(text: CopyValues, buffer: Buffer) -> int | None:
    """Bytes from one strip to the next in the tile, where that is a number."""
    return _convert_step_to_bytes(buffer, int(buffer.strides[-1]) * int(text["strip"]))


def _convert_step_to_bytes(buffer: Buffer, step: int) -> int | None:
    """Of a step of so many elements, unless chunks change places on it."""
    apart = buffer.find_stored_distance(step)
    return None if apart is None else apart * buffer.dtype.bytes


def _is_moved_by_quotient(node: StageNode, name: str) -> bool:
    """Whether a variable moves the source by a quotient or remainder."""
    return any(not isinstance(a, str) and name in a.find_variables() for a, _ in node.source.address.terms)
