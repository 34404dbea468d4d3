"""`ekc.tune_model`: the layers of a model share one budget of trials."""

from __future__ import annotations

from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path

from ekc import devices
from ekc.argument_checks import check_flag, format_value
from ekc.errors import InvalidInput
from ekc.models.model import Model
from ekc.search.data.events import EventListener
from ekc.search.data.options import TuneOptions, check_executor_and_callback, check_options, check_paths
from ekc.search.data.selection import parse_objective
from ekc.search.loop.compile_job import open_worker_pool
from ekc.search.progress import show_progress
from ekc.search.run import open_record_store
from ekc.search.whole_model.model_result import ModelResult
from ekc.search.whole_model.model_search import ModelSearch
from ekc.search.whole_model.scheduler import TrialBudget, make_budget


def tune_model(
    model: Model,
    target: str = "auto",
    trials: int | None = None,
    objective: str = "energy",
    max_slowdown: float = 0.05,
    clocks: str = "fixed",
    seed: int = 0,
    records: str | Path | None = None,
    time_budget_s: float | None = None,
    executor: Executor | None = None,
    progress: bool = True,
    effort: str | None = None,
    trials_per_layer: int | None = None,
    callback: EventListener | None = None,
) -> ModelResult:
    """Tune every layer of a model with one budget of trials: the next trials go to the layer where they are
    expected to save most of the model's energy.

    model: from `ekc.models.from_layers`, `from_onnx`, `from_torch` or `from_exported`. trials: of all layers
    together, at least one for each (default 256 times the number of layers). trials_per_layer: instead, the
    same number for each layer, tuned one after another as by `ekc.tune`. effort: instead, "quick", "standard"
    or "full": at most 64, 256 or 1024 trials a layer in the mean, fewer if no layer's round would pay in the
    passes of the model that the effort expects.
    time_budget_s: seconds of the whole run. callback: called with every `TuningEvent`; `layer` and `model`
    say which layer it is of. The others are those of `ekc.tune`.

    A layer that fails does not end the run: its `failure` says why. Ctrl-C and a callback that returns True
    end the run with the best so far of all layers. The same seed gives the same winners for any number of
    workers, resumed from `records` or not, unless time ran out.

    Raises `InvalidInput` for arguments, `DeviceError` for the target, `RecordError` for a file,
    `NothingLegal` if no layer has a kernel."""
    check_model(model)
    check_executor_and_callback(executor, callback)
    check_flag("progress", progress)
    check_paths(records=records)
    budget = check_model_options(
        *(model, trials, effort, trials_per_layer, max_slowdown, clocks, seed, time_budget_s)
    )
    options = TuneOptions(
        max(budget.trials // len(model.layers), 1),
        *(parse_objective(objective), max_slowdown, clocks == "search", seed, time_budget_s),
    )
    device = devices.open(target)
    with ExitStack() as stack:
        displays = stack.enter_context(show_progress(progress))
        store = stack.enter_context(open_record_store(device, records))
        workers = executor or stack.enter_context(open_worker_pool(device, budget.trials))
        listeners = displays + (() if callback is None else (callback,))
        return ModelSearch(model, device, options, budget, store, workers, listeners).run()


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
