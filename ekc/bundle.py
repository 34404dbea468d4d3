"""Collect the kernels of a bundle: of each operator and board the Pareto points of energy over latency.

The boards are those of a record file that a target names; each has the architecture of a simulated device.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ekc import devices
from ekc.codegen.generate import describe_toolchain
from ekc.codegen.library.build import KernelChoice, build_kernel
from ekc.codegen.library.function_plan import FunctionPlan, NamedOperator, name_recorded, plan_functions
from ekc.codegen.library.kernels import (
    Bundle,
    BundleFunction,
    BundleKernel,
    BundleShape,
    TargetBoard,
)
from ekc.codegen.library.legal_names import DEFAULT_VERSION, check_bundle_name, check_bundle_version
from ekc.devices.device import Device
from ekc.devices.simulated.specs import list_names
from ekc.errors import InvalidInput
from ekc.ir.operator import Operator
from ekc.search.data.selection import DEFAULT_RULE, SelectionRule, sort_by_latency
from ekc.search.data.trial import Trial
from ekc.search.database.conditions import RecordConditions, get_present_conditions, sort_by_nearness
from ekc.search.database.database import RecordStore, to_canonical_json
from ekc.search.database.query import choose_finalists, read_operator, rows_to_trials
from ekc.search.database.rows import RecordRow, group_rows
from ekc.search.tuning_result import make_choice


@dataclass(frozen=True)
class CollectedBundle:
    """A bundle, and what it lacks."""

    bundle: Bundle
    missing: tuple[str, ...]
    """One line for each operator without a kernel for one of the boards."""


def collect_bundle(
    name: str,
    records: str | Path,
    *,
    version: str = DEFAULT_VERSION,
    operators: Sequence[NamedOperator] | None = None,
    targets: Sequence[str] | None = None,
    rule: SelectionRule = DEFAULT_RULE,
    any_toolchain: bool = False,
) -> CollectedBundle:
    """Collect and compile the kernels of a bundle.

    operators: those wanted, such as the layers of a network; by default all of the file.
    targets: names of boards; by default all of the file.
    rule: `max_slowdown` bounds the latency of the kernels relative to the fastest.

    Raises `RecordError` for the file; `InvalidInput` for arguments, a target that the file does not have, an
    operator that has no kernel for any board; the errors of compiling.
    """
    check_bundle_name(name)
    check_bundle_version(version)
    rows = _read_rows(records)
    # Boards and operators without a measured schedule count where they are asked for, or are all there is.
    measured = {text: own for text, groups in rows.items() if (own := _find_measured(groups))} or rows
    known = measured if targets is None else rows
    conditions = list(dict.fromkeys(c for groups in known.values() for c in groups))
    boards = choose_boards(conditions, targets, records)
    is_asked, asked = operators is not None, [one.op for one in operators or ()]
    if operators is None:
        operators = [name_recorded(read_operator(text, records)) for text in measured]
    collector = _Collector(name, str(records), boards, rows, rule, any_toolchain, is_asked)
    functions = tuple(f for plan in plan_functions(operators) if (f := collector.collect_function(plan)))
    for board in boards:
        if not any(k.board == board for f in functions for s in f.shapes for k in s.kernels):
            raise InvalidInput(
                f"--targets: {records} has no schedule{' of the layers' * is_asked} on {board.label} that "
                "was measured with the compiler and simulator here"
                f"{collector.describe_others([board], asked)}; run ekc tune with --records, or choose other "
                "--targets"
            )
    return CollectedBundle(Bundle(name, version, boards, functions), tuple(collector.missing))


def _read_rows(records: str | Path) -> dict[str, dict[RecordConditions, list[RecordRow]]]:
    """Rows by the JSON text of the operator, then by conditions."""
    with RecordStore(records, create=False) as store:
        found = group_rows(store.read_rows())
    rows: dict[str, dict[RecordConditions, list[RecordRow]]] = {}
    for (text, there), some in sorted(found.items(), key=lambda one: one[1][-1].id):
        rows.setdefault(text, {})[there] = some
    return rows


def _find_measured(
    groups: dict[RecordConditions, list[RecordRow]],
) -> dict[RecordConditions, list[RecordRow]]:
    """The groups with a timed or metered schedule."""
    return {c: rows for c, rows in groups.items() if any(r.kind in ("timing", "metering") for r in rows)}


class _Collector:
    """Collects kernels, and remembers operators that a board lacks. Equal kernels are compiled once."""

    def __init__(
        self,
        name: str,
        records: str,
        boards: Sequence[TargetBoard],
        rows: dict[str, dict[RecordConditions, list[RecordRow]]],
        rule: SelectionRule,
        any_toolchain: bool,
        is_asked: bool,
    ) -> None:
        self.name, self.records, self.boards, self.rows = name, records, boards, rows
        self.rule, self.any_toolchain, self.is_asked = rule, any_toolchain, is_asked
        self.missing: list[str] = []
        self._kernels: dict[str, tuple[BundleKernel, ...]] = {}

    def collect_function(self, plan: FunctionPlan) -> BundleFunction | None:
        """Collect the kernels of a function; None where it has none for these boards ."""
        shapes = tuple(BundleShape(op, ks) for op in plan.operators if (ks := self._collect_shape(plan, op)))
        return BundleFunction(plan.name, plan.signature, shapes, plan.layers) if shapes else None

    def _collect_shape(self, plan: FunctionPlan, op: Operator) -> tuple[BundleKernel, ...]:
        if op.digest not in self._kernels:
            title = f"{plan.name}: {str(op).splitlines()[0]}"
            kernels: list[BundleKernel] = []
            for board in self.boards:
                own = self._collect_kernels(plan.name, op, board)
                if not own:
                    self.missing.append(
                        f"{title}: no kernel for {board.label}{self.describe_others([board], [op])}"
                    )
                kernels += own
            if not kernels and self.is_asked:
                raise InvalidInput(
                    f"{title}: no measured schedule in {self.records} on "
                    f"{' or '.join(b.label for b in self.boards)}{self.describe_others(self.boards, [op])}; "
                    "run ekc tune with --records"
                )
            self._kernels[op.digest] = tuple(kernels)
        return self._kernels[op.digest]

    def _collect_kernels(self, function: str, op: Operator, board: TargetBoard) -> list[BundleKernel]:
        groups = _find_measured(self.rows.get(to_canonical_json(op.to_json()), {}))
        chosen = choose_conditions(groups, board, self.any_toolchain)
        trials = choose_trials(groups[chosen]) if chosen else []
        if chosen is None or not trials:
            return []
        is_here = choose_conditions([chosen], board, False) is not None
        limits = open_model(board.name).limits
        choices = choose_points(trials, self.rule)
        choices = choices if is_here else [_mark_conditions(choice, chosen) for choice in choices]
        return [build_kernel(self.name, function, choice, board, limits) for choice in choices]

    def describe_others(self, boards: Sequence[TargetBoard], operators: Sequence[Operator]) -> str:
        """Middle of a message about operators, all of the file if none is given, that have no kernel for some
        boards: how many schedules failed here, or other conditions under which some were measured. "" without
        any."""
        wanted = {to_canonical_json(op.to_json()) for op in operators} or self.rows.keys()
        labels = {board.label: board for board in boards}
        own = [
            (conditions, rows)
            for text in wanted
            for conditions, rows in self.rows.get(text, {}).items()
            if conditions.label in labels
        ]
        tried = [rows for c, rows in own if choose_conditions([c], labels[c.label], False) is not None]
        failures = Counter(
            t.status.partition(":")[0] for rows in tried for t in rows_to_trials(rows) if not t.ok
        )
        if failures:
            counts = ", ".join(f"{count} {status}" for status, count in failures.most_common())
            return f": all {failures.total()} schedules that were tried here failed ({counts})"
        others = [conditions for conditions, rows in own if _find_measured({conditions: rows})]
        return f", only under {others[-1]}, which --any-toolchain takes" if others else ""


def choose_trials(rows: Sequence[RecordRow]) -> list[Trial]:
    """Choose the metered schedules of an operator on a board; without any, the fastest of the timed ones."""
    timed = [t for t in rows_to_trials(rows) if t.ok and t.latency_s]
    return choose_finalists(rows) or sort_by_latency(timed)[:1]


def _mark_conditions(choice: KernelChoice, conditions: RecordConditions) -> KernelChoice:
    """Name the conditions of figures that are not those here, wherever the library shows the figures."""
    provenance = {**choice.figures.provenance, "measured elsewhere": str(conditions)}
    return replace(choice, figures=replace(choice.figures, provenance=provenance, conditions=str(conditions)))


def choose_points(trials: Sequence[Trial], rule: SelectionRule) -> list[KernelChoice]:
    """Choose the schedules for an operator and a board, fastest first: the fastest, the one of least energy
    at most `max_slowdown` slower, and the Pareto points between them."""
    best, fastest = rule.select_winners(trials)
    if best.schedule == fastest.schedule:
        return [make_choice(fastest, "both")]
    points = [make_choice(fastest, "latency")]
    least = fastest.energy_j or 0.0
    end = (best.latency_s or 0.0, best.energy_j or 0.0)
    for trial in sorted(trials, key=lambda t: (t.latency_s or 0.0, t.energy_j or 0.0)):
        latency, energy = trial.latency_s or 0.0, trial.energy_j or 0.0
        if (fastest.latency_s or 0.0) < latency < end[0] and end[1] < energy < least:
            points.append(make_choice(trial, "between"))
            least = energy
    return [*points, make_choice(best, "energy")]


_BOUNDARY = "(?:(?<![a-z0-9])|(?![a-z0-9])|(?<=[a-z])(?=[0-9]))"
"""Where a word may begin or end: at the ends, beside what is neither letter nor digit, and from a letter to a
digit. "A100X" is another board than "A100"."""


def match_board(device: str, board: str) -> int:
    """Count the letters and digits of `device` where they occur in the name of a board as whole words; 0
    where they do not. `h100` is in `NVIDIA H100 80GB HBM3`, `a100` is not in `NVIDIA A1000`. The generated
    library has the same rule."""
    wanted = re.findall("[a-z0-9]", device.lower())
    pattern = f"{_BOUNDARY}{'[^a-z0-9]*'.join(wanted)}{_BOUNDARY}"
    return len(wanted) if wanted and re.search(pattern, board.lower()) else 0


def choose_boards(
    conditions: Iterable[RecordConditions], targets: Sequence[str] | None, records: str | Path
) -> tuple[TargetBoard, ...]:
    """Find the boards that targets name, or all of a file: measured ones first, then in the order of targets.

    A target is the name of a simulated device or a part of the name of a real one. Raises `InvalidInput` for
    a target that the file has no measured schedule of, and for a real board of unknown architecture.
    """
    present = list(dict.fromkeys((c.device, c.simulated) for c in conditions))
    if not present:
        raise InvalidInput(f"{records}: nothing was measured in it; run ekc tune with --records")
    found: dict[tuple[str, bool], TargetBoard] = {}
    for target in targets if targets is not None else [name for name, _ in present]:
        named = [(n, s) for n, s in present if n == target or (not s and match_board(target, n))]
        if not named:
            raise InvalidInput(_describe_missing(target, [n for n, _ in present], records))
        for name, simulated in named:
            model = open_model(name)
            sms = model.limits.sms if simulated else 0
            found[name, simulated] = TargetBoard(name, model.arch, simulated, sms)
    return tuple(sorted(found.values(), key=lambda board: board.is_simulated))


def _describe_missing(target: str, names: Sequence[str], records: str | Path) -> str:
    near = difflib.get_close_matches(target.lower(), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return (
        f"--targets: {records} has no measured schedule on {target!r:.60}, only on "
        f"{', '.join(sorted(names))}{hint} (ekc tune --target {target} --records {records} adds one)"
    )


def open_model(name: str) -> Device:
    """Open the simulated device of a board: it has the architecture and the limits of the real one. Raises
    `InvalidInput` for a board that no simulated device resembles."""
    lengths = {known: match_board(known, name) for known in list_names()}
    known = max(lengths, key=lambda one: lengths[one])
    if not lengths[known]:
        raise InvalidInput(
            f"--targets: the architecture of {name!r:.60} is unknown; boards are those whose "
            f"name contains one of {', '.join(list_names())}"
        )
    return devices.open(known)


def choose_conditions(
    present: Iterable[RecordConditions], board: TargetBoard, any_toolchain: bool
) -> RecordConditions | None:
    """Choose the conditions whose figures count for a board: the present ones, or with `any_toolchain` the
    nearest. Of a real board any clock, driver and data count, the last measured first. None without any.
    """
    own = [c for c in present if (c.device, c.simulated) == (board.name, board.is_simulated)]
    if board.is_simulated:
        here = get_present_conditions(open_model(board.name))
        exact = [c for c in own if c == here]
        nearest = sort_by_nearness(own, here)
    else:
        exact = [c for c in own[::-1] if c.nvrtc == describe_toolchain()]
        nearest = own[::-1]
    return next(iter(exact or (nearest if any_toolchain else ())), None)
