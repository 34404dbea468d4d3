"""Traces: they give the outputs of their walks, report invalid walks, and fold calls without changing
results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ekc.errors import EkcError
from ekc.ir.analysis.population_math import Lookup, to_float64
from ekc.ir.trace.recorder import RECORDING_ROWS, Walk, WalkTrace, has_any, record_walks

Steps = Iterator[Sequence[tuple[Any, tuple[Any, ...]]]]


def columns(rows: int, seed: int = 0, low: int = 1) -> dict[str, NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    return {name: random.integers(low, 50, rows) for name in ("a", "b")}


def count_doubles(rows: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.stack([2.0 * rows[:, 0], rows.sum(axis=1, dtype=np.float64)], axis=1)


def label_values(*values: Any) -> list[tuple[int, tuple[Any, ...]]]:
    """Values as a walk yields them, by number."""
    return [(number, (value,)) for number, value in enumerate(values)]


def replay(trace: WalkTrace, given: Mapping[str, Any], bounds: Sequence[int]) -> list[list[Any] | None]:
    """Outputs of a trace for each walk, by number; None for an invalid walk."""
    found, invalid = trace(given, bounds)
    out: list[Any] = [None if walk in invalid else {} for walk in range(len(bounds) - 1)]
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
    table = Lookup(count_doubles, 2)(a, 7, b)
    yield label_values(share, np.minimum(a % 8, 3), 5, np.asanyarray(a, dtype=np.float64))
    # A repeated call is made once; an unused call is not made.
    yield label_values(table[0] + table[1], (a * b) - (a * b), np.sqrt(b) if False else b.sum())


def upward(given: Mapping[str, Any]) -> Steps:
    """A branch that no recorded row takes."""
    yield label_values(given["a"] if np.any(given["a"] < 0) else -given["a"])


def run_directly(given: Mapping[str, Any], of: Any = walk) -> list[list[Any]]:
    return [[value for _, (value,) in part] for part in of(given)]


@pytest.mark.parametrize("rows", [1, 60, RECORDING_ROWS, 1000])
def test_trace_gives_the_outputs_of_the_walk(rows: int) -> None:
    traces, given = record_walks([walk], columns(RECORDING_ROWS)), columns(rows, seed=3)
    for trace, expected in zip(traces, run_directly(given), strict=True):
        (found,) = replay(trace, given, [0, rows])
        assert found is not None
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


BOUNDS = ([0, 40, 90, 170, 300], [0, 0, 1, 1, 300], [0, 300, 300, 300, 300])


def make_sharing_walks() -> list[Walk]:
    """Four walks that share calls: some of all walks, of neighbours, of the outer two, and of none."""

    def one(number: int) -> Walk:
        def walk(given: Mapping[str, Any]) -> Steps:
            a, b = given["a"], given["b"]
            common, pairs = a * b, a // (1 + number // 2)
            outer = np.maximum(a, b) if number in (0, 3) else a
            table = Lookup(count_doubles, 2)(a, number // 2, b)
            yield label_values(common + 1, a * 0 + number + pairs, outer - number)
            yield label_values(
                table[0] + table[1],
                np.maximum(a - a.sum(), common.min(initial=99)),
                np.where(b > 9, a, number),
            )

        return walk

    return [one(number) for number in range(4)]


@pytest.mark.parametrize("bounds", BOUNDS)
def test_walks_that_share_calls_give_outputs_of_their_own_rows(bounds: list[int]) -> None:
    given = columns(bounds[-1], seed=4)
    traces = tuple(record_walks(make_sharing_walks(), columns(RECORDING_ROWS)))
    for number, walk in enumerate(make_sharing_walks()):
        low, high = bounds[number : number + 2]
        own = {name: column[low:high] for name, column in given.items()}
        for trace, expected in zip(traces, run_directly(own, walk), strict=True):
            found = replay(trace, given, bounds)[number]
            assert found is not None
            if low == high:
                continue
            for mine, theirs in zip(found, expected, strict=True):
                np.testing.assert_array_equal(mine, theirs)


def test_shared_call_is_made_once() -> None:
    def shared(given: Mapping[str, Any]) -> Steps:
        yield label_values(given["a"] * given["b"], (given["a"] + given["b"]).sum())

    (trace,) = record_walks([shared] * 5, columns(RECORDING_ROWS))
    # One product and one sum of columns; the sum over rows is made for each walk.
    assert trace.call_count == 2 + 5


@pytest.mark.parametrize("said", [lambda mask: mask.any(), np.any])
def test_branches_are_checked_for_each_walk(said: Any) -> None:
    def upward(given: Mapping[str, Any]) -> Steps:
        yield label_values(given["a"] if said(given["a"] < 0) else -given["a"])

    (trace,) = record_walks([upward] * 4, columns(RECORDING_ROWS))
    given = columns(90, seed=1)
    for invalid in (0, 1, 3):
        own = dict(given) | {"a": given["a"].copy()}
        bounds = [0, 40, 60, 60, 90]
        own["a"][bounds[invalid] + 5] = -1
        found = replay(trace, own, bounds)
        assert [walk for walk in range(4) if found[walk] is None] == [invalid]
        for walk in {0, 1, 3} - {invalid}:
            rows = slice(bounds[walk], bounds[walk + 1])
            np.testing.assert_array_equal(found[walk][0], -given["a"][rows])  # type: ignore[index]


def test_mask_is_checked_once_for_neighbouring_walks() -> None:
    (trace,) = record_walks([upward] * 5, columns(RECORDING_ROWS))
    assert [where.walks for where in trace.empty_masks] == [(0, 1, 2, 3, 4)]


def test_equal_outputs_of_neighbouring_walks_are_given_once() -> None:
    found, invalid = next(record_walks(make_sharing_walks(), columns(RECORDING_ROWS)))(
        columns(300), BOUNDS[0]
    )
    assert not invalid
    given = sorted((label, rows.start, rows.stop) for label, rows, _ in found)
    # The common values, the sums of each walk, and the values of the outer two walks.
    common = [(0, 0, 300)]
    own = [(1, low, high) for low, high in pairwise(BOUNDS[0])]
    outer = [(2, low, high) for low, high in pairwise(BOUNDS[0])]
    assert given == common + own + outer


def test_walks_run_only_as_far_as_requested() -> None:
    reached: list[str] = []

    def slow(given: Mapping[str, Any]) -> Steps:
        reached.append("first")
        yield label_values(given["a"] if np.any(given["a"] < 0) else -given["a"])
        reached.append("second")
        yield label_values(given["b"] if np.any(given["b"] < 0) else -given["b"])

    traces = record_walks([slow, slow], columns(RECORDING_ROWS))
    first = next(traces)
    assert reached == ["first"] * 2
    second = next(traces)
    assert reached == ["first"] * 2 + ["second"] * 2
    # Assumptions of the first trace remain in the second.
    assert [len(trace.empty_masks) for trace in (first, second)] == [1, 2]
    assert [where.walks for trace in (first, second) for where in trace.empty_masks] == [(0, 1)] * 3


def test_repeated_call_is_made_once_and_unused_one_never() -> None:
    def lengthy(given: Mapping[str, Any]) -> Steps:
        _ = np.sqrt(given["a"])
        yield label_values(given["a"] * 2 + given["a"] * 2)

    (trace,) = record_walks([lengthy], columns(RECORDING_ROWS))
    assert trace.call_count == 2


def test_other_branch_outcome_invalidates_the_walk() -> None:
    (trace,) = record_walks([upward], columns(RECORDING_ROWS))
    assert replay(trace, columns(9, seed=1), [0, 9]) != [None]
    assert replay(trace, columns(900, seed=1, low=-9), [0, 900]) == [None]


def test_has_any_is_true_while_recording() -> None:
    def masked(given: Mapping[str, Any]) -> Steps:
        below = given["a"] < 0
        yield label_values(np.where(below, 0, given["a"]) if has_any(below) else given["a"])

    (trace,) = record_walks([masked], columns(RECORDING_ROWS))
    for low in (1, -9):
        given = columns(300, seed=2, low=low)
        (found,) = replay(trace, given, [0, 300])
        assert found is not None
        np.testing.assert_array_equal(found[0], np.maximum(given["a"], 0))
    assert has_any(np.array([False, True]))
    assert not has_any(np.array([False]))


@pytest.mark.parametrize(
    "lose",
    [lambda a: np.array([a.view(np.ndarray), a.view(np.ndarray)]) + a, lambda a: a.view(np.ndarray) + a],
)
def test_vector_that_leaves_the_trace_is_an_error(lose: Any) -> None:
    with pytest.raises(EkcError, match="left the trace"):
        next(record_walks([lambda given: iter([label_values(lose(given["a"]))])], columns(RECORDING_ROWS)))


def test_lookup_counts_each_pattern_once() -> None:
    counted: list[int] = []

    def count(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        counted.extend(rows[:, 0].tolist())
        return rows[:, :1] * 3.0

    table = Lookup(count, 1)
    some_numbers = np.random.default_rng(0).integers(0, 4000, 9000)
    for _ in range(2):
        np.testing.assert_array_equal(table(some_numbers)[0], some_numbers * 3.0)
    assert sorted(counted) == sorted(set(some_numbers.tolist()))


def test_lookup_distinguishes_patterns_of_other_width() -> None:
    table = Lookup(lambda rows: np.full((len(rows), 1), float(rows.shape[1])), 1)
    numbers = np.arange(5)
    for width in (1, 2, 3):
        np.testing.assert_array_equal(table(numbers, *[0] * (width - 1))[0], width)
        np.testing.assert_array_equal(table(numbers, *[numbers * 0] * (width - 1))[0], width)


def test_full_lookup_gives_correct_figures() -> None:
    table = Lookup(lambda rows: rows[:, :1] + rows[:, 1:] * 0.5, 1)
    for start in range(0, 120_000, 40_000):
        numbers = np.arange(start, start + 40_000)
        np.testing.assert_array_equal(table(numbers, 4)[0], numbers + 2.0)


FUNCTIONS = (
    *(np.add, np.subtract, np.multiply, np.divide, np.floor_divide, np.remainder),
    *(np.minimum, np.maximum, np.equal, np.bitwise_and, np.bitwise_or),
)
NUMBERS = (0, 1, 2, -1, 0.0, 1.0, 0.5, False, True, np.asarray(0), np.asarray(1.0), np.True_, np.int64(1))
VECTORS = {
    "whole": np.arange(RECORDING_ROWS) - 9,
    "real": np.linspace(-3.5, 7.25, RECORDING_ROWS),
    "truth": np.arange(RECORDING_ROWS) % 3 == 0,
}
EITHER = st.one_of(st.sampled_from(NUMBERS), st.sampled_from(tuple(VECTORS)))


def record_single_call(function: Any, left: Any, right: Any) -> tuple[Any, int]:
    """Result of a trace of one call, and its number of calls."""

    def walk(columns: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
        yield [("it", (function(*(columns[x] if isinstance(x, str) else x for x in (left, right))),))]

    (trace,) = record_walks([walk], VECTORS)
    (found,), _ = trace(VECTORS, [0, RECORDING_ROWS])
    return found.values[0], trace.call_count


@given(function=st.sampled_from(FUNCTIONS), left=EITHER, right=EITHER)
@example(function=np.remainder, left="truth", right=True)
def test_folded_call_gives_the_numpy_result(function: Any, left: Any, right: Any) -> None:
    operands = [VECTORS[x] if isinstance(x, str) else x for x in (left, right)]
    with np.errstate(all="ignore"):
        try:
            expected = function(*operands)
        except TypeError:
            return
        found, _ = record_single_call(function, left, right)
    assert np.asarray(found).dtype == expected.dtype
    np.testing.assert_array_equal(np.broadcast_to(found, np.shape(expected)), expected)


@pytest.mark.parametrize(
    ("function", "left", "right"),
    [
        (np.multiply, 1, "whole"),
        (np.multiply, "real", np.asarray(1)),
        (np.multiply, "whole", 0),
        (np.add, 0.0, "real"),
        (np.bitwise_and, np.True_, "truth"),
        (np.bitwise_or, "truth", True),
        (np.remainder, "whole", 1),
        (np.minimum, "real", "real"),
        (lambda a, b: np.where(True, a, b), "whole", 0),
    ],
)
def test_neutral_call_is_folded(function: Any, left: Any, right: Any) -> None:
    assert record_single_call(function, left, right)[1] == 0


@pytest.mark.parametrize(
    ("function", "left", "right"),
    [
        # Another type, side or number; and infinity times 0 is not 0.
        (np.multiply, "whole", 1.0),
        (np.subtract, 0, "whole"),
        (np.floor_divide, "real", 1),
        (np.remainder, 1, "whole"),
        (np.multiply, "real", 0.0),
        (np.bitwise_and, "whole", 1),
    ],
)
def test_other_call_is_not_folded(function: Any, left: Any, right: Any) -> None:
    assert record_single_call(function, left, right)[1] == 1


def test_commuted_operands_are_one_call() -> None:
    def walk(columns: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
        whole, real = columns["whole"], columns["real"]
        products = whole * real, real * whole, 2 * whole, whole * np.asarray(2)
        yield [("it", (*products, whole - real, real - whole))]

    (trace,) = record_walks([walk], VECTORS)
    assert trace.call_count == 4


def reduce_rows(given: Mapping[str, Any]) -> Steps:
    """A walk that converts a number over all rows to another type."""
    yield label_values(to_float64(np.max(given["a"])) * to_float64(given["a"]))


def test_number_over_all_rows_is_converted() -> None:
    (trace,), given = record_walks([reduce_rows], columns(RECORDING_ROWS)), columns(50, seed=3)
    (found,) = replay(trace, given, [0, 50])
    assert found is not None
    np.testing.assert_array_equal(found[0], given["a"].max() * given["a"].astype(np.float64))
