"""Registers to slots: registers that are never live together share a row of lanes."""

from __future__ import annotations

from heapq import heappop, heappush

from ekc.emulator.ptx.cfg import Block, find_live_in, list_successors
from ekc.emulator.ptx.program import TYPE_BYTES

CLASS_BY_BYTES = {1: "H", 2: "H", 4: "W", 8: "D"}


def find_register_class(type_name: str) -> str:
    """P (predicate), H (16 bit), W (32 bit) or D (64 bit)."""
    return "P" if type_name == "pred" else CLASS_BY_BYTES.get(TYPE_BYTES[type_name], "Q")


def find_lifetimes(blocks: list[Block]) -> tuple[dict[str, tuple[int, int]], set[str]]:
    """First and last statement of every register's life, and those that are live at the entry."""
    live = find_live_in(blocks)
    span: dict[str, tuple[int, int]] = {}
    place = 0

    def touch(name: str, at: int) -> None:
        first, last = span.get(name, (at, at))
        span[name] = (min(first, at), max(last, at))

    for block in blocks:
        for name in live[block.number]:
            touch(name, place)
        for one in [*block.code, *([block.exit.instruction] if block.exit.instruction else [])]:
            place += 1
            for name in one.reads + one.writes:
                touch(name, place)
        place += 1
        for after in list_successors(block):
            for name in live[after]:
                touch(name, place)
    return span, live[0] if live else set()


def allocate_slots(
    blocks: list[Block], types: dict[str, str]
) -> tuple[dict[str, tuple[str, int]], dict[str, int], set[str]]:
    """(class, slot) of every register, slots per class, registers live at the entry."""
    span, early = find_lifetimes(blocks)
    free: dict[str, list[int]] = {}
    busy: dict[str, list[tuple[int, int]]] = {}
    count: dict[str, int] = {}
    place: dict[str, tuple[str, int]] = {}
    for name, (first, last) in sorted(span.items(), key=lambda item: item[1]):
        kind = find_register_class(types[name])
        spare, live = free.setdefault(kind, []), busy.setdefault(kind, [])
        while live and live[0][0] < first:
            heappush(spare, heappop(live)[1])
        if spare:
            slot = heappop(spare)
        else:
            slot = count.get(kind, 0)
            count[kind] = slot + 1
        place[name] = (kind, slot)
        heappush(live, (last, slot))
    return place, count, early


def allocate_separate_slots(
    blocks: list[Block], types: dict[str, str]
) -> tuple[dict[str, tuple[str, int]], dict[str, int], set[str]]:
    """As `allot`, but every register has a row of its own: quick to say, dear in memory; none is early."""
    count: dict[str, int] = {}
    place: dict[str, tuple[str, int]] = {}
    for block in blocks:
        for one in [*block.code, *([block.exit.instruction] if block.exit.instruction else [])]:
            for name in one.reads + one.writes:
                if name not in place:
                    kind = find_register_class(types[name])
                    place[name] = (kind, count.get(kind, 0))
                    count[kind] = count.get(kind, 0) + 1
    return place, count, set()
