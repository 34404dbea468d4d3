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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ekc.errors import InvalidInput
from ekc.ir.validate import check_int
from ekc.models.model import Model
from ekc.search.data.options import parse_effort
from ekc.search.whole_model.layer_run import LayerRun


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

    runs: Sequence[LayerRun]
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
