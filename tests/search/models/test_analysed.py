"""What is remembered of genomes is what their analysis says, and is not worked out again."""

from __future__ import annotations

from dataclasses import fields
from functools import partial

import numpy as np
import pytest

from ekc.search.models import analysed as module
from ekc.search.models.analysed import Analysed, Memory, analysed
from ekc.search.population import Population
from tests.search.models.test_power import PEAKS
from tests.search.spaces import legal, space


def _asked(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many genomes are analysed, call by call."""
    counts: list[int] = []
    see = memory.see

    def counting(population: Population) -> Analysed:
        counts.append(len(population))
        return see(population)

    monkeypatch.setattr(memory, "see", counting)
    return counts


def _memory() -> Memory:
    return Memory(space("matmul"), partial(space("matmul").seen, peaks=PEAKS))


def _same(memory: Memory, population: Population) -> None:
    expected = analysed(space("matmul").figures(population), PEAKS)
    found = memory.of(population)
    for field in fields(Analysed):
        np.testing.assert_array_equal(getattr(found, field.name), getattr(expected, field.name))


def test_what_was_analysed_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, everyone = _memory(), legal("matmul", 200)
    _same(memory, everyone[:120])
    _same(memory, everyone[::-1])
    counts = _asked(memory, monkeypatch)
    memory.of(everyone)
    memory.of(everyone[40:90])
    assert counts == []
    memory.of(everyone[:10] + space("matmul").draw(np.random.default_rng(9), 5))
    assert counts == [5]


def test_a_small_memory_forgets_and_stays_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 64)
    memory, everyone = _memory(), legal("matmul", 200)
    for rows in (everyone[:50], everyone[30:80], everyone, everyone[150:], everyone[:100]):
        _same(memory, rows)


def test_the_first_genome_of_all_is_not_taken_as_known(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = _memory()
    counts = _asked(memory, monkeypatch)
    least = Population(np.zeros(1, np.int64), np.zeros((1, len(space("matmul").sizes)), np.int64))
    memory.of(least)
    assert counts == [1]
