"""The arguments of `ekc.tune_model`, checked: the budget of trials of a model."""

from __future__ import annotations

from dataclasses import dataclass

from ekc.argument_checks import format_value
from ekc.errors import InvalidInput
from ekc.ir.validate import check_int
from ekc.models.model import Model
from ekc.search.data.options import check_options, parse_effort


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


def check_model(model: object) -> Model:
    """The argument, which must be a model with a layer. Raises `InvalidInput`."""
    if not isinstance(model, Model):
        raise InvalidInput(
            f"model: {format_value(model)} is not a model; "
            "ekc.models.from_torch, from_onnx and from_layers make one"
        )
    if not model.layers:
        nodes = sum(node.count for node in model.uncovered)
        raise InvalidInput(f"{model.name}: it has no layer that ekc can tune; {nodes} nodes are not covered")
    return model


def check_model_options(
    model: Model,
    trials: int | None,
    effort: str | None,
    per_layer: int | None,
    max_slowdown: float,
    clocks: str,
    seed: int,
    time_budget_s: float | None,
) -> TrialBudget:
    """Check the options of a run, and make its budget. Raises `InvalidInput`."""
    check_options(trials, effort, max_slowdown, clocks, seed, time_budget_s)
    return make_budget(model, trials, effort, per_layer)
