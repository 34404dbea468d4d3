"""`ekc tune`: search for the kernel of least energy, print what was found, leave the kernel behind."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ekc.cli.operators import NEGATIVES, Request, operator_arguments
from ekc.cli.output import OUT, json_option, say, say_json, writable, wrote
from ekc.cli.sources import target_option
from ekc.errors import InvalidInput

if TYPE_CHECKING:
    from ekc.ir.operator import Operator
    from ekc.search.result import TuningResult


@dataclass(frozen=True)
class Options:
    """How to tune, whatever the operator."""

    target: str
    effort: str | None
    trials: int | None
    objective: str
    max_slowdown: float
    clocks: str
    seed: int
    records: Path | None
    time_budget_s: float | None
    workers: int | None
    quiet: bool

    def check(self) -> None:
        """Refuse what `ekc.tune` would refuse, before anything is written."""
        from ekc import devices
        from ekc.search.effort import checked_effort
        from ekc.search.objective import checked_objective
        from ekc.search.options import check_options
        from ekc.search.records import RecordStore

        check_options(self.trials, self.max_slowdown, self.clocks, self.seed, self.time_budget_s)
        checked_effort(self.effort)
        checked_objective(self.objective)
        devices.open(self.target)
        RecordStore(self.records).close()

    def tune(self, op: Operator) -> TuningResult:
        """One run of `ekc.tune`."""
        import ekc

        with _workers(self.workers) as executor:
            return ekc.tune(
                op,
                target=self.target,
                effort=self.effort,
                trials=self.trials,
                objective=self.objective,
                max_slowdown=self.max_slowdown,
                clocks=self.clocks,
                seed=self.seed,
                records=self.records,
                time_budget_s=self.time_budget_s,
                executor=executor,
                progress=not self.quiet,
            )


@contextmanager
def _workers(number: int | None) -> Iterator[Executor | None]:
    """Threads that compile, or None to leave their number to `ekc.tune`."""
    if number is None:
        yield None
        return
    pool = ThreadPoolExecutor(number, "ekc-compile")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@click.command(context_settings=NEGATIVES)
@operator_arguments
@click.option("--layers", type=click.Path(path_type=Path), help="Tune every layer of this TOML file.")
@target_option
@click.option(
    "--effort",
    help="quick, standard or full: at most 64, 256 or 1024 trials, fewer where another round would not pay.",
)
@click.option("--trials", type=int, help="Schedules to compile and time, all of them. [default: 256]")
@click.option("--objective", default="energy", show_default=True, help="energy, latency or edp.")
@click.option(
    "--max-slowdown", type=float, default=0.05, show_default=True, help="How much slower than the fastest."
)
@click.option(
    "--clocks", default="fixed", show_default=True, help="fixed, or search for a second table over clocks."
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--records", type=click.Path(path_type=Path), help="Keep every measurement in this SQLite file."
)
@click.option(
    "--time-budget",
    "time_budget_s",
    type=float,
    metavar="SECONDS",
    help="End with the best so far (per layer).",
)
@click.option(
    "--workers", type=click.IntRange(1, 1024), help="Threads that compile; the winner is the same for any."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=OUT, show_default=True, help="Folder for the kernel."
)
@click.option("--quiet", is_flag=True, help="No forecast, no progress bar.")
@json_option
def tune(request: Request, layers: Path | None, out: Path, as_json: bool, **options: object) -> int:
    """Search the schedules of an operator; print the best and write its CUDA into a folder.

    \b
      ekc tune matmul 1024 1024 1024 --target a100
      ekc tune conv2d --n 1 --c 64 --h 56 --w 56 --out-channels 64 --kernel 3 --padding 1
      ekc tune einsum 'bmk,bkn->bmn' 8x64x32 8x32x64
      ekc tune --layers examples/layers.toml
    """
    chosen = Options(**options)  # type: ignore[arg-type]
    if layers is not None:
        from ekc.cli.layers import tune_layers

        if not request.empty:
            raise InvalidInput("--layers: the file names its operators itself; leave OPERATOR out")
        return tune_layers(layers, chosen, out, as_json)
    op = request.operator()
    chosen.check()
    writable(out)
    result = chosen.tune(op)
    paths = result.export(out)
    if as_json:
        say_json(result.to_json() | {"exported": [str(p) for p in paths]})
    else:
        say(f"{result.summary()}\n\n{wrote(paths)}")
    return 0
