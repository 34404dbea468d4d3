"""What is already known of an operator, without tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ekc import devices
from ekc.codegen.generate import toolchain
from ekc.devices.base import Device
from ekc.errors import InvalidInput
from ekc.ir.arguments import check_path
from ekc.ir.operator import Operator
from ekc.search.choice import winners
from ekc.search.objective import checked_objective
from ekc.search.options import check_operator, check_slowdown
from ekc.search.records.rows import Row
from ekc.search.records.store import RecordStore, canonical_json
from ekc.search.records.stored import stored_trials
from ekc.search.result import Trial

MAX_SLOWDOWN = 0.05
"""Against the fastest, where nobody says otherwise."""


@dataclass(frozen=True)
class Rule:
    """Which of the schedules on file is the best. Raises `InvalidInput` for what says nothing of it."""

    objective: str = "energy"
    max_slowdown: float = MAX_SLOWDOWN

    def __post_init__(self) -> None:
        checked_objective(self.objective)
        check_slowdown(self.max_slowdown)

    def __str__(self) -> str:
        if self.objective == "latency":
            return "by latency"
        return f"by {self.objective}, at most {100 * self.max_slowdown:g} % slower than the fastest"

    def winners(self, trials: Sequence[Trial]) -> tuple[Trial, Trial]:
        """The best, and the fastest."""
        return winners(trials, self.objective, self.max_slowdown)


USUAL = Rule()


def best(
    op: Operator,
    records: str | Path,
    target: str = "auto",
    objective: str = "energy",
    max_slowdown: float = MAX_SLOWDOWN,
) -> Trial:
    """The best metered schedule on file for an operator and a device, by the rule that `tune` uses: there too
    `max_slowdown` is not used for "latency".

    Raises `RecordError` for the file, `InvalidInput` for arguments, and when it holds no metered schedule of
    the operator.
    """
    check_operator(op)
    check_path("records", records)
    rule = Rule(objective, max_slowdown)
    return rule.winners(judged(op, records, devices.open(target)))[0]


def judged(op: Operator, records: str | Path, device: Device) -> list[Trial]:
    """The metered schedules on file that a choice is made among. Raises as `best` does."""
    with RecordStore(records, create=False) as store:
        found = store.rows(operator=canonical_json(op.to_json()), device=device.name)
        rows = [row for row in found if alike(row, device)]
    known = [t for t in stored_trials(rows) if t.ok and t.metered and t.latency_s and t.energy_j]
    # Where finals were held they decide: a first look may have been a lucky one.
    finals = {row.key.schedule_digest for row in rows if row.kind == "timing" and row.key.draw}
    trials = [t for t in known if t.schedule.digest in finals] or known
    if not trials:
        raise InvalidInput(
            f"{op.name} on {device.label}: no metered schedule in {records}; run ekc tune with --records"
        )
    return trials


def alike(row: Row, device: Device) -> bool:
    """Whether a row was made under the conditions of today."""
    key = row.key
    then = (key.simulated, key.driver, key.nvrtc, key.clock_regime, key.data_policy)
    return then == (
        device.simulated,
        device.driver,
        toolchain(),
        device.clock_regime,
        device.data_policy,
    )
