"""The trials of a model: their number, and the turns of its layers. The next round goes to the layer where a
trial saves most.

Every layer has a warm-up: its naive schedule and a first round. Then the layer comes next where a trial is
expected to save most of the model's energy (or latency, by the objective): calls of the layer x cost of a
call x the improvement that rounds bring after so many trials. The improvement is that of many layers in the
mean. What the models of a layer predict ranks layers worse (docs/explanation/search.md). With an effort that
prediction decides whether a round pays: a layer whose round would not save its cost gets no other, and the
search ends when there is none left.

No clock is read, unless there is a time budget: the same seed gives the same turns, resumed or not, with any
number of workers.

A layer's share of the trials is not known beforehand. Its first round has the size that it has in a run of
the mean share, a later one a sixteenth of the layer's trials so far, as a run that ends there has in the
mean. The population grows with the trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ekc.errors import EkcError, InvalidInput
from ekc.ir.validate import check_int
from ekc.models.model import Model, ModelLayer
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import PARALLEL_ROUNDS, SCHEDULER
from ekc.search.data.options import parse_effort
from ekc.search.loop.rounds import (
    PlannedRound,
    compute_population_size,
    compute_round_size,
)
from ekc.search.loop.stopping import StoppingRule
from ekc.search.loop.task import ScheduleTask
from ekc.search.run import TuningRun
from ekc.search.space.space import Space
from ekc.search.tuning_result import TuningResult
from ekc.tables import join_lines

KEPT_EVALUATORS = 8
"""Layers whose evaluators stay in memory: those that took their turns last."""


class RecentSpaces:
    """The spaces of the layers that took their turns last. The evaluators of all others are freed: a model of
    200 layers would need several GB for them."""

    def __init__(self) -> None:
        self._tasks: list[ScheduleTask] = []

    def note_use(self, task: ScheduleTask) -> None:
        """Note that a layer took a turn, and free what belongs to the one that took none for longest."""
        self._tasks = [*(one for one in self._tasks if one is not task), task]
        if len(self._tasks) > KEPT_EVALUATORS:
            oldest = self._tasks.pop(0)
            oldest.input_cache.clear()
            if isinstance(oldest.space, Space):
                oldest.space.forget_evaluator()


@dataclass(eq=False)
class LayerRun:
    """The run of one layer. An error of ekc ends this layer alone, and is kept as `failure`."""

    layer: ModelLayer
    run: TuningRun
    recent_spaces: RecentSpaces = field(default_factory=RecentSpaces)
    """The spaces of all layers of the model that took their turns last."""
    stopping: StoppingRule = field(init=False)
    failure: str = ""
    """Why the layer has no result, in one line."""
    is_finished: bool = False
    """Whether there is nothing left to try, or another round would not pay."""
    _warm_up_count: int = 0

    def __post_init__(self) -> None:
        self.stopping = StoppingRule(self.run.task)

    @property
    def trial_count(self) -> int:
        """Trials so far."""
        return self.run.search_loop.trial_count

    @property
    def can_go_on(self) -> bool:
        """Whether the layer may take another round."""
        return not (self.is_finished or self.failure) and self.run.task.can_continue()

    @property
    def expected_saving(self) -> float:
        """Estimate of what a trial saves in a pass of the model, to compare layers: calls x cost of a call x
        how much rounds improve a layer after so many trials. Infinite before a schedule worked."""
        if not self.run.task.timed_candidates:
            return math.inf
        after = (self.trial_count - self._warm_up_count) / SCHEDULER.decay_trials
        return self.layer.count * self.stopping.get_best_call_cost() / (1 + after**2)

    def warm_up(self) -> None:
        """Measure the naive schedule and the first round. No more trials are used than the layer has in the
        mean."""
        mean_share = self.run.options.trials
        with self._keep_failure():
            self.run.measure_baseline()
            self.stopping.note_start()
            self._measure(self._plan(compute_round_size(1, 0, mean_share)))
        self._warm_up_count = self.trial_count

    def run_round(self, most_trials: int, expected_passes: float | None = None) -> str:
        """Run a round of at most so many trials. With passes of the model over its life, the round must save
        its cost in them; returns why it would not, else ""."""
        size = math.ceil(SCHEDULER.round_share * self.trial_count)
        size = min(max(size, PARALLEL_ROUNDS.min_trials), PARALLEL_ROUNDS.max_trials, most_trials)
        with self._keep_failure():
            planned = self._plan(size)
            if planned is not None and expected_passes is not None:
                calls = expected_passes * self.layer.count
                reason = self.stopping.should_stop(calls, planned.genomes, planned.trial_count)
                if reason is not None:
                    self.is_finished = True
                    return reason
            self._measure(planned)
        return ""

    def run_alone(self) -> TuningResult | None:
        """Run the layer to its end, as `ekc.tune` does; None after a failure."""
        with self._keep_failure():
            return self.run.run(())
        return None

    def finish(self) -> TuningResult | None:
        """Run the finals and make the result; None after a failure."""
        with self._keep_failure():
            if not self.failure:
                self.run.run_finals()
                return self.run.make_result()
        return None

    def finish_early(self) -> TuningResult | None:
        """Make the result of what was measured before Ctrl-C; None if there is none."""
        with self._keep_failure():
            if self.run.task.timed_candidates and not self.failure:
                self.run.note_interrupt()
                return self.run.make_result()
        return None

    def _plan(self, size: int) -> PlannedRound[Candidate] | None:
        """Plan a round; None if there is nothing left to try."""
        run = self.run
        run.reporter.enter_stage("breed", run.search_loop.round_number + 1)
        expected = max(SCHEDULER.population_factor * run.options.trials, self.trial_count + size)
        run.breeder.population_size = compute_population_size(expected)
        return run.search_loop.plan_round(size)

    def _measure(self, planned: PlannedRound[Candidate] | None) -> None:
        if planned is None:
            self.is_finished = True
        else:
            self.run.search_loop.measure_round(planned)

    @contextmanager
    def _keep_failure(self) -> Iterator[None]:
        """Keep an error of ekc within the block as the failure of the layer."""
        try:
            yield
        except EkcError as problem:
            self.failure = join_lines(str(problem))
            self.run.reporter.report("error", text=self.failure)
        finally:
            self.recent_spaces.note_use(self.run.task)


@dataclass(frozen=True)
class TrialBudget:
    """The trials of a model's run."""

    trials: int
    """Trials of all layers, at most."""
    is_equal: bool
    """Whether each layer gets the same number, as in a run of its own."""
    expected_passes: float | None
    """Passes of the model over its life, in which a round must save its cost. None: use all trials."""


def make_budget(model: Model, trials: int | None, effort: str | None, per_layer: int | None) -> TrialBudget:
    """Make the budget of a model: `trials` in all, or `per_layer` for each, or those of an effort for each in
    the mean. Raises `InvalidInput`."""
    count = len(model.layers)
    if per_layer is not None:
        for name, value in (("trials", trials), ("effort", effort)):
            if value is not None:
                raise InvalidInput(
                    f"{name} and trials_per_layer: give one; both set the trials of the layers"
                )
        check_int("trials_per_layer", per_layer, 1_000_000)
        return TrialBudget(per_layer * count, True, None)
    size = parse_effort(effort)
    if trials is None:
        return TrialBudget(size.trials * count, False, size.expected_calls)
    if trials < count:
        raise InvalidInput(
            f"trials: {trials} are fewer than the {count} layers of {model.name}; give one for each at least"
        )
    return TrialBudget(trials, False, None)


def pick_largest_saving(runs: Sequence[LayerRun]) -> LayerRun:
    """Pick the layer where a trial is expected to save most; the first of equals."""
    return max(runs, key=lambda run: run.expected_saving)


def has_ended(runs: Sequence[LayerRun]) -> bool:
    """Whether time ran out, or a callback asked to end, after at least one trial."""
    return any(run.trial_count and not run.run.task.can_continue() for run in runs)


@dataclass
class Scheduler:
    """Runs the layers of a model in turns."""

    runs: list[LayerRun]
    trials: int
    """Trials of all layers, at most."""
    expected_passes: float | None = None
    """Passes of the model over its life, in which a round must save its cost. None: use all trials."""
    stop_reason: str = ""
    """Why the search ended before all trials were used."""
    turns: list[str] = field(default_factory=list)
    """Names of the layers in the order of their rounds, the warm-up included."""

    def warm_up(self, run: LayerRun) -> None:
        """Run the warm-up of a layer that was added to `runs`."""
        run.warm_up()
        self._note_turn(run)

    def run_turns(self) -> None:
        """Run the turns of all layers."""
        while self._left > 0 and (ready := [run for run in self.runs if run.can_go_on]):
            run = pick_largest_saving(ready)
            reason = run.run_round(self._left, self.expected_passes)
            if reason:
                self.stop_reason = f"{reason} of {run.layer.name}, the last layer that had a turn"
            else:
                self._note_turn(run)
        if any(run.can_go_on for run in self.runs):
            self.stop_reason = ""

    @property
    def _left(self) -> int:
        """Trials that are not used yet."""
        return self.trials - sum(run.trial_count for run in self.runs)

    def _note_turn(self, run: LayerRun) -> None:
        """Note that a layer had a turn, and tell all layers if a callback asked the run to end."""
        self.turns.append(run.layer.name)
        if run.run.reporter.is_stop_requested:
            for other in self.runs:
                other.run.reporter.is_stop_requested = True
