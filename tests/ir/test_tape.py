"""A recorded walk gives what the walk gives, says where it does not hold, and loses no vector in silence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ekc.errors import EkcError
from ekc.ir.analysis.population_math import Lookup
from ekc.ir.trace.recorder import RECORDING_ROWS, Walk, has_any, record_walks
from ekc.ir.trace.trace import WalkTrace

Steps = Iterator[Sequence[tuple[Any, tuple[Any, ...]]]]


def columns(rows: int, seed: int = 0, low: int = 1) -> dict[str, NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    return {name: random.integers(low, 50, rows) for name in ("a", "b")}


def doubled(rows: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.stack([2.0 * rows[:, 0], rows.sum(axis=1, dtype=np.float64)], axis=1)


def told(*values: Any) -> list[tuple[int, tuple[Any, ...]]]:
    """Values as a walk yields them, by number."""
    return [(number, (value,)) for number, value in enumerate(values)]


def played(tape: WalkTrace, given: Mapping[str, Any], bounds: Sequence[int]) -> list[list[Any] | None]:
    """What a tape gives for each walk, by number; None for a walk astray."""
    found, astray = tape(given, bounds)
    out: list[Any] = [None if walk in astray else {} for walk in range(len(bounds) - 1)]
    for label, rows, (value,) in found:
        for walk, (low, high) in enumerate(pairwise(bounds)):
            if rows.start <= low < high <= rows.stop:
                part = value[low - rows.start : high - rows.start] if np.ndim(value) else value
                assert label not in out[walk]
                out[walk][label] = part
    return [None if own is None else [own[label] for label in sorted(own)] for own in out]


def walk(given: Mapping[str, Any]) -> Steps:
    a, b = given["a"], given["b"]
    share = np.where(a > b, a / b, 1.0)
    table = Lookup(doubled, 2)(a, 7, b)
    yield told(share, np.minimum(a % 8, 3), 5, np.asanyarray(a, dtype=np.float64))
    # Said twice, done once; said and not asked for, not done.
    yield told(table[0] + table[1], (a * b) - (a * b), np.sqrt(b) if False else b.sum())


def direct(given: Mapping[str, Any], of: Any = walk) -> list[list[Any]]:
    return [[value for _, (value,) in part] for part in of(given)]


@pytest.mark.parametrize("rows", [1, 60, RECORDING_ROWS, 1000])
def test_a_tape_gives_what_the_walk_gives(rows: int) -> None:
    tapes, given = record_walks([walk], columns(RECORDING_ROWS)), columns(rows, seed=3)
    for tape, expected in zip(tapes, direct(given), strict=True):
        (found,) = played(tape, given, [0, rows])
        assert found is not None
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


BOUNDS = ([0, 40, 90, 170, 300], [0, 0, 1, 1, 300], [0, 300, 300, 300, 300])


def several() -> list[Walk]:
    """Four walks that share some calls: all, neighbours, the outer two, and none."""

    def one(number: int) -> Walk:
        def walk(given: Mapping[str, Any]) -> Steps:
            a, b = given["a"], given["b"]
            everyone, pairs = a * b, a // (1 + number // 2)
            outer = np.maximum(a, b) if number in (0, 3) else a
            table = Lookup(doubled, 2)(a, number // 2, b)
            yield told(everyone + 1, a * 0 + number + pairs, outer - number)
            yield told(
                table[0] + table[1],
                np.maximum(a - a.sum(), everyone.min(initial=99)),
                np.where(b > 9, a, number),
            )

        return walk

    return [one(number) for number in range(4)]


@pytest.mark.parametrize("bounds", BOUNDS)
def test_walks_that_share_calls_give_what_each_gives_of_its_own_rows(bounds: list[int]) -> None:
    given = columns(bounds[-1], seed=4)
    tapes = tuple(record_walks(several(), columns(RECORDING_ROWS)))
    for number, walk in enumerate(several()):
        low, high = bounds[number : number + 2]
        own = {name: column[low:high] for name, column in given.items()}
        for tape, expected in zip(tapes, direct(own, walk), strict=True):
            found = played(tape, given, bounds)[number]
            assert found is not None
            if low == high:
                continue
            for mine, theirs in zip(found, expected, strict=True):
                np.testing.assert_array_equal(mine, theirs)


def test_what_walks_share_is_done_once() -> None:
    def shared(given: Mapping[str, Any]) -> Steps:
        yield told(given["a"] * given["b"], (given["a"] + given["b"]).sum())

    (tape,) = record_walks([shared] * 5, columns(RECORDING_ROWS))
    # One product and one sum of columns; the sum over rows for each walk alone.
    assert tape.call_count == 2 + 5


@pytest.mark.parametrize("said", [lambda mask: mask.any(), np.any])
def test_each_walk_goes_its_own_way(said: Any) -> None:
    def upward(given: Mapping[str, Any]) -> Steps:
        yield told(given["a"] if said(given["a"] < 0) else -given["a"])

    (tape,) = record_walks([upward] * 4, columns(RECORDING_ROWS))
    given = columns(90, seed=1)
    for astray in (0, 1, 3):
        own = dict(given) | {"a": given["a"].copy()}
        bounds = [0, 40, 60, 60, 90]
        own["a"][bounds[astray] + 5] = -1
        found = played(tape, own, bounds)
        assert [walk for walk in range(4) if found[walk] is None] == [astray]
        for walk in {0, 1, 3} - {astray}:
            rows = slice(bounds[walk], bounds[walk + 1])
            np.testing.assert_array_equal(found[walk][0], -given["a"][rows])  # type: ignore[index]


def test_what_no_row_may_be_is_asked_once_of_walks_that_stand_together() -> None:
    def upward(given: Mapping[str, Any]) -> Steps:
        yield told(given["a"] if np.any(given["a"] < 0) else -given["a"])

    (tape,) = record_walks([upward] * 5, columns(RECORDING_ROWS))
    assert [where.walks for where in tape.empty_masks] == [(0, 1, 2, 3, 4)]


def test_what_walks_that_stand_together_give_alike_is_given_once() -> None:
    found, astray = next(record_walks(several(), columns(RECORDING_ROWS)))(columns(300), BOUNDS[0])
    assert not astray
    given = sorted((label, rows.start, rows.stop) for label, rows, _ in found)
    # What all have; the sums that are each one's own; what the outer two have apart.
    everyone = [(0, 0, 300)]
    own = [(1, low, high) for low, high in pairwise(BOUNDS[0])]
    apart = [(2, low, high) for low, high in pairwise(BOUNDS[0])]
    assert given == everyone + own + apart


def test_walks_go_no_further_than_they_are_asked_to() -> None:
    gone: list[str] = []

    def slow(given: Mapping[str, Any]) -> Steps:
        gone.append("first")
        yield told(given["a"] if np.any(given["a"] < 0) else -given["a"])
        gone.append("second")
        yield told(given["b"] if np.any(given["b"] < 0) else -given["b"])

    tapes = record_walks([slow, slow], columns(RECORDING_ROWS))
    first = next(tapes)
    assert gone == ["first"] * 2
    second = next(tapes)
    assert gone == ["first"] * 2 + ["second"] * 2
    # What was taken for granted until then stays so.
    assert [len(tape.empty_masks) for tape in (first, second)] == [1, 2]
    assert [where.walks for tape in (first, second) for where in tape.empty_masks] == [(0, 1)] * 3


def test_a_call_said_twice_is_done_once_and_an_idle_one_never() -> None:
    def lengthy(given: Mapping[str, Any]) -> Steps:
        _ = np.sqrt(given["a"])
        yield told(given["a"] * 2 + given["a"] * 2)

    (tape,) = record_walks([lengthy], columns(RECORDING_ROWS))
    assert tape.call_count == 2


def test_a_branch_that_would_go_another_way_is_told() -> None:
    def branching(given: Mapping[str, Any]) -> Steps:
        yield told(given["a"] if np.any(given["a"] < 0) else -given["a"])

    (tape,) = record_walks([branching], columns(RECORDING_ROWS))
    assert played(tape, columns(9, seed=1), [0, 9]) != [None]
    assert played(tape, columns(900, seed=1, low=-9), [0, 900]) == [None]


def test_some_takes_the_general_way() -> None:
    def masked(given: Mapping[str, Any]) -> Steps:
        below = given["a"] < 0
        yield told(np.where(below, 0, given["a"]) if has_any(below) else given["a"])

    (tape,) = record_walks([masked], columns(RECORDING_ROWS))
    for low in (1, -9):
        given = columns(300, seed=2, low=low)
        (found,) = played(tape, given, [0, 300])
        assert found is not None
        np.testing.assert_array_equal(found[0], np.maximum(given["a"], 0))
    assert has_any(np.array([False, True]))
    assert not has_any(np.array([False]))


@pytest.mark.parametrize(
    "lose",
    [lambda a: np.array([a.view(np.ndarray), a.view(np.ndarray)]) + a, lambda a: a.view(np.ndarray) + a],
)
def test_a_vector_that_leaves_the_tape_is_an_error(lose: Any) -> None:
    with pytest.raises(EkcError, match="left the trace"):
        next(record_walks([lambda given: iter([told(lose(given["a"]))])], columns(RECORDING_ROWS)))


def test_a_lookup_counts_each_pattern_once_and_never_forgets_a_result() -> None:
    asked: list[int] = []

    def count(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        asked.extend(rows[:, 0].tolist())
        return rows[:, :1] * 3.0

    table = Lookup(count, 1)
    some_numbers = np.random.default_rng(0).integers(0, 4000, 9000)
    for _ in range(2):
        np.testing.assert_array_equal(table(some_numbers)[0], some_numbers * 3.0)
    assert sorted(asked) == sorted(set(some_numbers.tolist()))


def test_a_pattern_of_more_numbers_is_another_whatever_they_are() -> None:
    table = Lookup(lambda rows: np.full((len(rows), 1), float(rows.shape[1])), 1)
    numbers = np.arange(5)
    for width in (1, 2, 3):
        np.testing.assert_array_equal(table(numbers, *[0] * (width - 1))[0], width)
        np.testing.assert_array_equal(table(numbers, *[numbers * 0] * (width - 1))[0], width)


def test_a_full_table_still_answers_right() -> None:
    table = Lookup(lambda rows: rows[:, :1] + rows[:, 1:] * 0.5, 1)
    for start in range(0, 120_000, 40_000):
        numbers = np.arange(start, start + 40_000)
        np.testing.assert_array_equal(table(numbers, 4)[0], numbers + 2.0)
