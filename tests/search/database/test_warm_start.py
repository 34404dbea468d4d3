"""The transfer prior from records of other operators and devices, and its trust."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ekc
from ekc import devices
from ekc.errors import RecordError
from ekc.search.cost_model.features import FEATURE_NAMES, ModelInputs
from ekc.search.cost_model.power_model import scale_power
from ekc.search.cost_model.transfer import MeasuredGroup, learn_transfer_prior
from ekc.search.data.defaults import SURROGATE, TRANSFER
from ekc.search.database.database import RecordStore
from ekc.search.database.warm_start import load_transfer_prior
from tests.search.helpers import add_rows, tune

SMALL, OTHER = ekc.matmul(64, 64, 64), ekc.matmul(96, 64, 32)
TRIALS = 12
STANDBY_W = 80.0


def _group(number: int, law: bool, metered: bool = True) -> MeasuredGroup:
    """Kernels whose prior is off by what the first feature says, or by luck; a factor of the group's own."""
    random = np.random.default_rng(number)
    rows = random.random((60, len(FEATURE_NAMES))).astype(np.float32)
    ones = np.ones(60)
    expected = np.exp(random.normal(-9, 0.5, 60)), random.uniform(120, 220, 60), STANDBY_W * ones
    seen = ModelInputs(rows, *expected, ones)
    wrong = rows[:, 0].astype(float) if law else random.random(60)
    latency = seen.expected_latency_s * np.exp(wrong + number)
    watts = scale_power(seen.expected_power_w * np.exp(0.3 * wrong), wrong + number, seen.standby_w)
    return MeasuredGroup(f"group {number}", seen, latency, watts if metered else np.full(60, np.nan))


def _off(seen: ModelInputs, truth: MeasuredGroup) -> tuple[float, float]:
    """Spread of what a prior leaves unexplained of log latency, and of log watts at the prior's pace."""
    pace = np.log(truth.latency_s / seen.expected_latency_s)
    watts = scale_power(seen.expected_power_w, pace, seen.standby_w)
    return float(pace.std()), float(np.log(truth.power_w / watts).std())


def test_transfer_prior_learns_what_groups_share() -> None:
    prior = learn_transfer_prior([_group(1, law=True), _group(2, law=True), _group(3, law=True)], 0)
    unseen = _group(4, law=True)
    before, after = _off(unseen.inputs, unseen), _off(prior.correct_inputs(unseen.inputs), unseen)
    assert prior.latency_model.trust > 0.8
    assert prior.power_model.trust > 0.8
    assert after[0] < 0.4 * before[0]
    assert after[1] < 0.8 * before[1]


def test_description_says_why_power_is_not_learned() -> None:
    timed, metered = _group(1, law=True), _group(2, law=True)
    few = replace(timed, power_w=np.where(np.arange(60) < 5, timed.power_w, np.nan))
    needed = "power is learned from at least 8 metered kernels of an operator, and there are 5 of group 1"
    text = str(learn_transfer_prior([few], 0))
    assert text == f"60 timed kernels of group 1; trust in them: 50% for latency; {needed}"
    text = str(learn_transfer_prior([few, metered], 0))
    assert text.startswith("120 timed and 60 metered kernels of group 1, group 2; trust in them: ")
    assert text.endswith(f"% for power; {needed}")
    assert "learned from" not in str(learn_transfer_prior([metered], 0))


@pytest.mark.slow
def test_transfer_prior_distrusts_unrelated_groups() -> None:
    prior = learn_transfer_prior([_group(n, law=False) for n in range(4)], 0)
    assert prior.latency_model.trust < 0.2
    unseen = _group(9, law=False)
    assert _off(prior.correct_inputs(unseen.inputs), unseen)[0] < 1.1 * _off(unseen.inputs, unseen)[0]


def test_transfer_prior_of_one_group_has_half_trust_and_no_power_model() -> None:
    prior = learn_transfer_prior([_group(1, law=True, metered=False)], 0)
    assert prior.latency_model.trust == TRANSFER.single_group_trust
    assert (prior.power_model.trust, prior.power_model.row_count) == (0.0, 0)
    seen = _group(2, law=True).inputs
    informed = prior.correct_inputs(seen)
    np.testing.assert_array_equal(informed.features, seen.features)
    pace = np.log(informed.expected_latency_s / seen.expected_latency_s)
    np.testing.assert_allclose(
        informed.expected_power_w,
        scale_power(seen.expected_power_w, pace, seen.standby_w),
    )


def _near_the_floor(number: int, times: float) -> MeasuredGroup:
    """Some kernels are quick and draw no more than an idle board; the prior says `times` as much of all."""
    random = np.random.default_rng(number)
    rows = random.random((60, len(FEATURE_NAMES))).astype(np.float32)
    rows[:, 0] = random.random(60) < 0.4
    some, idle, ones = rows[:, 0] > 0, STANDBY_W, np.ones(60)
    expected_s, expected_w = np.exp(random.normal(-9, 0.5, 60)), idle * random.uniform(times, 1.5 * times, 60)
    seen = ModelInputs(rows, expected_s, expected_w, idle * ones, ones)
    pace = np.where(some, -1.5, 0.0)
    watts = scale_power(np.where(some, 1.02 * idle, seen.expected_power_w), pace, seen.standby_w)
    return MeasuredGroup(f"group {number}", seen, seen.expected_latency_s * np.exp(pace), watts)


@pytest.mark.slow
def test_transfer_prior_keeps_power_above_idle() -> None:
    """A power below 0 has no log, and one that has none would leave all models of the run with nothing."""
    prior = learn_transfer_prior([_near_the_floor(n, times=2.0) for n in range(4)], 0)
    assert prior.power_model.trust > 0.5
    unseen = _near_the_floor(9, times=1.02).inputs
    idle = STANDBY_W
    factor = np.exp(prior.power_model.predict_log_factor(unseen.features))
    assert (unseen.expected_power_w * factor < 0.6 * idle).any(), "what the trees say of some"
    assert prior.correct_inputs(unseen).expected_power_w.min() >= idle


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record file of one small operator on two devices."""
    file = tmp_path_factory.mktemp("warm") / "old.db"
    for target in ("a100", "rtx4090"):
        tune(SMALL, target=target, trials=TRIALS, records=file)
    return file


@pytest.mark.slow
def test_own_measurements_are_left_out(records: Path) -> None:
    prior, description = load_transfer_prior(records, SMALL, devices.open("a100"), 0)
    assert prior is not None
    assert prior.group_names == ("matmul(A[64, 64] float32, B[64, 64] float32) on rtx4090",)
    both, _ = load_transfer_prior(records, OTHER, devices.open("a100"), 0)
    assert both is not None
    assert len(both.group_names) == 2
    assert " timed kernels of matmul(" in description
    assert "trust in them: 50%" in description
    assert "at least 8 metered kernels of an operator, and there are " in description


def test_simulated_rows_are_not_used_for_a_gpu(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = devices.open("a100")
    monkeypatch.setattr(device, "simulated", False)
    prior, description = load_transfer_prior(records, OTHER, device, 0)
    assert prior is None
    assert "nothing learned" in description
    assert "another device" in description


def _copied(records: Path, file: Path, **changed: Any) -> Path:
    """The rows of one device, added with another key."""
    return add_rows(records, file, only="a100", **changed)


OF_A_GPU = {"simulated": False, "driver": "590.1"}


@pytest.mark.parametrize(
    ("op", "driver", "copies", "count", "words"),
    [
        (OTHER, "", [{"device": "gtx480"}], 0, "nothing is known of the rates of gtx480"),
        (OTHER, "", [{"clock_regime": "free"}], 0, "nothing is known of the rates of a100, clocks free"),
        (SMALL, "", [{"simulated": False}], 0, "; measurements on a100 teach no simulated device$"),
        # The figures of another simulator come from another model.
        (SMALL, "", [{"driver": "simulator 1"}], 0, "; what simulator 1 said is left out$"),
        (OTHER, "", [{"driver": "simulator 1"}], 0, "; what simulator 1 said is left out"),
        (OTHER, "", [{"driver": "simulator 1"}, {}], 1, "; what simulator 1 said is left out"),
        # A run finds rows of its operator and conditions by their key; the others are not left to it.
        (SMALL, "", [{}], 0, ""),
        (SMALL, "", [{"nvrtc": "13.5, 1"}], 1, ""),
        (SMALL, "590.1", [OF_A_GPU | {"driver": "580.1"}], 1, ""),
        (SMALL, "590.1", [OF_A_GPU | {"nvrtc": "13.0, generator 3"}], 1, ""),
        # Else the later timing of a kernel would stand in for the earlier one, and be paired with its watts.
        (OTHER, "", [{"data_policy": "L2 cold"}, {"data_policy": "L2 warm"}], 2, ""),
    ],
)
def test_rows_are_used_or_excluded_by_their_conditions(
    op: ekc.Operator,
    driver: str,
    copies: list[dict[str, Any]],
    count: int,
    words: str,
    records: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`driver`: of a GPU in place of the simulated a100, whose measurements the rows of `copies` are."""
    device = devices.open("a100")
    if driver:
        monkeypatch.setattr(device, "simulated", False)
        monkeypatch.setattr(device, "driver", driver)
    for changed in copies:
        _copied(records, tmp_path / "copy.db", **changed)
    prior, description = load_transfer_prior(tmp_path / "copy.db", op, device, 0)
    names = () if prior is None else prior.group_names
    assert len(names) == count
    assert count != 1 or names == ("matmul(A[64, 64] float32, B[64, 64] float32) on a100",)
    assert re.search(words, description)


def test_rows_of_three_kernels_are_excluded(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, few = devices.open("a100"), tmp_path / "few.db"
    with RecordStore(records, create=False) as store, RecordStore(few) as new:
        for row in [row for row in store.read_rows(device="rtx4090", kind="timing") if not row.key.draw][:3]:
            new.add(replace(row, key=replace(row.key, nvrtc="13.0, generator 3")))
    _, words = load_transfer_prior(few, SMALL, device, 0)
    assert words.endswith(f"; {str(SMALL).splitlines()[0]} on rtx4090 has 3 timed kernels")
    monkeypatch.setattr(device, "simulated", False)
    _, words = load_transfer_prior(few, SMALL, device, 0)
    assert words.endswith("; simulated figures of rtx4090 teach no GPU")


def test_rows_at_another_clock_use_peaks_of_that_clock(records: Path, tmp_path: Path) -> None:
    device, inputs = devices.open("a100"), _group(1, law=True).inputs
    powers = []
    for regime in ("fixed 705 MHz", device.clock_regime):
        file = _copied(records, tmp_path / f"{regime}.db", clock_regime=regime)
        prior, _ = load_transfer_prior(file, OTHER, device, 0)
        assert prior is not None
        powers.append(prior.correct_inputs(inputs).expected_power_w)
    assert not np.allclose(*powers)


def test_too_few_kernels_are_not_used(tmp_path: Path) -> None:
    file = tmp_path / "few.db"
    tune(SMALL, trials=SURROGATE.min_rows // 2, records=file)
    prior, description = load_transfer_prior(file, OTHER, devices.open("a100"), 0)
    assert prior is None
    assert f"{SURROGATE.min_rows} timed kernels" in description


def test_warm_run_names_its_groups_tries_other_schedules_and_is_resumed(
    records: Path, tmp_path: Path
) -> None:
    # Two groups may teach that neither foretells the other; what one says nothing can test.
    file = _copied(records, tmp_path / "old.db")
    cold = tune(OTHER, trials=TRIALS)
    warm, again = (tune(OTHER, trials=TRIALS, records=file, warm_start=file) for _ in range(2))
    assert cold.warm_start == ""
    assert "warm start" not in cold.summary()
    assert "warm start " in warm.summary()
    assert "matmul(A[64, 64]" in warm.summary()
    tried, tried_cold, tried_again = ([t.schedule.digest for t in run.trials] for run in (warm, cold, again))
    assert tried != tried_cold
    assert tried == tried_again
    assert warm.warm_start == again.warm_start


def test_missing_warm_start_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="there is no record file"):
        tune(OTHER, trials=4, warm_start=tmp_path / "none.db")
