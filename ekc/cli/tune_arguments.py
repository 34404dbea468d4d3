"""Options that `ekc tune` has for one operator and for the layers of a model alike."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ekc.cli.output import log
from ekc.errors import InvalidInput

if TYPE_CHECKING:
    from ekc.cli.event_log import EventLog
    from ekc.ir.operator import Operator
    from ekc.models.model import Model
    from ekc.search.clocks.plan import ClockPlan
    from ekc.search.tuning_result import TuningResult
    from ekc.search.whole_model.model_result import ModelResult


@dataclass(frozen=True)
class TuneArguments:
    """Options of a tuning run that do not depend on the operator; each is an option of `ekc tune`."""

    target: str
    effort: str | None
    trials: int | None
    trials_per_layer: int | None
    objective: str
    max_slowdown: float
    clocks: str
    seed: int
    records: Path | None
    time_budget_s: float | None
    workers: int | None
    quiet: bool
    contenders: tuple[str, ...]

    def check_options(self) -> None:
        """Raise `InvalidInput` for options that `ekc.tune` would refuse, before any file is written."""
        from ekc.search.data.options import check_options, parse_contenders

        check_options(
            *(self.trials, self.effort, self.max_slowdown, self.clocks, self.seed, self.time_budget_s)
        )
        parse_contenders(self.contenders)
        self._check_devices_and_files()

    def check_model_options(self, model: Model) -> None:
        """Raise `InvalidInput` for options that `ekc.tune_model` would refuse, before any file is written."""
        from ekc.search.whole_model.model_search import check_model, check_model_options

        check_model_options(
            *(check_model(model), self.trials, self.effort, self.trials_per_layer),
            *(self.max_slowdown, self.clocks, self.seed, self.time_budget_s),
        )
        self._check_devices_and_files()

    def _check_devices_and_files(self) -> None:
        from ekc import devices
        from ekc.search.data.selection import parse_objective
        from ekc.search.database.database import RecordStore

        parse_objective(self.objective)
        device = devices.open(self.target)
        if self.target == "auto" and device.simulated and not self.quiet:
            log(f"ekc: no GPU found: this run simulates the {device.name}; --target names another device")
        RecordStore(self.records).close()

    def run_tuning(self, op: Operator, event_log: EventLog) -> TuningResult:
        """Run `ekc.tune` and write its events to the log."""
        import ekc
        from ekc.search.data.options import parse_effort

        trials = self.trials or parse_effort(self.effort).trials
        with self._open_workers(trials) as executor:
            return ekc.tune(op, executor=executor, **self._list_options(event_log, "trials_per_layer"))

    def run_model(self, model: Model, event_log: EventLog) -> ModelResult:
        """Run `ekc.tune_model` and write its events to the log."""
        import ekc
        from ekc.search.whole_model.scheduler import make_budget

        trials = make_budget(model, self.trials, self.effort, self.trials_per_layer).trials
        with self._open_workers(trials) as executor:
            return ekc.tune_model(model, executor=executor, **self._list_options(event_log, "contenders"))

    def _list_options(self, event_log: EventLog, *without: str) -> dict[str, Any]:
        """The arguments of `ekc.tune` or `ekc.tune_model` by name."""
        own = ("workers", "quiet", *without)
        options = {name: value for name, value in vars(self).items() if name not in own}
        return options | {"progress": not self.quiet, "callback": event_log.make_listener()}

    @contextmanager
    def _open_workers(self, trials: int) -> Iterator[Executor | None]:
        """The pool of --workers; None without the option: the run opens its own."""
        from ekc import devices
        from ekc.search.loop.compile_job import open_worker_pool

        if self.workers is None:
            yield None
            return
        with open_worker_pool(devices.open(self.target), trials, self.workers) as executor:
            yield executor


def check_plan_file(file: Path | None, clocks: str) -> None:
    """Raise `InvalidInput` for a file that cannot be written, and without `--clocks search`."""
    if file is None:
        return
    if clocks != "search":
        raise InvalidInput("--plan: a plan needs --clocks search; add it, or leave --plan out")
    if file.is_dir() or not file.parent.is_dir():
        raise InvalidInput(f"--plan {file}: not a file in a folder that exists")


def write_plan(file: Path | None, plan: ClockPlan | None, note: str) -> None:
    """Write the plan, and say so; where there is none, say why."""
    if file is None:
        return
    if plan is None:
        log(f"ekc: no plan was written to {file}: {note or 'the search of clocks did not begin'}")
        return
    plan.write(file)
    log(f"ekc: wrote {file}; apply it with: ekc govern --plan {file} -- COMMAND")
