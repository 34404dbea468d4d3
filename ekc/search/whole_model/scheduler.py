"""The turns of the layers of a model: the next round goes to the layer where a trial saves most.

Every layer has a warm-up: its naive schedule and a first round. Then the layer comes next where a trial is
expected to save most of the model's energy (or latency, by the objective): calls of the layer x cost of a
call x the improvement that rounds bring after so many trials. The improvement is that of many layers in the
mean. What the models of a layer forecast ranks layers worse (docs/explanation/search.md). With an effort that
forecast decides whether a round pays: a layer whose round would not save its cost gets no other, and the
search ends when there is none left.

No clock is read, unless there is a time budget: the same seed gives the same turns, resumed or not, with any
number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ekc.search.whole_model.layer_run import LayerRun

Strategy = Callable[[Sequence[LayerRun]], LayerRun]
"""Picks the layer of the next round among those that can go on."""


def pick_largest_saving(runs: Sequence[LayerRun]) -> LayerRun:
    """Pick the layer where a trial is expected to save most; the first of equals."""
    return max(runs, key=lambda run: run.expected_saving)


def pick_fewest_trials(runs: Sequence[LayerRun]) -> LayerRun:
    """Pick the layer with the fewest trials; the first of equals. An ablation: round-robin."""
    return min(runs, key=lambda run: run.trial_count)


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
    pick_layer: Strategy = pick_largest_saving
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
            run = self.pick_layer(ready)
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
