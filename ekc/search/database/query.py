"""Queries of a record file: all measurements of each schedule as candidates and trials, and the best one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ekc import devices
from ekc.argument_checks import check_flag, check_path
from ekc.codegen.generate import compile_schedule
from ekc.devices.device import Device
from ekc.errors import InvalidInput, RecordError, ScheduleError
from ekc.file_limits import parse_json
from ekc.ir.operator import Operator, operator_from_json
from ekc.ir.schedule.schedule import Schedule
from ekc.search.data.candidate import Candidate
from ekc.search.data.options import check_operator
from ekc.search.data.selection import DEFAULT_MAX_SLOWDOWN, DEFAULT_RULE, SelectionRule
from ekc.search.data.trial import Trial
from ekc.search.database.conditions import (
    MAX_LISTED,
    RecordConditions,
    describe_counts,
    get_present_conditions,
    sort_by_nearness,
)
from ekc.search.database.database import RecordStore, to_canonical_json
from ekc.search.database.figures import (
    IndexedFigures,
    MeasuredFigures,
    combine_indexed_rows,
    combine_rows,
    group_by_schedule,
    refuse_figures,
)
from ekc.search.database.rows import RecordRow, StoredGroup, digest_text


def read_operator(text: str, file: str | Path) -> Operator:
    """Read the operator of a row from its JSON text. Raises `RecordError` for a damaged row."""
    try:
        return operator_from_json(parse_json(text))
    except ValueError as problem:
        raise RecordError(f"{file} is damaged: it holds an operator that is not one ({problem})") from None


def rows_to_trials(rows: Iterable[RecordRow]) -> list[Trial]:
    """Combine rows into one trial per schedule, as `rows_to_candidates`."""
    return [c.to_trial() for c in rows_to_candidates(rows)]


def rows_to_candidates(rows: Iterable[RecordRow]) -> list[Candidate]:
    """Combine rows into one candidate per schedule. A wrong result, an unsafe kernel, or a failure without a
    later measurement makes its status. Of rows with equal keys, from two processes, the last one counts; of
    several metering windows the longest. Schedules that cannot be read are left out, with a warning.
    """
    candidates, left_out = list[Candidate](), dict[str, str]()
    for digest, found in group_by_schedule(rows).items():
        try:
            candidates.append(_rows_to_candidate(found))
        except (InvalidInput, ScheduleError) as problem:
            # ScheduleError: this version of ekc refuses a step that the one that wrote the row did not.
            left_out[digest] = str(problem)
    if left_out:
        warnings.warn(f"records: {_describe_left_out(left_out)}", stacklevel=3)
    return candidates


def _describe_left_out(left_out: Mapping[str, str]) -> str:
    """ "schedule D left out: its text is that of schedule E; and 3 more", of problems by digest."""
    (digest, problem), more = next(iter(left_out.items())), len(left_out) - 1
    return f"schedule {digest} left out: {problem}" + (f"; and {more} more" if more else "")


def make_unanalysed_candidate(schedule: Schedule) -> Candidate:
    """Make a candidate without figures and without model inputs."""
    unknown = float("nan")
    return Candidate(schedule, "on file", np.zeros(0, np.float32), unknown, unknown, unknown, 0)


def read_schedule(row: RecordRow) -> Schedule:
    """Read the schedule of a row. Raises `InvalidInput` or `ScheduleError` where it is none, or another than
    the operator and the digest of the row say."""
    schedule = Schedule.from_json(row.schedule)
    if to_canonical_json(schedule.op.to_json()) != row.key.operator:
        raise InvalidInput(f"it is not one of {read_operator(row.key.operator, row.source).name}")
    # A row of an earlier ekc may have a text that is written in another way today: then its own text counts.
    if row.key.schedule_digest not in (digest_text(row.schedule), schedule.digest):
        raise InvalidInput(f"its text is that of schedule {schedule.digest}")
    return schedule


def require_schedule(row: RecordRow) -> Schedule:
    """Read the schedule of a row, as `read_schedule`. Raises `RecordError`, which names file and schedule."""
    try:
        return read_schedule(row)
    except (InvalidInput, ScheduleError) as problem:
        named = f"schedule {row.key.schedule_digest} cannot be used: {problem}"
        raise RecordError(f"{row.source} is damaged: {named}") from None


def _rows_to_candidate(rows: list[RecordRow]) -> Candidate:
    schedules = [read_schedule(row) for row in {row.schedule: row for row in rows}.values()]
    candidate, figures = make_unanalysed_candidate(schedules[0]), combine_rows(rows)
    candidate.status, candidate.checked = figures.status, figures.checked
    candidate.timings, candidate.meterings = figures.timings, figures.meterings
    _check_energy(rows[0], figures)
    return candidate


def _check_energy(row: RecordRow, figures: MeasuredFigures) -> None:
    """Raises `RecordError` where energy / power of a metering is more than `MAX_TIME_RATIO` times the
    latency, or less than its inverse times the latency."""
    for metering in figures.meterings if figures.latency_s is not None else ():
        seconds, latency_s = metering.energy_j / metering.power_w, figures.latency_s or 0.0
        if not 1 / MAX_TIME_RATIO <= seconds / latency_s <= MAX_TIME_RATIO:
            raise RecordError(
                f"{row.source} is damaged: schedule {row.key.schedule_digest} was timed at {latency_s:g} s a "
                f"call, and metered at {metering.energy_j:g} J and {metering.power_w:g} W: {seconds:g} s"
            )


MAX_TIME_RATIO = 100.0
"""Time of a call in a metering relative to the timings, at most, and its inverse at least. They differ by
some percent, and by much more for kernels of a few microseconds, which a slow host cannot launch in time."""
MAX_CHECKED = 64
"""Schedules whose rows are read to select the best; of more that can win, only those of the winners are."""
MAX_SELECTIONS = 10
"""Selections without the schedules that were left out before, whose text is not theirs, at most."""


def best(
    op: Operator,
    records: str | Path,
    target: str = "auto",
    objective: str = "energy",
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN,
    any_toolchain: bool = False,
) -> Trial:
    """Find the best metered schedule of an operator on a device in a record file, by the rule of `tune`.

    any_toolchain: if no schedule was metered under the conditions here, take one that was metered with
    another NVRTC, generator or driver, at other clocks, or else on another device. It is compiled here, to
    check that it can be, and `measured_elsewhere` of the trial has its conditions.

    Raises `RecordError` for the file, `InvalidInput` for arguments, and if the file has no metered schedule
    of the operator; with `any_toolchain` also the errors of compiling."""
    check_operator(op)
    check_path("records", records)
    check_flag("any_toolchain", any_toolchain)
    rule = SelectionRule(objective, max_slowdown)
    return choose_best(op, records, devices.open(target), rule, any_toolchain)


def choose_best(
    op: Operator,
    records: str | Path,
    device: Device,
    rule: SelectionRule = DEFAULT_RULE,
    any_toolchain: bool = False,
) -> Trial:
    """Find the best metered schedule for an open device, as `best`."""
    found, _ = load_winners(op, records, device, rule, any_toolchain)
    if found.measured_elsewhere:
        compile_schedule(found.schedule, device.arch, device.limits)
    return found


def load_winners(
    op: Operator, records: str | Path, device: Device, rule: SelectionRule, any_toolchain: bool = False
) -> tuple[Trial, Trial]:
    """Load (the best, the fastest) of the metered schedules. Raises as `best`, but for compiling."""
    with RecordStore(records, create=False) as store:
        groups = {one.conditions: one for one in store.list_groups(_make_text(op))}
        here, left_out = get_present_conditions(device), dict[str, str]()
        others = sort_by_nearness((there for there in groups if there != here), here)
        for there in [here] * (here in groups) + (others if any_toolchain else []):
            winners = _select_indexed(store, groups[there], rule, left_out)
            if winners and left_out:
                warnings.warn(f"records: {_describe_left_out(left_out)}", stacklevel=3)
            if winners and there == here:
                return winners
            if winners:
                # The stored verdict is of a kernel by another toolchain.
                best, fastest = (replace(t, measured_elsewhere=str(there), checked="") for t in winners)
                return best, fastest
        if left_out:
            raise RecordError(f"{records} is damaged: {_describe_left_out(left_out)}; no other was metered")
        raise InvalidInput(
            f"{op.name} on {device.label}: no metered schedule in {records}"
            + (_list_other_conditions(op, store, here) or _list_other_operators(store))
        )


def _make_text(op: Operator) -> str:
    return to_canonical_json(op.to_json())


def _select_indexed(
    store: RecordStore, group: StoredGroup, rule: SelectionRule, left_out: dict[str, str]
) -> tuple[Trial, Trial] | None:
    """Select (the best, the fastest) of a group by the index of figures; None without a metered schedule. The
    rows of all that can win are read and checked, or of the winners alone where they are many. Schedules
    whose rows cannot be used are added to `left_out`, with the reason."""
    for _ in range(MAX_SELECTIONS):
        finalists = _find_finalists(store, group, rule, left_out)
        if not finalists:
            return None
        checked = finalists if len(finalists) <= MAX_CHECKED else set(rule.select_winners(finalists))
        trials = [_read_trial(store, group, one, left_out) for one in checked]
        good = [trial for trial in trials if trial is not None]
        if len(good) == len(trials):
            return rule.select_winners(good)
    raise RecordError(f"{store.path} is damaged: {_describe_left_out(left_out)}; restore a copy of it")


def _find_finalists(
    store: RecordStore, group: StoredGroup, rule: SelectionRule, left_out: Mapping[str, str]
) -> list[IndexedFigures]:
    """Find what `choose_finalists` chooses, without those that are too slow for the rule."""
    found, finals, fastest_s = list[IndexedFigures](), False, math.inf
    for one in combine_indexed_rows(store, group):
        latency_s = one.latency_s
        is_lesser = one.is_finalist < finals or one.digest in left_out
        if is_lesser or not one.ok or latency_s is None or one.power_w is None:
            continue
        if one.is_finalist > finals:
            found, finals, fastest_s = [], True, math.inf
        fastest_s = min(fastest_s, latency_s)
        if latency_s <= fastest_s * (1 + rule.max_slowdown):
            found.append(one)
    return found


def _read_trial(
    store: RecordStore, group: StoredGroup, indexed: IndexedFigures, left_out: dict[str, str]
) -> Trial | None:
    """Read the rows of a schedule in a group; None where they cannot be used, with the reason in `left_out`.
    Raises `RecordError` where the rows say other figures than the index."""
    rows = store.read_group_rows(group, schedule_digest=indexed.digest)
    try:
        trial = _rows_to_candidate(rows).to_trial()
    except (InvalidInput, ScheduleError) as problem:
        left_out[indexed.digest] = str(problem)
        return None
    found = (trial.latency_s or 0.0), (trial.power_w or 0.0)
    expected = (indexed.latency_s or 0.0), (indexed.power_w or 0.0)
    if not trial.ok or not np.allclose(found, expected, rtol=1e-9, atol=0.0):
        refuse_figures(store, group, indexed.digest)
    return trial


def choose_finalists(rows: Sequence[RecordRow]) -> list[Trial]:
    """Choose the schedules measured in finals, or all without finals: one first timing may be luck."""
    complete = [t for t in rows_to_trials(rows) if t.ok and t.metered and t.latency_s and t.energy_j]
    finals = {row.key.schedule_digest for row in rows if row.kind == "timing" and row.key.draw}
    return [t for t in complete if t.schedule.digest in finals] or complete


def _list_other_conditions(op: Operator, store: RecordStore, here: RecordConditions) -> str:
    """End of an error message: the conditions of the operator's stored schedules; "" without any."""
    text = _make_text(op)
    metered = store.count_schedules(operator=text, kind="metering")
    counts = describe_counts(metered, here)
    if counts:
        needed = here.describe_differences(metered)
        return (
            f"{f' was made with {needed}' if needed else ''}; it holds {counts}; --any-toolchain "
            "(any_toolchain=True) takes the best of the nearest, ekc tune --records measures here"
        )
    timed = store.count_schedules(operator=text, kind="timing")
    own, rest = timed.get(here, 0), describe_counts(timed, here)
    listed = " and ".join(text for text in (f"{own} under the conditions here" if own else "", rest) if text)
    if not listed:
        return ""
    return f"; it holds schedules that were timed and not metered: {listed}; run ekc tune with --records"


def list_metered_operators(store: RecordStore, conditions: Iterable[RecordConditions]) -> list[Operator]:
    """List the operators with a metered schedule under some conditions."""
    wanted = set(conditions)
    groups = [one for one in store.list_groups() if one.conditions in wanted]
    texts = dict.fromkeys(store.read_row(one.first_id).key.operator for one in groups)
    metered = [
        text for text in texts if wanted & store.count_schedules(operator=text, kind="metering").keys()
    ]
    return [read_operator(text, str(store.path)) for text in metered]


def _list_other_operators(store: RecordStore) -> str:
    """Make the end of an error message: the operators with metered schedules."""
    found = list_metered_operators(store, store.count_schedules(kind="metering"))
    names = [str(op).splitlines()[0] for op in found]
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    listed = (
        f"it holds those of {', '.join(names[:MAX_LISTED])}{more}" if names else "nothing was metered in it"
    )
    return f"; {listed}; run ekc tune with --records"
