"""Copies that walk: where each round of them starts, and where it goes, is worked out before the loop that
brings the tiles, and the loop only adds.

In kernels for tensor cores, where a few instructions do all the arithmetic and every other one shows, and in
those whose tiles are those of a view: the quotients and remainders of a joint loop, and the guards on what
they give, change with the loops outside (a convolution's taps), not with the one that brings the tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ekc.codegen.around import Around, kept, kept_place
from ekc.codegen.names import Names
from ekc.codegen.rounds import in_strip
from ekc.codegen.shared_memory import copy_elements
from ekc.ir.access import Access, Buffer, Guard
from ekc.ir.nodes import Kernel, MmaNode, StageNode, walk
from ekc.ir.program import Loop
from ekc.ir.region import segment_cell

Text = dict[str, Any]


def walks(kernel: Kernel) -> bool:
    """Whether some tile of a kernel feeds tensor cores, or is one of a view."""
    tensor = any(isinstance(node, MmaNode) for node in walk(kernel.body))
    return tensor or any(b.region.view is not None for b in kernel.buffers)


@dataclass(frozen=True)
class Each:
    """What is told before a loop of the rounds of a copy: of one round, or of each of a strip; the others
    are numbers apart."""

    count: int
    """How many rounds it is told of, unless one is enough."""
    apart: int | None
    """From one round of a strip to the next, where that is a number: then one is enough."""
    turn: str
    """Which of these a round is, in text; nothing where there is but one."""
    further: str
    """What a strip adds."""

    @classmethod
    def of(cls, text: Text, apart: int | None, strip_apart: int | None) -> Each:
        """`apart`: from one round of a strip to the next, where that is a number; `strip_apart`: from one
        strip to the next."""
        if text["strips"] == 1 or strip_apart is None:
            return cls(text["rounds"], apart if text["strips"] == 1 else None, "round", "")
        turn, again = in_strip(text)
        further = f" + {again} * {strip_apart}" if strip_apart else ""
        return cls(text["rounds"] // text["strips"], apart, turn, further)

    def told(self, kind: str, name: str, value: str) -> Text:
        """A variable worked out before the loop."""
        way = "each" if self.apart is None else "once"
        return {"type": kind, "name": name, "way": way, "value": value, "count": self.count}

    def of_round(self, start: str) -> str:
        """The text of what was told, in one round."""
        if self.apart is None:
            return f"{start}[{self.turn or 0}]{self.further}"
        return f"{start}{f' + {self.turn} * {self.apart}' if self.apart and self.turn else ''}{self.further}"


@dataclass
class Starts:
    """What tells where rounds of copies start and go: before all loops, and before the one that brings the
    tiles."""

    early: list[Text] = field(default_factory=list)
    late: list[Text] = field(default_factory=list)

    def add(self, copy: Text, early: Sequence[Text], late: Sequence[Text]) -> None:
        """What is told of one copy."""
        for told, where in ((early, self.early), (late, self.late)):
            if told:
                parts = {way: [x for x in told if x["way"] == way] for way in ("once", "each")}
                where.append(copy | parts | {"exact": True})


def walked(
    kernel: Kernel, names: Names, loop: Loop, stages: Sequence[StageNode], texts: list[Text]
) -> tuple[list[Text], Starts]:
    """The texts of all copies that a loop makes in a kernel that walks, and what tells where each starts and
    goes."""
    found, starts = [], Starts()
    for node, text in zip(stages, texts, strict=True):
        region = node.buffer.region
        inside = names.within(region, names.shared_coordinates(kernel, region))
        copy, early, here = _from(kernel, text, node, loop, inside)
        copy, there = _to(copy, node, inside)
        found.append(copy)
        starts.add(copy, early, [*here, *there])
    return found, starts


def _from(
    kernel: Kernel, text: Text, node: StageNode, loop: Loop, names: Names
) -> tuple[Text, list[Text], list[Text]]:
    """The text of a copy whose rounds start so far from a pointer that the loop moves on, and what tells how
    far, early and late; as it was where `loop` moves the source by a quotient or remainder.

        &X[(..n_p_q..) * 3584 + c_0 * 32 + c]   ->   &X_shared_walk[X_shared_from[round]], X_shared_walk += 32
    """
    source = node.source
    if node.produced is not None or _turns(node, loop.name):
        return text, [], []
    walk, start, inside = names.free([f"{text['name']}_{part}" for part in ("walk", "from", "inside")])
    fixed = tuple(g for g in source.guards if loop.name not in g.form.variables())
    moving = names.condition(tuple(g for g in source.guards if loop.name in g.form.variables()))
    around = Around.of(kernel, loop, replace(names, zero=names.zero | {loop.name}))
    each = Each.of(text, _apart_from(text, node), int(text["strip"]))
    early, late = _start(around, source, start, each)
    test = ""
    if fixed:
        last = f"#{len(node.buffer.region.segments) - 1}"
        whether = Each.of(text, None, None if any(last in g.form.variables() for g in fixed) else 0)
        masks, tests = _inside(around, fixed, inside, whether)
        early, late, test = early + masks, late + tests, whether.of_round(inside)
    guard = " && ".join(filter(None, [test, moving]))
    step = int(dict(source.address.terms).get(loop.name, 0))
    pointer = {"type": source.spec.dtype.cuda, "name": walk, "of": names[source.spec.name], "step": step}
    place = f"{walk}[{each.of_round(start)}]"
    return text | {"source": place, "guard": guard, "walk": pointer}, early, late


def _start(around: Around, source: Access, name: str, each: Each) -> tuple[list[Text], list[Text]]:
    """How far rounds start, told early and late.

    X_shared_from[round] = X_shared_from_base[round] + r * 3584
    """
    parted = around.offset(source)
    if parted is None:
        far = "long long" if around.names.far_offset(source) else "int"
        return [], [each.told(far, name, around.names.offset(source))]
    (base,) = around.names.free([f"{name}_base"])
    still, adding = parted
    which = "[round]" if each.apart is None else ""
    return [each.told("int", base, kept(still))], [each.told("int", name, f"{base}{which} + {adding}")]


def _inside(
    around: Around, guards: tuple[Guard, ...], name: str, each: Each
) -> tuple[list[Text], list[Text]]:
    """Whether rounds read inside, told early and late.

    X_shared_inside[round] = (X_shared_inside_never[round] & (1u << r)) == 0
    """
    parted = around.condition(guards)
    if parted is None:
        return [], [each.told("bool", name, around.names.condition(guards))]
    (never,) = around.names.free([f"{name}_never"])
    mask, turn = parted
    late = each.told("bool", name, f"({never}[round] & ({turn})) == 0")
    return [each.told("unsigned int", never, kept(mask))], [late]


def _to(text: Text, node: StageNode, names: Names) -> tuple[Text, list[Text]]:
    """The text of a copy that goes where it was told in the first copy of its tile, and what tells it, in
    bytes; as it was where neighbours in a vector are none in the tile.

        &X_shared[c_0_copy][n_p_q][c]   ->   X_shared_to + round * 2560 + c_0_copy * 5120
    """
    if text["vector"] > 1 and not text["contiguous"]:
        return text, []
    buffer = node.buffer
    (start,) = names.free([f"{text['name']}_to"])
    each = Each.of(text, _apart_to(text, buffer), _strips_to(text, buffer))
    place = f"{each.of_round(start)} + {in_copy(buffer, text['parity'])}"
    first = kept_place(names.cell(buffer, segment_cell(buffer.region), "0"))
    at = f"shared_at<{buffer.dtype.cuda}>({place})"
    return text | {"target": at, "place": place}, [each.told("unsigned int", start, first)]


def in_copy(buffer: Buffer, copy: str) -> str:
    """Bytes from the first copy of a tile to the one in use."""
    factor = copy if copy.isidentifier() else f"({copy})"
    return f"{factor} * {copy_elements(buffer) * buffer.dtype.bytes}"


def _apart_from(text: Text, node: StageNode) -> int | None:
    """Elements from one round to the next in the source, where they move one plain coordinate: a number that
    an instruction can hold."""
    if text["rounds"] == text["strips"]:
        return 0
    if "slowest" not in text or _turns(node, "#0"):
        return None
    return int(dict(node.source.address.terms).get("#0", 0)) * int(text["slowest"])


def _apart_to(text: Text, buffer: Buffer) -> int | None:
    """Bytes from one round to the next in the tile, where that is a number."""
    if text["rounds"] == text["strips"]:
        return 0
    if "slowest" not in text:
        return None
    return _in_bytes(buffer, int(buffer.strides[0]) * int(text["slowest"]))


def _strips_to(text: Text, buffer: Buffer) -> int | None:
    """Bytes from one strip to the next in the tile, where that is a number."""
    return _in_bytes(buffer, int(buffer.strides[-1]) * int(text["strip"]))


def _in_bytes(buffer: Buffer, step: int) -> int | None:
    """Of a step of so many elements, unless chunks change places on it."""
    apart = buffer.apart(step)
    return None if apart is None else apart * buffer.dtype.bytes


def _turns(node: StageNode, name: str) -> bool:
    """Whether a variable moves the source by a quotient or remainder."""
    return any(not isinstance(a, str) and name in a.variables() for a, _ in node.source.address.terms)
