"""Options that `ekc tune` has for one operator and for the layers of a file alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ekc.cli.event_log import EventLog
    from ekc.cli.layer_file import Layer
    from ekc.ir.operator import Operator
    from ekc.search.tuning_result import TuningResult


@dataclass(frozen=True)
class TuneArguments:
    """Options of a tuning run that do not depend on the operator; each is an option of `ekc tune`."""

    target: str
    effort: str | None
    trials: int | None
    objective: str
    max_slowdown: float
    clocks: str
    seed: int
    records: Path | None
    warm_start: Path | None
    time_budget_s: float | None
    workers: int | None
    quiet: bool

    def check_options(self) -> None:
        """Raise `InvalidInput` for options that `ekc.tune` would refuse, before any file is written."""
        from ekc import devices
        from ekc.search.data.options import check_options, parse_objective
        from ekc.search.database.database import RecordStore

        check_options(
            *(self.trials, self.effort, self.max_slowdown, self.clocks, self.seed, self.time_budget_s)
        )
        parse_objective(self.objective)
        devices.open(self.target)
        RecordStore(self.records).close()
        if self.warm_start is not None:
            RecordStore(self.warm_start, create=False).close()

    def run_tuning(self, op: Operator, event_log: EventLog, layer: Layer | None = None) -> TuningResult:
        """Run `ekc.tune` and write its events to the log, with the name of the layer if there is one."""
        import ekc
        from ekc import devices
        from ekc.search.data.options import parse_effort
        from ekc.search.loop.compile_job import open_worker_pool

        trials = self.trials or parse_effort(self.effort).trials
        options = {name: value for name, value in vars(self).items() if name not in ("workers", "quiet")}
        options |= {"progress": not self.quiet, "callback": event_log.make_listener(layer)}
        if self.workers is None:  # `ekc.tune` opens its own pool.
            return ekc.tune(op, **options)
        with open_worker_pool(devices.open(self.target), trials, self.workers) as executor:
            return ekc.tune(op, executor=executor, **options)
