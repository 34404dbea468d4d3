"""Features of schedules, and the cache of model inputs, which analyses no genome twice."""

from __future__ import annotations

import tracemalloc
from dataclasses import fields
from functools import partial

import numpy as np
import pytest

from ekc.devices.analytic_prior import predict_prior
from ekc.search.cost_model import features
from ekc.search.cost_model.feature_table import FEATURE_NAMES
from ekc.search.cost_model.features import (
    ModelInputCache,
    ModelInputs,
    build_features,
    make_model_inputs,
)
from ekc.search.data.defaults import FeatureCacheSettings
from ekc.search.data.population import Population
from tests.search.helpers import EACH, PEAKS, legal, space

PRIOR = partial(predict_prior, peaks=PEAKS)


def _count_analysed(memory: ModelInputCache, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of genomes analysed by each call."""
    counts: list[int] = []
    see = memory.extract_inputs

    def counting(population: Population) -> ModelInputs:
        counts.append(len(population))
        return see(population)

    monkeypatch.setattr(memory, "extract_inputs", counting)
    return counts


def _memory() -> ModelInputCache:
    make_inputs = partial(make_model_inputs, predict_prior=PRIOR)
    return ModelInputCache(space("matmul"), partial(space("matmul").extract_inputs, make_inputs=make_inputs))


def _same(memory: ModelInputCache, population: Population) -> None:
    expected = make_model_inputs(space("matmul").compute_quantities(population), PRIOR)
    found = memory.get_inputs(population)
    for field in fields(ModelInputs):
        np.testing.assert_array_equal(getattr(found, field.name), getattr(expected, field.name))


def test_cache_returns_analysed_genomes_without_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, genomes = _memory(), legal("matmul", 200)
    _same(memory, genomes[:120])
    _same(memory, genomes[::-1])
    counts = _count_analysed(memory, monkeypatch)
    memory.get_inputs(genomes)
    memory.get_inputs(genomes[40:90])
    assert counts == []
    memory.get_inputs(genomes[:10] + space("matmul").sample(np.random.default_rng(9), 5))
    assert counts == [5]


def test_small_cache_evicts_and_stays_correct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "FEATURE_CACHE", FeatureCacheSettings(max_genomes=64))
    memory, genomes = _memory(), legal("matmul", 200)
    for rows in (genomes[:50], genomes[30:80], genomes, genomes[150:], genomes[:100]):
        _same(memory, rows)


def test_cleared_cache_takes_no_memory_until_its_next_use() -> None:
    genomes = legal("matmul", 20)
    space("matmul").compute_keys(genomes)
    tracemalloc.start()
    memory = _memory()
    unused = tracemalloc.get_traced_memory()[0]
    memory.get_inputs(genomes)
    used = tracemalloc.get_traced_memory()[0]
    memory.clear()
    freed = used - tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert unused < 100_000
    assert freed > 15_000_000
    _same(memory, genomes)


def test_genome_of_zeros_is_not_cached_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = _memory()
    counts = _count_analysed(memory, monkeypatch)
    zeros = Population(np.zeros(1, np.int64), np.zeros((1, len(space("matmul").decision_sizes)), np.int64))
    memory.get_inputs(zeros)
    assert counts == [1]


@pytest.mark.parametrize("name", EACH)
def test_features_are_finite_for_random_genomes(name: str) -> None:
    for population in (legal(name, 300), space(name).sample(np.random.default_rng(9), 300)):
        table = build_features(space(name).compute_quantities(population))
        assert table.shape == (len(population), len(FEATURE_NAMES))
        assert table.dtype == np.float32
        assert np.isfinite(table).all(), [
            n for i, n in enumerate(FEATURE_NAMES) if not np.isfinite(table[:, i]).all()
        ]
    assert (table.std(axis=0) > 0).sum() >= 15
