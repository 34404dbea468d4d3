"""The variants of the search that `ablation.py` compares: what each changes in the package, as values.

A change names an attribute ("module:Class.name") and what stands there while a run lasts. So no option is
added to the package that nobody else sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DEFAULT = "default"


@dataclass(frozen=True)
class Variant:
    """What is changed for a run."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    calls_per_trial: float | None = None
    """With the stop rule: calls of the kernel, by trials asked for, that the saving of a round counts in."""
    method: str | None = None
    """How schedules are proposed, where not bred: "mutated" or "drawn"."""
    own_space: bool = False
    """Whether the space is made anew for the run, because the change is in the space."""
    second_process: bool = False
    """Whether a second process works on half of each population."""
    recorded: bool = False
    """Whether it says something on recorded spaces alone: elsewhere it is the default."""
    identical: bool = False
    """Whether every trial must be that of the default: then only the time is compared."""


class NoTrees:
    """In place of the boosted trees, where nobody asks them."""

    def __init__(self, seed: int) -> None:
        """Takes what the trees take."""

    def add(self, *figures: Any) -> None:
        """Nothing is learned."""

    def fit(self) -> None:
        """Nothing is learned."""


def believe_process(belief: Any, rows: NDArray[np.float32], priors: Array) -> tuple[Array, Array, Array]:
    """Mean, spread and surprise by the process alone."""
    mean, spread, surprise = belief.process.predict(rows.astype(np.float64))
    return mean + np.log(priors), spread, surprise


def believe_trees(belief: Any, rows: NDArray[np.float32], priors: Array) -> tuple[Array, Array, Array]:
    """Mean by the trees alone. They do not say how sure they are: the spread is the same everywhere, and as
    large as they were wrong in the mean about kernels that they had not seen."""
    mean = np.log(belief.trees.predict(rows, priors))
    told = [s for s in belief._surprises if math.isfinite(s)]
    wrong = (4.0 + sum(told)) / (4.0 + len(told))
    return mean, np.full(len(mean), 0.5), np.full(len(mean), wrong)


def learn_nothing(process: Any, *figures: Any) -> None:
    """In place of a fit of the process: pairs of a batch are as alike as the prior's lengths say."""


def walk_plainly(walks: Any) -> Any:
    """In place of a recorded tape: all structures are left to the plain walk over vectors."""
    return lambda columns, bounds: ([], set(range(len(walks.structures))))


def _population(size: int) -> dict[str, Any]:
    return {"ekc.search.run:population_size": lambda trials: size}


BELIEF, WALKS = "ekc.search.models.belief", "ekc.search.space.walks:Walks"
PLAIN_WALK = {f"{WALKS}._rules": property(walk_plainly), f"{WALKS}._figures": property(walk_plainly)}

VARIANTS: dict[str, Variant] = {
    DEFAULT: Variant(),
    "no surprise scaling": Variant({"ekc.search.models.gaussian:FAITH": math.inf}),
    "process alone": Variant(
        {f"{BELIEF}:Belief._plain": believe_process, f"{BELIEF}:ResidualModel": NoTrees},
    ),
    "trees alone": Variant(
        {
            f"{BELIEF}:Belief._plain": believe_trees,
            "ekc.search.models.gaussian:GaussianProcess.fit": learn_nothing,
        },
    ),
    "population 512": Variant(_population(512)),
    "population 2,048": Variant(_population(2048)),
    "population 8,192": Variant(_population(8192)),
    "stop rule": Variant(calls_per_trial=1e8 / 256),
    "no crossover": Variant(method="mutated"),
    "random search": Variant(method="drawn"),
    "second process": Variant(own_space=True, second_process=True, identical=True),
    "plain walk": Variant(PLAIN_WALK, own_space=True),
    "both": Variant(recorded=True),
    "2,048, plain walk": Variant(PLAIN_WALK | _population(2048), own_space=True),
}
STAGE_ONE = tuple(list(VARIANTS)[:8])
"""What is run where no variants are named."""


@contextmanager
def changed(changes: Mapping[str, Any]) -> Iterator[None]:
    """Within the block the attributes are what `changes` says. Raises KeyError for what does not exist."""
    kept: list[tuple[Any, str, Any]] = []
    try:
        for path, value in changes.items():
            module, _, names = path.partition(":")
            owner: Any = import_module(module)
            *outer, name = names.split(".")
            for each in outer:
                owner = getattr(owner, each)
            kept.append((owner, name, vars(owner)[name]))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(kept):
            setattr(owner, name, value)
