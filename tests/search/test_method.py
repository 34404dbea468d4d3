"""The ways to search that the benchmark compares: each does what it says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

import ekc
from ekc import devices
from ekc.errors import InvalidInput
from ekc.search.data.options import TuneOptions
from ekc.search.data.population import Population
from ekc.search.database.database import RecordStore
from ekc.search.loop.breeding import Breeder, SearchMethod
from ekc.search.loop.measure import Measurer
from ekc.search.run import TuningRun
from ekc.search.space.space import Space
from ekc.search.tuning_result import TuningResult
from tests.search.spaces import space


def searched(
    method: SearchMethod, objective: str = "energy", trials: int = 24
) -> tuple[TuningResult, TuningRun]:
    wish = TuneOptions(trials, objective, 0.05, False, 0, None)
    with RecordStore(None) as store, ThreadPoolExecutor(2) as workers:
        bench = Measurer(devices.open("a100"), store)
        run = TuningRun(
            Space(ekc.matvec(256, 256), bench.device.limits),
            bench,
            workers,
            wish,
            None,
            method,
        )
        return run.run(()), run


class Watched:
    """A space that counts what the breeder asks of it."""

    def __init__(self) -> None:
        self.space = space("matvec")
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> object:
        self.asked.append(name)
        return getattr(self.space, name)


def _first_column(population: Population) -> NDArray[np.float64]:
    return population.genes[:, 0].astype(np.float64)


@pytest.mark.parametrize(
    ("proposals", "crossed", "mutated"),
    [("bred", True, True), ("mutated", False, True), ("drawn", False, False)],
)
def test_only_what_is_bred_is_crossed(proposals: str, crossed: bool, mutated: bool) -> None:
    watched = Watched()
    made = SearchMethod(proposals=proposals).make_breeder(watched, np.random.default_rng(0), 64)  # type: ignore[arg-type]
    found, scores = made.evolve(None, _first_column)
    assert len(found) == len(scores) > 30
    assert ("cross" in watched.asked) == crossed
    assert ("mutate" in watched.asked) == mutated


def test_random_search_listens_to_nothing() -> None:
    """Neither parents nor scores change what is drawn, and breeding does not draw the same."""
    found = []
    for parents, sign in ((None, 1.0), (space("matvec").sample(np.random.default_rng(5), 20), -1.0)):
        made = SearchMethod(proposals="drawn").make_breeder(space("matvec"), np.random.default_rng(0), 64)
        found.append(made.evolve(parents, lambda p, sign=sign: sign * _first_column(p))[0].genes)  # type: ignore[misc]
    np.testing.assert_array_equal(*found)
    bred = Breeder(space("matvec"), np.random.default_rng(0), 64).evolve(None, _first_column)[0]
    assert not np.array_equal(bred.genes[: len(found[0])], found[0][: len(bred)])


def test_everything_is_metered_where_that_is_asked() -> None:
    result, _ = searched(SearchMethod(metered_share=1.0))
    timed = [t for t in result.trials if t.ok]
    assert len(timed) == result.metered_count > 20
    assert all(card.share == 1.0 for card in result.model_cards)


def test_a_fixed_share_is_kept() -> None:
    result, run = searched(SearchMethod(metered_share=0.3), trials=40)
    assert {card.share for card in result.model_cards} == {0.3}
    assert 4 < run.task.learner.power_model.row_count <= 0.3 * result.trial_count + 4


def test_constant_power_ranks_by_latency_alone() -> None:
    result, _ = searched(SearchMethod(power_source="constant"))
    told = [t.power_w for t in result.trials if t.ok and not t.metered]
    assert len(told) > 5
    assert len({round(w, 6) for w in told if w is not None}) == 1


def test_the_latency_objective_meters_the_finalists_alone() -> None:
    result, run = searched(SearchMethod(), objective="latency")
    assert run.task.learner.power_model.row_count == 0
    assert 0 < result.metered_count <= 6
    assert result.best == result.fastest


def test_a_share_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidInput, match="metered: 30 is outside 0 to 1"):
        SearchMethod(metered_share=30)
