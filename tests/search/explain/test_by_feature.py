"""The account by features: it adds up, finds the law behind made-up figures, does not learn from the
schedules that it explains, and states its error."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import ekc
from ekc import devices
from ekc.devices.recording import RecordedDevice
from ekc.devices.simulated import data_sheet_prior, specs
from ekc.errors import InvalidInput, RecordError
from ekc.search.cost_model.feature_table import FEATURES
from ekc.search.cost_model.features import build_features
from ekc.search.data.defaults import SURROGATE
from ekc.search.database.measured_set import MeasuredSet, analyse_schedules, load_measured_set
from ekc.search.explain.by_feature import (
    FEATURE_GROUPS,
    UNEXPLAINED,
    EnergyAccount,
    ExplainedSchedule,
    GroupContribution,
    LearnedExplanation,
    compute_shapley_values,
    explain_learned,
    make_account,
)
from ekc.search.explain.schedule_model import (
    FOLDS,
    MIN_METERED,
    ModelQuality,
    PredictionScore,
    cross_validate,
)
from tests.search.helpers import LAW_OP, Law, by_barriers, by_global_memory, law_schedules, record_law

A100 = devices.open("a100")


def opened(path: Path) -> RecordedDevice:
    return RecordedDevice.open(f"recorded:{path}")


def load(device: RecordedDevice) -> MeasuredSet:
    return load_measured_set(LAW_OP, device, None)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> RecordedDevice:
    file = tmp_path_factory.mktemp("gpu") / "global.jsonl.gz"
    return opened(record_law(file, by_global_memory, count=36, metered=24, failed=3))


def test_feature_groups_have_every_model_input_once() -> None:
    members = [name for group in FEATURE_GROUPS.values() for name in group]
    assert len(members) == len(set(members))
    assert {quantity for f in FEATURES for quantity in (f.quantity, f.divisor) if quantity} <= set(members)
    # Nothing else matters: a schedule's figures of no group can be those of another.
    one, other = (analyse_schedules([s], A100.limits) for s in (law_schedules()[1], law_schedules()[7]))
    mixed = {name: (other if name in members else one)[name] for name in one}
    assert len(FEATURES) == build_features(mixed).shape[1]
    np.testing.assert_array_equal(build_features(mixed), build_features(other))
    for predict_prior in (A100.prior, partial(data_sheet_prior.predict_prior, specs.A100, clock_mhz=1410.0)):
        first, second = predict_prior(quantities=mixed), predict_prior(quantities=other)
        assert (first.latency_s, first.power_w) == (second.latency_s, second.power_w)


@pytest.mark.parametrize(("one", "other"), [(0, 3), (3, 0), (5, 30), (30, 31), (2, 38), (7, 7)])
def test_lines_add_up_to_measured_ratio(gpu: RecordedDevice, one: int, other: int) -> None:
    """Also where one was only timed (24 and on), or failed and is thus refused (36 and on)."""
    a, b = law_schedules()[one], law_schedules()[other]
    measured_set = load(gpu)
    if other > 35:
        with pytest.raises(InvalidInput, match="it failed: device: made up"):
            make_account(a, b, measured_set, gpu)
        return
    found = make_account(a, b, measured_set, gpu)
    for part, of in (("latency", "latency_s"), ("power", "power_w"), ("energy", "energy_j")):
        whole = math.log(getattr(found.b, of) / getattr(found.a, of))
        assert sum(getattr(line, part) for line in found.lines) == pytest.approx(whole, abs=1e-9)
    joules = sum(line.energy * found.joules_per_log for line in found.lines)
    assert joules == pytest.approx(found.difference_j, abs=1e-12)
    assert [found.a.metered, found.b.metered] == [one < 24, other < 24]
    assert found.a.timed
    row = gpu.recording.by_digest[a.digest]
    assert found.a.latency_s == row.find_timing().latency_s
    assert found.lines[-1].cause == UNEXPLAINED
    if one == other:
        assert all(line.energy == 0 for line in found.lines)


def test_unmeasured_schedule_is_predicted(tmp_path: Path) -> None:
    device = opened(record_law(tmp_path / "some.jsonl.gz", by_global_memory, count=30, metered=30))
    measured_set = load(device)
    found = make_account(law_schedules()[0], law_schedules()[38], measured_set, device)
    assert (found.b.timed, found.b.metered, found.b.energy_interval_j) == (False, False, None)
    unseen = make_account(law_schedules()[37], law_schedules()[38], measured_set, device)
    # Single precision: a prediction alone and one among others are the same up to its rounding.
    assert unseen.lines[-1].energy == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(
    ("law", "cause"), [(by_global_memory, "global memory"), (by_barriers, "synchronisation")]
)
def test_account_finds_law_of_made_figures(tmp_path: Path, law: Law, cause: str) -> None:
    """In pairs whose energies differ twofold, the group that the law depends on has the largest part."""
    device = opened(record_law(tmp_path / "law.jsonl.gz", law))
    measured_set = load(device)
    found = [make_account(a, b, measured_set, device) for a, b in _apart(device, 8)]
    right = [max(_known(f), key=lambda c: abs(_known(f)[c])) == cause for f in found]
    assert len(right) == 8
    assert np.mean(right) >= 0.8
    assert all(_known(f)[cause] * f.log_ratio > 0 for f, ok in zip(found, right, strict=True) if ok)


def _apart(device: RecordedDevice, most: int) -> list[tuple[ekc.Schedule, ekc.Schedule]]:
    rows = [r for r in device.recording.rows if r.meterings]
    energies = [r.find_timing().latency_s * r.find_metering().power_w for r in rows]
    pairs = [
        (rows[i].schedule, rows[j].schedule)
        for i, j in itertools.combinations(range(len(rows)), 2)
        if abs(math.log(energies[i] / energies[j])) >= math.log(2)
    ]
    return pairs[:: max(1, len(pairs) // most)][:most]


def _known(found: EnergyAccount) -> dict[str, float]:
    return {line.cause: line.energy for line in found.lines[:-1]}


def test_model_does_not_learn_from_explained_schedules(tmp_path: Path) -> None:
    """Whatever was measured of them, the same is expected of them."""
    own = {n: float(v[0]) for n, v in analyse_schedules([law_schedules()[3]], A100.limits).items()}

    def expected(factor: float) -> list[float]:
        def law(figures: dict[str, float]) -> tuple[float, float]:
            seconds, watts = by_global_memory(figures)
            return seconds * (factor if figures == own else 1), watts

        device = opened(record_law(tmp_path / f"{factor}.jsonl.gz", law, count=20, metered=20))
        assert law_schedules()[3].digest in device.recording.by_digest
        found = make_account(law_schedules()[0], law_schedules()[3], load(device), device)
        assert found.b.energy_j > 0
        return [line.energy for line in found.lines[:-1]]

    assert expected(1.0) == expected(7.0)


def test_cross_validation_scores_unseen_schedules(gpu: RecordedDevice) -> None:
    measured_set = load(gpu)
    found = cross_validate(measured_set, gpu.prior, 0)
    assert found == cross_validate(measured_set, gpu.prior, 0)
    for score in vars(found).values():
        assert score.error >= 0
        assert score.rank is None or -1 <= score.rank <= 1
    assert found.latency.rank is not None
    assert found.latency.rank > 0.8
    assert found.power.error < 0.05 < found.power_by_prior.error
    # Scrambled figures cannot be foreseen, and the score says so.
    order = np.random.default_rng(0).permutation(len(measured_set.candidates))
    timings = [measured_set.candidates[i].timings for i in order]
    for candidate, scrambled in zip(measured_set.candidates, timings, strict=True):
        candidate.timings = scrambled
    assert cross_validate(measured_set, gpu.prior, 0).latency.rank < 0.5  # type: ignore[operator]


def test_minimum_of_metered_schedules_is_enough_for_every_fold(gpu: RecordedDevice, tmp_path: Path) -> None:
    assert MIN_METERED - math.ceil(MIN_METERED / FOLDS) >= SURROGATE.min_rows
    assert MIN_METERED - 1 - math.ceil((MIN_METERED - 1) / FOLDS) < SURROGATE.min_rows
    few, enough = (
        opened(record_law(tmp_path / f"{n}.jsonl.gz", by_global_memory, count=20, metered=n))
        for n in (11, 12)
    )
    a, b = law_schedules()[:2]
    with pytest.raises(
        InvalidInput, match=r"holds 9 metered schedules, and 10 are needed .* more --trials, or record more"
    ):
        explain_learned(a, b, few, None)
    found = explain_learned(a, b, enough, None)
    assert (found.timed, found.metered, found.failed) == (18, 10, 0)


def test_explanation_names_its_sources(gpu: RecordedDevice) -> None:
    found = explain_learned(law_schedules()[0], law_schedules()[4], gpu, None)
    assert found.device.startswith("Made-up GPU (cuda:0), recorded 20")
    assert (found.timed, found.metered, found.failed) == (34, 22, 3)
    message = found.to_json()
    assert sum(line["difference_j"] for line in message["lines"]) == pytest.approx(message["difference_j"])
    assert sum(line["share_of_a"] for line in message["lines"]) == pytest.approx(
        message["difference_j"] / message["a"]["energy_j"]
    )
    assert (
        explain_learned(law_schedules()[4], law_schedules()[4], gpu, None).doubt == "A and B are one schedule"
    )


@pytest.mark.parametrize(
    ("expected", "left", "error", "by_prior", "message"),
    [
        (0.6, 0.1, 0.1, 0.2, ""),
        (0.1, 0.0, 0.2, 0.3, "differ by no more than the model errs"),
        (0.4, 0.5, 0.1, 0.2, "more than half as large"),
        (-0.6, -0.1, 0.2, 0.2, "errs no less than physics alone"),
    ],
)
def test_doubt_names_unreliable_lines(
    expected: float, left: float, error: float, by_prior: float, message: str
) -> None:
    one, other = (
        ExplainedSchedule(name, math.exp(log), 100.0, True, True, None)
        for name, log in (("a", 0.0), ("b", expected + left))
    )
    lines = (
        GroupContribution("arithmetic", expected, 0.0, 0.0),
        GroupContribution(UNEXPLAINED, left, 0.0, 0.0),
    )
    good = PredictionScore(1.0, 0.0)
    judged = ModelQuality(PredictionScore(0.9, error), good, good, PredictionScore(0.9, by_prior), good, good)
    found = LearnedExplanation("x", "y", EnergyAccount(one, other, lines), 20, 20, 0, judged)
    assert message in found.doubt if message else not found.doubt


def test_explain_learned_refuses_bad_inputs(gpu: RecordedDevice, tmp_path: Path) -> None:
    a, b = law_schedules()[:2]
    small, file = ekc.Schedule(ekc.matvec(8, 8)), tmp_path / "r.db"
    for error, arguments, words in (
        (InvalidInput, (a, small, gpu, None), "two of one operator compare"),
        (InvalidInput, (a, b, gpu, file), "holds its own figures; leave --records out"),
        (InvalidInput, (a, b, A100, None), r"does not tell where its energy goes.*add --records FILE"),
        (RecordError, (a, b, A100, file), "there is no record file"),
        (RecordError, (small, small, gpu, None), "has no row of"),
    ):
        with pytest.raises(error, match=words):
            explain_learned(*arguments)


# Shapley values: they add up, go to what differs, and turn round with the question

Array = NDArray[np.float64]
NAMES = ("a", "b", "c", "d", "e")
sides = st.fixed_dictionaries({name: st.floats(-3, 3) for name in NAMES})
groupings = st.permutations(NAMES).flatmap(
    lambda order: st.integers(1, 4).map(lambda cut: [order[:cut], order[cut:]])
)


def crooked(columns: Mapping[str, Array]) -> Array:
    """Products, bends and steps of all inputs: no sum of functions of single inputs."""
    a, b, c, d, e = (columns[name] for name in NAMES)
    return np.stack([a * b + np.maximum(c, d) * e, np.sin(a + c) + (b > d)], axis=1)


def at(side: Mapping[str, float]) -> Array:
    return crooked({name: np.array([value]) for name, value in side.items()})[0]


@given(sides, sides, groupings)
def test_shapley_values_add_up_and_change_sign(
    a: dict[str, float], b: dict[str, float], groups: list[list[str]]
) -> None:
    found, back = compute_shapley_values(crooked, a, b, groups), compute_shapley_values(crooked, b, a, groups)
    np.testing.assert_allclose(sum(found.values()), at(b) - at(a), atol=1e-9)
    for name in NAMES:
        np.testing.assert_allclose(found[name], -back[name], atol=1e-9)
        if a[name] == b[name]:
            assert not found[name].any()


@given(sides, sides, groupings)
def test_shapley_values_of_a_sum_are_exact(
    a: dict[str, float], b: dict[str, float], groups: list[list[str]]
) -> None:
    found = compute_shapley_values(lambda x: np.stack([sum(x[n] ** 2 for n in NAMES)], axis=1), a, b, groups)  # type: ignore[list-item]
    for name in NAMES:
        assert found[name][0] == pytest.approx(b[name] ** 2 - a[name] ** 2, abs=1e-9)


def test_shapley_values_of_a_product_are_equal_and_groups_change_together() -> None:
    def product(x: Mapping[str, Array]) -> Array:
        return (x["a"] * x["b"])[:, None]

    zero, one = {"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 1.0}
    assert {
        n: v[0] for n, v in compute_shapley_values(product, zero, one, [["a"], ["b"]]).items()
    } == pytest.approx({"a": 0.5, "b": 0.5}, abs=1e-12)

    def gated(x: Mapping[str, Array]) -> Array:
        return ((x["a"] + x["b"] == 2) * x["c"])[:, None]

    # c works only once a and b have both changed: as one group with it or without, c has half of it.
    start, end = zero | {"c": 0.0}, one | {"c": 1.0}
    together = compute_shapley_values(gated, start, end, [["a", "b"], ["c"]])
    assert together["c"][0] == pytest.approx(0.5, abs=1e-12)
    assert together["a"][0] + together["b"][0] == pytest.approx(0.5, abs=1e-12)


def test_shapley_values_of_equal_inputs_are_zero() -> None:
    same = dict.fromkeys(NAMES, 1.0)
    assert all(not value.any() for value in compute_shapley_values(crooked, same, same, [NAMES]).values())
