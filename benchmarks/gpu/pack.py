"""A pack of kernels on a GPU: timed, the best sustained, some metered, and compared with the predictions.

1. Every kernel is timed briefly, the most telling first: those that the predictions put on top, then the
   strata of the rule in turn; operators take turns. At most `TIMED_SHARE` of the time goes to this.
2. The `BEST` fastest of each operator are called back to back on a hot board, in a drawn order, `ROUNDS`
   times if there is time: slices as those of `equals`, which give sustained time and energy.
3. The first choices and the fastest are executed and compared with the reference.
4. As many others as there is time for get a slice: by turns the next fastest and one of a spread over all
   times.

All goes into the recording, each row before the next is measured; a further run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import Any, TypeVar

import numpy as np

from benchmarks.gpu.contenders import SLICE_S, HotDevice
from benchmarks.gpu.folder import RECORDING
from benchmarks.gpu.kit import Budget, Kit, NotRun
from benchmarks.gpu.packs.compare import Measured, answer, compare, format_report
from benchmarks.gpu.packs.file import Pack, PackedKernel, read_pack
from benchmarks.gpu.packs.predictions import OperatorPredictions, find_predictions, read_predictions
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import Device, Metering, Timing
from ekc.devices.recording import Recording, RecordingWriter, read_recording
from ekc.errors import EkcError, RecordError
from ekc.ir.hardware.target import parse_arch_number
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.verify import UNSAFE_KERNEL, WRONG_RESULT

PART = "pack"
MINUTES = 8.0
TIMED_SHARE, SUSTAINED_SHARE = 0.5, 0.3
"""Shares of the part's time, at most."""
TELLING = 30
"""Kernels on top of the predictions, by time and by energy, that are timed first."""
BEST, ROUNDS = 30, 2
"""Kernels of an operator that are sustained, and how often if there is time."""
CHECKED = 2
"""Fastest kernels of an operator that are executed beside the first choices."""
SPREAD = 16
"""Kernels of an operator, spread evenly over the order of times, that are metered."""
HOPELESS = 12
"""Kernels that fail before any works, after which the part gives up."""
WRONG = (WRONG_RESULT, UNSAFE_KERNEL)
T = TypeVar("T")


@dataclass
class _Lot:
    """The kernels of one operator."""

    name: str
    op: Operator
    kernels: dict[str, PackedKernel]
    filed: OperatorPredictions


@dataclass
class _Run:
    """One run of the part."""

    kit: Kit
    budget: Budget
    pack: Pack
    lots: list[_Lot]
    writer: RecordingWriter
    recorded: Recording
    timings: dict[str, Timing] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    sustained: set[tuple[str, int]] = field(default_factory=set)
    """Schedule and number of each slice."""
    checked: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for row in self.recorded.rows:
            if row.failure or row.checked.startswith(WRONG):
                self.failed.add(row.digest)
            elif row.timings:
                self.timings[row.digest] = row.find_timing()
            self.sustained |= {(row.digest, turn) for turn in row.meterings}
            if row.checked:
                self.checked.add(row.digest)
        for line in self.kit.folder.list_rows(PART):
            if "sustained_s" in line:
                self.sustained.add((line["digest"], line["turn"]))

    def rank_fastest(self, lot: _Lot) -> list[str]:
        """Timed kernels of an operator, fastest first."""
        known = (digest for digest in lot.kernels if digest in self.timings)
        return sorted(known, key=lambda digest: (self.timings[digest].latency_s, digest))


def run(kit: Kit, budget: Budget) -> None:
    """Measure in the order above; a row for each operator has the comparison."""
    if kit.pack is None:
        raise NotRun("no pack is named: --pack FILE (python -m benchmarks.gpu.packs)")
    pack = read_pack(kit.pack)
    if not kit.device.simulated and parse_arch_number(pack.head.arch) != parse_arch_number(kit.device.arch):
        raise NotRun(f"{pack.path} is compiled for {pack.head.arch}, {kit.label} is {kit.device.arch}")
    filed = read_predictions(find_predictions(pack.head.device, pack.path))
    lots = [
        _open_lot(pack, number, filed.find(one["name"])) for number, one in enumerate(pack.head.operators)
    ]
    file = kit.folder.path / RECORDING
    kit.folder.add_row(PART, "pack", "ok", pack=pack.sha256, predictions=filed.sha256, rule=pack.head.rule)
    with RecordingWriter(file, kit.device) as writer:
        state = _Run(kit, budget, pack, lots, writer, read_recording(file))
        try:
            _time_all(state)
            _sustain_best(state)
            _check_first(state)
            _meter_some(state)
        finally:
            # Ctrl-C and a lost GPU too leave a comparison of what there is.
            recorded = read_recording(file)
            for lot in lots:
                facts = compare(lot.filed, collect_measured(kit, lot.filed, recorded))
                kit.folder.add_row(PART, lot.name, "ok", comparison=facts, answers=answer(facts))


def _open_lot(pack: Pack, number: int, filed: OperatorPredictions) -> _Lot:
    """Raises `RecordError` where kernels are not those that the predictions are of."""
    kernels = {kernel.digest: kernel for kernel in pack.read_kernels(number)}
    claimed = dict(zip(filed.schedules, filed.codes, strict=True))
    other = [d for d, kernel in kernels.items() if claimed.get(d) != kernel.code_digest[:16]]
    if other:
        raise RecordError(
            f"{pack.path}, {filed.name}: {len(other)} of {len(kernels)} kernels are not those of the "
            f"predictions; make the pack again"
        )
    return _Lot(filed.name, pack.operators[number], kernels, filed)


def order_timings(kernels: Sequence[PackedKernel], filed: OperatorPredictions) -> list[str]:
    """Digests in the order of timing: first choices, the top of the predictions, then the strata in turn."""
    tops = [
        [filed.schedules[row] for row in np.argsort(filed.figures[name], kind="stable")[:TELLING]]
        for name in ("sustained_s", "energy_j")
    ]
    strata: dict[str, list[str]] = {}
    for kernel in kernels:
        strata.setdefault(kernel.stratum, []).append(kernel.digest)
    first = [filed.first_by_time, filed.first_by_energy]
    return list(dict.fromkeys([*first, *take_turns(tops), *take_turns(list(strata.values()))]))


def take_turns(lists: Sequence[Sequence[T]]) -> list[T]:
    """One of each list, then the second of each, and so on."""
    absent = object()
    turns: Any = chain.from_iterable(zip_longest(*lists, fillvalue=absent))
    return [one for one in turns if one is not absent]


Prepared = tuple[Schedule, CompiledKernel]


def _prepare(state: _Run, lot: _Lot, digest: str) -> Prepared:
    """Schedule and kernel. A simulated device runs PTX, which a pack does not have: there it is compiled."""
    packed, head = lot.kernels[digest], state.pack.head
    schedule = packed.make_schedule(lot.op)
    if state.kit.device.simulated:
        return schedule, state.kit.compile_kernel(schedule)
    return schedule, packed.make_kernel(lot.op, head.arch, head.nvrtc)


def _time_all(state: _Run) -> None:
    """Time every kernel that has no time yet, while the share of the time lasts."""
    orders = [[(lot, d) for d in order_timings(list(lot.kernels.values()), lot.filed)] for lot in state.lots]
    wanted = [(lot, d) for lot, d in take_turns(orders) if d not in state.timings and d not in state.failed]
    until_s = state.budget.compute_left_s() - TIMED_SHARE * state.budget.seconds
    in_turn = state.kit.run_ahead(lambda one: _prepare(state, *one), wanted)
    for (lot, digest), make in state.budget.take_affordable(in_turn):
        if state.kit.folder.is_full(RECORDING):
            return
        if state.budget.compute_left_s() < until_s:
            state.budget.cut = True
            return
        _time(state, lot, digest, make)
        if len(state.failed) >= HOPELESS and not state.timings:
            raise EkcError(f"the first {HOPELESS} kernels failed; the recording has the reasons")


def _time(state: _Run, lot: _Lot, digest: str, make: Callable[[], Prepared]) -> None:
    try:
        schedule, kernel = make()
    except EkcError as problem:
        state.failed.add(digest)
        state.kit.folder.add_row(PART, f"{lot.name}, {digest}", str(problem))
        return
    packed = lot.kernels[digest]
    figures = {name: (value,) for name, value in packed.figures.items()}
    state.writer.add_schedule(schedule, packed.structure, figures, kernel)
    try:
        timing = state.kit.device.time(kernel)
    except EkcError as problem:
        state.failed.add(digest)
        state.writer.add_failure(schedule, f"device: {problem}")
        return
    state.writer.add_timing(schedule, timing)
    state.timings[digest] = timing


def _sustain_best(state: _Run) -> None:
    """The fastest of each operator on a hot board, one operator after the other, as inputs are moved once.
    The first slice of each warms up and is dropped."""
    until_s = state.budget.compute_left_s() - SUSTAINED_SHARE * state.budget.seconds
    for number, lot in enumerate(state.lots):
        share_s = (state.budget.compute_left_s() - until_s) / (len(state.lots) - number)
        end_s = state.budget.compute_left_s() - share_s
        best = state.rank_fastest(lot)[:BEST]
        wanted = []
        for turn in range(ROUNDS):
            drawn = np.random.default_rng([state.kit.seed, number, turn]).permutation(len(best))
            wanted += [(best[n], turn) for n in drawn if (best[n], turn) not in state.sustained]
        for place, (digest, turn) in enumerate(wanted):
            if state.budget.compute_left_s() < end_s:
                break
            if not place:
                _sustain(state, lot, digest, None)
            _sustain(state, lot, digest, turn)


def _sustain(state: _Run, lot: _Lot, digest: str, turn: int | None) -> None:
    """A slice of back-to-back calls, recorded as a metering with the number `turn`; without a number it is
    dropped. Where the board reports neither energy nor power, a row has the time."""
    facts = {"operator": lot.name, "digest": digest, "turn": turn}
    item = f"{lot.name}, {digest}, turn {turn}"
    try:
        schedule, kernel = _prepare(state, lot, digest)
        call_s, metering = run_slice(state.kit.device, kernel, state.timings[digest], turn or 0)
    except EkcError as problem:
        state.kit.folder.add_row(PART, item, str(problem), **facts)
        return
    if turn is None:
        return
    state.sustained.add((digest, turn))
    if metering is None:
        state.kit.folder.add_row(PART, item, "ok", **facts, sustained_s=call_s)
    else:
        state.writer.add_metering(schedule, metering, turn)


def run_slice(
    device: Device, kernel: CompiledKernel, timing: Timing, turn: int
) -> tuple[float, Metering | None]:
    """Sustained seconds of a call on a hot board, and the metering of the slice; None where the board reports
    neither energy nor power. Conditions that a slice does not read are those of the timing."""
    if not isinstance(device, HotDevice):
        metering = device.meter(kernel, seconds=SLICE_S, repeat=turn)
        return metering.energy_j / metering.power_w, metering
    window = device.run_hot(kernel, seconds=SLICE_S)
    if not window.power_w > 0:
        return window.call_s, None
    seen = {name: getattr(window, name) for name in ("clock_mhz", "temperature_c", "throttle", "power_cap_w")}
    return window.call_s, window.to_metering(replace(timing.conditions, **seen, l2="warm"))


def _check_first(state: _Run) -> None:
    """Execute the first choices and the fastest, and keep the verdicts."""
    wanted = [
        (lot, digest)
        for lot in state.lots
        for digest in dict.fromkeys((*state.rank_fastest(lot)[:CHECKED], *_list_first(lot)))
        if digest in state.timings and digest not in state.checked
    ]
    for lot, digest in state.budget.take_affordable(wanted):
        schedule, kernel = _prepare(state, lot, digest)
        try:
            fault, verdict = state.kit.judge(schedule, kernel)
        except EkcError as problem:
            state.writer.add_failure(schedule, f"device: {problem}")
            continue
        state.writer.add_check(schedule, verdict)
        if fault:
            state.failed.add(digest)
            del state.timings[digest]
        state.kit.folder.add_row(
            PART, f"{lot.name}, {digest}, check", "FAIL" if fault else "ok", verdict=verdict
        )


def _list_first(lot: _Lot) -> tuple[str, str]:
    return lot.filed.first_by_time, lot.filed.first_by_energy


def order_meterings(fastest: Sequence[str], first: Sequence[str]) -> list[str]:
    """Digests in the order of metering: the first choices; then by turns the next fastest and one of a spread
    over all times."""
    step = max(1, len(fastest) // SPREAD)
    spread = fastest[step // 2 :: step]
    known = [digest for digest in first if digest in fastest]
    return list(dict.fromkeys([*known, *take_turns([fastest, spread])]))


def _meter_some(state: _Run) -> None:
    """Sustain and so meter as many as time allows, operators in turn."""
    orders = [
        [(lot, d) for d in order_meterings(state.rank_fastest(lot), _list_first(lot))] for lot in state.lots
    ]
    wanted = [(lot, digest) for lot, digest in take_turns(orders) if (digest, 0) not in state.sustained]
    for lot, digest in state.budget.take_affordable(wanted):
        if state.kit.folder.is_full(RECORDING):
            return
        _sustain(state, lot, digest, 0)


def collect_measured(kit: Kit, filed: OperatorPredictions, recorded: Recording) -> Measured:
    """Figures of the right kernels of an operator: the mean where a kernel has several slices."""
    known = [recorded.by_digest[d] for d in filed.schedules if d in recorded.by_digest]
    mine = [row for row in known if not row.failure and not row.checked.startswith(WRONG)]
    short_s = {row.digest: row.find_timing().latency_s for row in mine if row.timings}
    slices: dict[str, list[float]] = {}
    energy_j: dict[str, float] = {}
    for row in (row for row in mine if row.meterings):
        slices[row.digest] = [one.energy_j / one.power_w for one in row.meterings.values()]
        energy_j[row.digest] = float(np.mean([one.energy_j for one in row.meterings.values()]))
    for line in kit.folder.list_rows(PART):
        if line.get("operator") == filed.name and line["status"] == "ok" and line["digest"] in short_s:
            slices.setdefault(line["digest"], []).append(line["sustained_s"])
    sustained_s = {digest: float(np.mean(seconds)) for digest, seconds in slices.items()}
    return Measured(short_s, sustained_s, energy_j)


def make_table(kit: Kit) -> str:
    """Predictions beside what was measured, and the answers."""
    return format_report(kit.folder.list_rows(PART), kit.label, PART)
