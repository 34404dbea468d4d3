"""Energy of kernels of equal speed, in rotation on a hot board: what there is to save without slowing down.

A group is about equally fast kernels of one operator: near-equals of the recording, the records and the plan,
or one kernel in several orders with the same instruction counts. Its reference is the fastest by a short
timing, which who asks for speed alone would take; it also runs under a second name, as a control. Every
kernel is compared with the reference round by round (`benchmarks.gpu.contenders`), so that what a group shows
does not depend on which kernel was lucky.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ekc
from benchmarks.gpu import plan
from benchmarks.gpu.contenders import SLICE_PRICE_S, SLICE_S, Group, Ours, SliceLog, read_group, rotate
from benchmarks.gpu.equals_report import CONTROL, EQUALLY_FAST, PART, format_groups, read_groups
from benchmarks.gpu.folder import RECORDING, TUNING
from benchmarks.gpu.items import Item, list_recorded_items, list_small_items
from benchmarks.gpu.kit import Budget, Kit, Timed
from benchmarks.gpu.orders import list_order_variants
from ekc.devices.recording import read_recording
from ekc.errors import EkcError
from ekc.ir.schedule.schedule import Schedule
from ekc.search.database.database import RecordStore, to_canonical_json

MINUTES = 6.0
TRIED = 12
"""Known schedules of an operator that are timed."""
MEMBERS, DRY_MEMBERS = 4, 2
"""Kernels of a group, beside the control."""
ROUNDS, DRY_ROUNDS = 24, 3
"""Rounds of a group over all calls, at most."""
GOOD_ROUNDS, LEAST_ROUNDS = 8, 3
"""Rounds of a group in one call, beside the first, which warms up: what it should have, and at least has. Of
eight rounds on a scripted H100, 99 % found a saving of 2 %; of six, 86 %."""
PREPARATION_S = 8.0
"""Seconds to time and to check the kernels of a group on an H100."""


@dataclass(frozen=True)
class GroupPlan:
    """A group that is to be measured."""

    name: str
    item: Item
    choose: Callable[[Kit, Item, int], dict[str, Timed]]
    """The kernels by name, fastest first; raises `EkcError` where there are too few."""


class _TooFewKernels(EkcError):
    """A group has nothing to compare."""


def run(kit: Kit, budget: Budget) -> None:
    """Groups in turn, those with fewest rounds first; a row for each group, and for each slice."""
    done = {group.name: group for group in read_groups(kit.folder)}
    plans = [one for one in list_plans(kit.dry) if _count_missing_rounds(kit, done.get(one.name))]
    plans = [one for one in plans if not _is_refused(kit, one)]
    plans.sort(key=lambda one: len(done[one.name].rounds) if one.name in done else 0)
    round_s = (MEMBERS + 1) * SLICE_PRICE_S
    good_s, least_s = (PREPARATION_S + (1 + n) * round_s for n in (GOOD_ROUNDS, LEAST_ROUNDS))
    for one, share in budget.share_time(plans, *((1.0, 0.0) if kit.dry else (good_s, least_s))):
        ends = budget.compute_left_s() - share
        try:
            _rotate_group(kit, budget, one, ends)
        except _TooFewKernels as problem:
            kit.folder.add_row(PART, one.name, str(problem), known=_digest_known(kit, one.item))
        except EkcError as problem:
            chosen = any(group.name == one.name for group in read_groups(kit.folder))
            facts = {"group": one.name, "kernel": "not rotated"} if chosen else {}
            kit.folder.add_row(PART, one.name + ", problem" * chosen, str(problem), **facts)


def list_plans(is_dry: bool) -> list[GroupPlan]:
    """The groups, most telling first: below the power cap, at it (float16), and in other orders."""
    if is_dry:
        product, matvec = list_small_items()
        return [GroupPlan(f"{product.name}, orders", product, _choose_orders), plan_equals(matvec)]
    product, convolution, matvec, half = list_recorded_items()
    softmax = Item("softmax 4096x4096 float32", ekc.softmax((4096, 4096), dtype="float32"), "softmax")
    return [
        plan_equals(product),
        GroupPlan(f"{product.name}, orders", product, _choose_orders),
        *map(plan_equals, (matvec, half, convolution, softmax)),
        *(GroupPlan(f"{item.name}, orders", item, _choose_orders) for item in (half, matvec)),
    ]


def plan_equals(item: Item) -> GroupPlan:
    """The group of about equally fast kernels of an operator."""
    return GroupPlan(f"{item.name}, equals", item, _choose_equals)


def _is_refused(kit: Kit, one: GroupPlan) -> bool:
    """Whether a group had too few kernels, and the folder has no more of them now."""
    row = kit.folder.find_row(PART, one.name)
    return row is not None and "known" in row and row["known"] == _digest_known(kit, one.item)


def _digest_known(kit: Kit, item: Item) -> str:
    """Digest of the schedules that the folder has of an operator."""
    digests = "".join(sorted(one.digest for one in _list_known_schedules(kit, item)))
    return hashlib.sha256(digests.encode()).hexdigest()


def _count_missing_rounds(kit: Kit, group: Group | None) -> int:
    return (DRY_ROUNDS if kit.dry else ROUNDS) - (len(group.rounds) if group else 0)


def _rotate_group(kit: Kit, budget: Budget, one: GroupPlan, ends: float) -> None:
    """Rounds of a group until `ends`, the seconds that the budget has left then. Raises `EkcError`."""
    row = kit.folder.find_row(PART, one.name)
    if row is None or row["status"] != "ok":
        row = _write_group(kit, one)
    named = {name: Schedule.from_json(text) for name, text in row["schedules"].items()}
    kernels = {schedule.digest: make for schedule, make in kit.compile_ahead(named.values())}
    contenders = [Ours(name, kit.device, kernels[schedule.digest]()) for name, schedule in named.items()]
    contenders.append(replace(contenders[0], name=CONTROL))
    group = read_group(kit.folder, PART, row, row["short_s"])
    began = budget.compute_left_s()
    rounds_begun = [0]

    def is_over() -> bool:
        left = budget.compute_left_s()
        round_s = (began - left) / rounds_begun[0] if rounds_begun[0] else 0.0
        rounds_begun[0] += 1
        return not kit.dry and left - round_s < ends

    log, missing = SliceLog(kit.folder, PART, one.name), _count_missing_rounds(kit, group)
    rotate(contenders, missing, SLICE_S, kit.seed, log.write, log.write_problem, is_over, group.next_round)


def _write_group(kit: Kit, one: GroupPlan) -> dict[str, Any]:
    """Choose the kernels of a group, write them and return the row."""
    members = one.choose(kit, one.item, DRY_MEMBERS if kit.dry else MEMBERS)
    if len(members) < 2:
        raise _TooFewKernels("one kernel alone is fast, nothing to compare it with")
    schedules = {name: member.schedule.to_json() for name, member in members.items()}
    short_s = {name: member.timing.latency_s for name, member in members.items()}
    clocks = {name: member.timing.conditions.clock_mhz for name, member in members.items()}
    facts = {"schedules": schedules, "short_s": short_s, "short_mhz": clocks}
    return kit.folder.add_row(PART, one.name, "ok", **facts)


def _choose_equals(kit: Kit, item: Item, count: int) -> dict[str, Timed]:
    """Right schedules near the fastest right one."""
    return _choose_right(kit, count, [(one.digest, one) for one in _list_known_schedules(kit, item)])


def _choose_orders(kit: Kit, item: Item, count: int) -> dict[str, Timed]:
    """The fastest right schedule of the known ones that has other orders, and these."""
    row = kit.folder.find_row(PART, plan_equals(item).name)
    if row is not None and row["status"] == "ok":
        bases = [Schedule.from_json(text) for text in row["schedules"].values()]
    else:
        bases = [one.schedule for one in _choose_equals(kit, item, count).values()]
    for base in bases:
        variants = list(list_order_variants(base, kit.device.limits))
        if variants:
            return _choose_right(kit, count, [("as it is", base), *variants])
    raise _TooFewKernels("no fast schedule has another order with the same counts")


def _choose_right(kit: Kit, count: int, named: Sequence[tuple[str, Schedule]]) -> dict[str, Timed]:
    """Right schedules, fastest first, at most `count`, none slower than `EQUALLY_FAST` times the first
    of them. Raises the last error where no schedule is right."""
    names = {schedule.digest: name for name, schedule in named}
    timed, problem = kit.time_schedules(schedule for _, schedule in named)
    right: list[Timed] = []
    for one in timed:
        if right and (len(right) == count or one.timing.latency_s > EQUALLY_FAST * right[0].timing.latency_s):
            break
        if not kit.judge(one.schedule, one.kernel)[0]:
            right.append(one)
    if not right:
        raise problem or EkcError("no schedule is known: run prepare, record, pack or tune before")
    return {names[one.schedule.digest]: one for one in right}


def _list_known_schedules(kit: Kit, item: Item) -> list[Schedule]:
    """The fastest schedules of the folder, fastest first; without any, those of the plan or of the search
    without a measurement."""
    measured = {one.digest: (latency_s, one) for one, latency_s in _read_measured(kit, item)}
    known = [schedule for _, schedule in sorted(measured.values(), key=lambda pair: pair[0])]
    return known[:TRIED] or plan.list_schedules(kit, item, DRY_MEMBERS if kit.dry else TRIED)


def _read_measured(kit: Kit, item: Item) -> Iterator[tuple[Schedule, float]]:
    """Schedules of an operator in the recording and in the records, with their latencies."""
    recording, records = kit.folder.path / RECORDING, kit.folder.path / TUNING
    if recording.exists():
        for row in read_recording(recording).rows:
            if row.timings and not row.failure and row.schedule.op == item.op:
                yield row.schedule, row.find_timing().latency_s
    if records.exists():
        with RecordStore(records, create=False) as store:
            for timing in store.read_rows(operator=to_canonical_json(item.op.to_json()), kind="timing"):
                if timing.status == "ok":
                    yield Schedule.from_json(timing.schedule), float(timing.payload["latency_s"])


def make_table(kit: Kit) -> str:
    """The verdicts on all groups, and why others have none."""
    groups = read_groups(kit.folder)
    measured = {group.name for group in groups}
    refused = [
        row for row in kit.folder.list_rows(PART) if "group" not in row and row["item"] not in measured
    ]
    old = [row for row in refused if "figures" in row]
    notes = [f"  {row['item']}: {row['status']}" for row in refused if row not in old]
    if old:
        notes.append(f"  {len(old)} rows are of an earlier version, which metered each kernel once")
    return "\n".join([format_groups(groups, kit.label), *notes])
