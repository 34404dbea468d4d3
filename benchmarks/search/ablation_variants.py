"""Variants of the search that `ablation.py` compares: sets of values that replace those of the package.

A change names an attribute ("module:Class.name") and its value during a run. So the package needs no option
that only an ablation would set. Tunable numbers are changed as `replace(...)` of the values in
`ekc/search/data/defaults.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.paper_runs import METHODS
from ekc.search.cost_model.surrogate import Surrogate
from ekc.search.data.defaults import BREEDING
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


def skip_trace(evaluator: Any) -> Any:
    """Replace a recorded trace: every structure is analysed by walking its program over vectors."""
    return lambda columns, bounds: ([], set(range(len(evaluator.structures))))


def _fix_population(size: int) -> SearchMethod:
    """The default method with a population of constant size."""
    return SearchMethod(breeding=replace(BREEDING, min_population=size, max_population=size))


SURROGATE, EVALUATOR = (
    "ekc.search.cost_model.learner:Surrogate",
    "ekc.search.space.constraints:StructureEvaluator",
)
PLAIN_WALK = {f"{EVALUATOR}.{name}": property(skip_trace) for name in ("_rule_trace", "_quantity_trace")}
POPULATIONS = {"population 512": 512, "population 2,048": 2048, "population 8,192": 8192}
"""Variants that change the size of the population alone."""
METHOD_NAMES = ("no crossover", "random search")
"""Variants that `paper.py` compares too."""

VARIANTS: dict[str, Variant] = {
    DEFAULT: Variant(),
    "trees and process": Variant({SURROGATE: partial(Surrogate, tree_share=0.5)}),
    "trees alone": Variant({SURROGATE: partial(Surrogate, tree_share=1.0)}),
    **{name: Variant(method=_fix_population(size)) for name, size in POPULATIONS.items()},
    "stop rule": Variant(calls_per_trial=1e8 / 256),
    **{name: Variant(method=METHODS[name]) for name in METHOD_NAMES},
    "plain walk": Variant(PLAIN_WALK, needs_own_space=True),
}
"""Name -> variant. Finished runs are stored under these names."""
STAGE_ONE = (DEFAULT, "trees and process", "trees alone", *POPULATIONS, "stop rule")
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
