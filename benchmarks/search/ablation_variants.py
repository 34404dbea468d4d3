"""Variants of the search that `ablation.py` compares: sets of values that replace those of the package.

A change names an attribute ("module:Class.name") and its value during a run. So the package needs no option
that only an ablation would set. Tunable numbers are changed as `replace(...)` of the values in
`ekc/search/data/defaults.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.paper_runs import METHODS
from ekc.search.data.defaults import BREEDING, GAUSSIAN_PROCESS
from ekc.search.data.options import DEFAULT_METHOD, SearchMethod

Array = NDArray[np.float64]

DEFAULT = "default"


@dataclass(frozen=True)
class Variant:
    """The changes of one variant."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    """Attribute -> its value during a run."""
    calls_per_trial: float | None = None
    """Calls of the kernel over its life for each trial of the run, for the stopping rule. None: no rule."""
    method: SearchMethod = DEFAULT_METHOD
    """Settings of breeding, rounds and metering."""
    needs_own_space: bool = False
    """Whether the change is in the space, so that a run cannot share the space of the default."""
    uses_background_worker: bool = False
    """Whether a second process computes half of each population."""
    is_recorded_only: bool = False
    """Whether the variant differs from the default on recorded spaces only."""
    must_be_identical: bool = False
    """Whether every trial must equal that of the default. Then only the time is compared."""


class NoTrees:
    """Replacement of the boosted trees where their predictions are not used."""

    def __init__(self, seed: int) -> None:
        """`seed` is ignored."""

    def add_row(self, *figures: Any) -> None:
        """Ignore a measured kernel."""

    def fit(self) -> None:
        """Learn nothing."""


def predict_by_process(
    surrogate: Any, rows: NDArray[np.float32], priors: Array
) -> tuple[Array, Array, Array]:
    """(mean, standard deviation, calibration) by the Gaussian process alone."""
    mean, std, calibration = surrogate.gaussian_process.predict(rows.astype(np.float64))
    return mean + np.log(priors), std, calibration


def predict_by_trees(surrogate: Any, rows: NDArray[np.float32], priors: Array) -> tuple[Array, Array, Array]:
    """(mean, standard deviation, calibration) by the trees alone. Trees give no uncertainty: the standard
    deviation is constant, scaled by the mean squared z-score of the rows measured after their prediction."""
    mean = np.log(surrogate.trees.predict(rows, priors))
    squares = [s for s in surrogate._squared_z_scores if math.isfinite(s)]
    calibration = (4.0 + sum(squares)) / (4.0 + len(squares))
    return mean, np.full(len(mean), 0.5), np.full(len(mean), calibration)


def skip_fit(process: Any, *arguments: Any) -> None:
    """Replace the fit of the Gaussian process: correlations within a batch stay those of the prior."""


def skip_trace(evaluator: Any) -> Any:
    """Replace a recorded trace: every structure is analysed by walking its program over vectors."""
    return lambda columns, bounds: ([], set(range(len(evaluator.structures))))


def _fix_population(size: int) -> SearchMethod:
    """The default method with a population of constant size."""
    return SearchMethod(breeding=replace(BREEDING, min_population=size, max_population=size))


PROCESS = "ekc.search.cost_model.gaussian_process"
SURROGATE, EVALUATOR = (
    "ekc.search.cost_model.surrogate",
    "ekc.search.space.constraints:StructureEvaluator",
)
PLAIN_WALK = {f"{EVALUATOR}.{name}": property(skip_trace) for name in ("_rule_trace", "_quantity_trace")}
POPULATIONS = {"population 512": 512, "population 2,048": 2048, "population 8,192": 8192}
"""Variants that change the size of the population alone."""
METHOD_NAMES = ("no crossover", "random search")
"""Variants that `paper.py` compares too."""

VARIANTS: dict[str, Variant] = {
    DEFAULT: Variant(),
    "no surprise scaling": Variant(
        {f"{PROCESS}:GAUSSIAN_PROCESS": replace(GAUSSIAN_PROCESS, calibration_shrinkage=math.inf)}
    ),
    "process alone": Variant(
        {
            f"{SURROGATE}:Surrogate._predict_uncalibrated": predict_by_process,
            f"{SURROGATE}:ResidualModel": NoTrees,
        }
    ),
    "trees alone": Variant(
        {
            f"{SURROGATE}:Surrogate._predict_uncalibrated": predict_by_trees,
            f"{PROCESS}:GaussianProcess.fit": skip_fit,
        }
    ),
    **{name: Variant(method=_fix_population(size)) for name, size in POPULATIONS.items()},
    "stop rule": Variant(calls_per_trial=1e8 / 256),
    **{name: Variant(method=METHODS[name]) for name in METHOD_NAMES},
    "second process": Variant(needs_own_space=True, uses_background_worker=True, must_be_identical=True),
    "plain walk": Variant(PLAIN_WALK, needs_own_space=True),
    "both": Variant(is_recorded_only=True),
    "2,048, plain walk": Variant(PLAIN_WALK, method=_fix_population(2048), needs_own_space=True),
}
"""Name -> variant. Finished runs are stored under these names."""
STAGE_ONE = tuple(list(VARIANTS)[:8])
"""Variants that run where none are named."""


@contextmanager
def apply_changes(changes: Mapping[str, Any]) -> Iterator[None]:
    """Set attributes within the block and restore them at its end. Raises KeyError for an attribute that does
    not exist."""
    originals: list[tuple[Any, str, Any]] = []
    try:
        for path, value in changes.items():
            module, _, names = path.partition(":")
            owner: Any = import_module(module)
            *outer, name = names.split(".")
            for each in outer:
                owner = getattr(owner, each)
            originals.append((owner, name, vars(owner)[name]))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(originals):
            setattr(owner, name, value)
