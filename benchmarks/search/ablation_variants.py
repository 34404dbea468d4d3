"""Variants of the search that `paper.py` and `ablation.py` compare.

Those of `paper.py` are methods: settings of breeding, rounds and metering. Those of `ablation.py` may also
replace values of the package. A change names an attribute ("module:Class.name") and its value during a run.
So the package needs no option that only an ablation would set. Tunable numbers are changed as `replace(...)`
of the values in `ekc/search/data/defaults.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.search.cost_model.latency_law import LatencyLaw, fit_two_numbers
from ekc.search.data.defaults import BREEDING, POWER_MODEL
from ekc.search.data.options import DEFAULT_METHOD, RANDOM_SEARCH, SearchMethod
from ekc.search.space.evolving_space import EvolvingSpace
from ekc.search.space.space import Space

Array = NDArray[np.float64]

EVERYTHING, DEFAULT, LATENCY = "meter everything", "default", "latency only"
METHODS: dict[str, SearchMethod] = {
    EVERYTHING: SearchMethod(metered_share=1.0),
    DEFAULT: DEFAULT_METHOD,
    "fixed 30 %": SearchMethod(metered_share=0.3),
    "latency x constant power": SearchMethod(power_source="constant"),
    LATENCY: DEFAULT_METHOD,
    "no crossover": SearchMethod(
        breeding=replace(
            BREEDING,
            crossover_share=0.0,
            mutation_share=BREEDING.crossover_share + BREEDING.mutation_share,
        )
    ),
    "random search": RANDOM_SEARCH,
}
"""`LATENCY` makes the latency small, and meters the finalists alone."""


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
    make_space: type[Space] = Space


def skip_trace(evaluator: Any) -> Any:
    """Replace a recorded trace: every structure is analysed by walking its program over vectors."""
    return lambda columns, bounds: ([], set(range(len(evaluator.structures))))


def derive_nothing(*arguments: Any) -> list[Any]:
    """Replace a rule of the space: it gives no structure."""
    return []


def _fix_population(size: int) -> SearchMethod:
    """The default method with a population of constant size."""
    return SearchMethod(breeding=replace(BREEDING, min_population=size, max_population=size))


def train_nothing(*arguments: Any) -> None:
    """Replace the trees of the power model: there are none."""


def fit_two_numbers_alone(latency_s: Array, watts: Array, weights: Array) -> LatencyLaw:
    """Replace the law of power by latency: P0 + E0 / latency, without the power law."""
    return LatencyLaw(fit_two_numbers(latency_s, watts, weights), 1.0, 0.0, 0.0)


def _change_power_model(**values: float) -> dict[str, Any]:
    """The change of tunable numbers of the power model."""
    return {"ekc.search.cost_model.power_model:POWER_MODEL": replace(POWER_MODEL, **values)}


EVALUATOR = "ekc.search.space.constraints:StructureEvaluator"
SKETCHES = "ekc.search.sketches.multi_level_tiling"
PLAIN_WALK = {f"{EVALUATOR}.{name}": property(skip_trace) for name in ("_rule_trace", "_quantity_trace")}
POPULATIONS = {"population 512": 512, "population 2,048": 2048, "population 8,192": 8192}
"""Variants that change the size of the population alone."""

VARIANTS: dict[str, Variant] = {
    DEFAULT: Variant(),
    "no boosted model": Variant(method=SearchMethod(corrects_prior=False)),
    **{name: Variant(method=_fix_population(size)) for name, size in POPULATIONS.items()},
    "stop rule": Variant(calls_per_trial=1e8 / 256),
    **{name: Variant(method=METHODS[name]) for name in ("no crossover", "random search")},
    "evolving steps": Variant(needs_own_space=True, make_space=EvolvingSpace),
    "plain walk": Variant(PLAIN_WALK, needs_own_space=True),
    "no split-K": Variant({f"{SKETCHES}:derive_split_k": derive_nothing}, needs_own_space=True),
}
"""Name -> variant. Finished runs are stored under these names."""
STAGE_ONE = (DEFAULT, "no boosted model", *POPULATIONS, "stop rule", "no split-K")
"""Variants that run where none are named."""

POWER = "ekc.search.cost_model.power_model"
ENERGY_VARIANTS: dict[str, Variant] = {
    "constant power": Variant(method=METHODS["latency x constant power"]),
    "no prior of power": Variant(_change_power_model(prior_slope=0.0, prior_slope_variance=1e12)),
    "no trees of metered kernels": Variant({f"{POWER}:train_metered_trees": train_nothing}),
    "equal weights of both laws": Variant(_change_power_model(share_error=1e6)),
    "P0 t + E0 without power law": Variant({f"{POWER}:fit_latency_law": fit_two_numbers_alone}),
}
"""Variants of what touches energy alone: they run with the objective energy."""
VARIANTS |= ENERGY_VARIANTS


@contextmanager
def apply_changes(changes: Mapping[str, Any]) -> Iterator[None]:
    """Set attributes within the block and restore them at its end. Raises KeyError for an attribute that does
    not exist, or that a subclass in `ekc` overrides: there the change would have no effect."""
    originals: list[tuple[Any, str, Any]] = []
    try:
        for path, value in changes.items():
            module, _, names = path.partition(":")
            owner: Any = import_module(module)
            *outer, name = names.split(".")
            for each in outer:
                owner = getattr(owner, each)
            subclasses = owner.__subclasses__() if isinstance(owner, type) else ()
            if any(name in vars(c) for c in subclasses if c.__module__.startswith("ekc.")):
                raise KeyError(f"{path}: overridden by a subclass")
            originals.append((owner, name, vars(owner)[name]))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(originals):
            setattr(owner, name, value)
