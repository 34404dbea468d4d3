"""The transfer prior from records of other operators and devices, and its trust."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ekc
from ekc import devices
from ekc.errors import RecordError
from ekc.search.cost_model import analytic
from ekc.search.cost_model.features import BALANCE_COLUMN, FEATURE_NAMES, ModelInputs
from ekc.search.cost_model.transfer import MeasuredGroup, learn_transfer_prior
from ekc.search.data.defaults import ANALYTIC, SURROGATE, TRANSFER
from ekc.search.database.database import RecordStore
from ekc.search.database.warm_start import load_transfer_prior

SMALL, OTHER = ekc.matmul(64, 64, 64), ekc.matmul(96, 64, 32)
TRIALS = 12
PEAKS = devices.open("a100").peaks


def _group(number: int, law: bool, metered: bool = True) -> MeasuredGroup:
    """Kernels whose prior is off by what the first feature says, or by luck; a factor of the group's own."""
    random = np.random.default_rng(number)
    rows = random.random((60, len(FEATURE_NAMES))).astype(np.float32)
    ones = np.ones(60)
    seen = ModelInputs(rows, np.exp(random.normal(-9, 0.5, 60)), random.uniform(120, 220, 60), ones, ones)
    wrong = rows[:, 0].astype(float) if law else random.random(60)
    latency = seen.expected_latency_s * np.exp(wrong + number)
    watts = analytic.scale_power(
        seen.expected_power_w * np.exp(0.3 * wrong), wrong + number, seen.predict_standby_w(PEAKS)
    )
    return MeasuredGroup(f"group {number}", seen, latency, watts if metered else np.full(60, np.nan), PEAKS)


def _off(seen: ModelInputs, truth: MeasuredGroup) -> tuple[float, float]:
    """Spread of what a prior leaves unexplained of log latency, and of log watts at the prior's pace."""
    pace = np.log(truth.latency_s / seen.expected_latency_s)
    watts = analytic.scale_power(seen.expected_power_w, pace, seen.predict_standby_w(PEAKS))
    return float(pace.std()), float(np.log(truth.power_w / watts).std())


def test_transfer_prior_learns_what_groups_share() -> None:
    prior = learn_transfer_prior([_group(1, law=True), _group(2, law=True), _group(3, law=True)], PEAKS, 0)
    unseen = _group(4, law=True)
    before, after = _off(unseen.inputs, unseen), _off(prior.correct_inputs(unseen.inputs), unseen)
    assert prior.latency_model.trust > 0.8
    assert prior.power_model.trust > 0.8
    assert after[0] < 0.4 * before[0]
    assert after[1] < 0.8 * before[1]


def test_transfer_prior_distrusts_unrelated_groups() -> None:
    prior = learn_transfer_prior([_group(n, law=False) for n in range(4)], PEAKS, 0)
    assert prior.latency_model.trust < 0.2
    unseen = _group(9, law=False)
    assert _off(prior.correct_inputs(unseen.inputs), unseen)[0] < 1.1 * _off(unseen.inputs, unseen)[0]


def test_transfer_prior_of_one_group_has_half_trust_and_no_power_model() -> None:
    prior = learn_transfer_prior([_group(1, law=True, metered=False)], PEAKS, 0)
    assert (prior.latency_model.trust, prior.power_model.trust, prior.power_model.row_count) == (
        TRANSFER.single_group_trust,
        0.0,
        0,
    )
    seen = _group(2, law=True).inputs
    informed = prior.correct_inputs(seen)
    np.testing.assert_array_equal(informed.features, seen.features)
    pace = np.log(informed.expected_latency_s / seen.expected_latency_s)
    np.testing.assert_allclose(
        informed.expected_power_w,
        analytic.scale_power(seen.expected_power_w, pace, seen.predict_standby_w(PEAKS)),
    )


def _near_the_floor(number: int, times: float) -> MeasuredGroup:
    """Some kernels are quick and draw no more than an idle board; the prior says `times` as much of all."""
    random = np.random.default_rng(number)
    rows = random.random((60, len(FEATURE_NAMES))).astype(np.float32)
    rows[:, 0], rows[:, BALANCE_COLUMN] = random.random(60) < 0.4, 1.0
    some, idle, ones = rows[:, 0] > 0, ANALYTIC.static_power_share * PEAKS.board_power_w, np.ones(60)
    expected_s, expected_w = np.exp(random.normal(-9, 0.5, 60)), idle * random.uniform(times, 1.5 * times, 60)
    seen = ModelInputs(rows, expected_s, expected_w, ones, ones)
    pace = np.where(some, -1.5, 0.0)
    watts = analytic.scale_power(
        np.where(some, 1.02 * idle, seen.expected_power_w), pace, seen.predict_standby_w(PEAKS)
    )
    return MeasuredGroup(f"group {number}", seen, seen.expected_latency_s * np.exp(pace), watts, PEAKS)


def test_transfer_prior_keeps_power_above_idle() -> None:
    """A power below 0 has no log, and one that has none would leave all models of the run with nothing."""
    prior = learn_transfer_prior([_near_the_floor(n, times=2.0) for n in range(4)], PEAKS, 0)
    assert prior.power_model.trust > 0.5
    unseen = _near_the_floor(9, times=1.02).inputs
    idle, asked = (
        ANALYTIC.static_power_share * PEAKS.board_power_w,
        np.exp(prior.power_model.predict_log_factor(unseen.features)),
    )
    assert (unseen.expected_power_w * asked < 0.6 * idle).any(), "what the trees say of some"
    assert prior.correct_inputs(unseen).expected_power_w.min() >= idle


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record file of one small operator on two devices."""
    file = tmp_path_factory.mktemp("warm") / "old.db"
    for target in ("a100", "rtx4090"):
        ekc.tune(SMALL, target, trials=TRIALS, records=file, progress=False)
    return file


def test_own_measurements_are_left_out(records: Path) -> None:
    prior, description = load_transfer_prior(records, SMALL, devices.open("a100"), 0)
    assert prior is not None
    assert prior.group_names == ("matmul(A[64, 64] float32, B[64, 64] float32) on rtx4090",)
    both, _ = load_transfer_prior(records, OTHER, devices.open("a100"), 0)
    assert both is not None
    assert len(both.group_names) == 2
    assert "timed and" in description
    assert "trust in them: 50%" in description


def test_simulated_rows_are_not_used_for_a_gpu(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = devices.open("a100")
    monkeypatch.setattr(device, "simulated", False)
    prior, description = load_transfer_prior(records, OTHER, device, 0)
    assert prior is None
    assert "nothing learned" in description
    assert "another device" in description


def test_unknown_device_is_named(records: Path, tmp_path: Path) -> None:
    strange = tmp_path / "strange.db"
    with RecordStore(records, create=False) as old, RecordStore(strange) as new:
        for row in old.read_rows(device="rtx4090"):
            new.add(replace(row, key=replace(row.key, device="gtx480")))
    prior, description = load_transfer_prior(strange, OTHER, devices.open("a100"), 0)
    assert prior is None
    assert "nothing is known of the rates of gtx480" in description


def _copied(records: Path, file: Path, **changed: Any) -> Path:
    """The rows of one device, added with another key."""
    with RecordStore(records, create=False) as old, RecordStore(file) as new:
        for row in old.read_rows(device="a100"):
            new.add(replace(row, key=replace(row.key, **changed)))
    return file


def test_same_operator_under_other_conditions_is_used(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run does not find these rows by their key, so they are not left to it."""
    gpu = devices.open("a100")
    monkeypatch.setattr(gpu, "simulated", False)
    monkeypatch.setattr(gpu, "driver", "590.1")
    for number, changed in enumerate(
        ({"driver": "580.1"}, {"driver": "590.1", "nvrtc": "13.0, generator 3"})
    ):
        file = _copied(records, tmp_path / f"{number}.db", simulated=False, **changed)
        prior, _ = load_transfer_prior(file, SMALL, gpu, 0)
        assert prior is not None
        assert prior.group_names == ("matmul(A[64, 64] float32, B[64, 64] float32) on a100",)


def test_reasons_for_excluded_rows_are_given(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = devices.open("a100")
    _, words = load_transfer_prior(_copied(records, tmp_path / "gpu.db", simulated=False), SMALL, device, 0)
    assert words.endswith("; measurements on a100 teach no simulated device")
    file = _copied(records, tmp_path / "old.db", driver="simulator 1")
    assert load_transfer_prior(file, SMALL, device, 0)[1].endswith("; what simulator 1 said is left out")
    few = tmp_path / "few.db"
    with RecordStore(records, create=False) as store, RecordStore(few) as new:
        for row in [row for row in store.read_rows(device="rtx4090", kind="timing") if not row.key.draw][:3]:
            new.add(replace(row, key=replace(row.key, nvrtc="13.0, generator 3")))
    _, words = load_transfer_prior(few, SMALL, device, 0)
    assert words.endswith(f"; {str(SMALL).splitlines()[0]} on rtx4090 has 3 timed kernels")
    monkeypatch.setattr(device, "simulated", False)
    assert load_transfer_prior(few, SMALL, device, 0)[1].endswith(
        "; simulated figures of rtx4090 teach no GPU"
    )


def test_rows_of_another_simulator_are_excluded(records: Path, tmp_path: Path) -> None:
    """Its figures come from another model, and a run does not take them for its own either."""
    device, file = devices.open("a100"), tmp_path / "old.db"
    prior, description = load_transfer_prior(_copied(records, file, driver="simulator 1"), OTHER, device, 0)
    assert prior is None
    assert "; what simulator 1 said is left out" in description
    prior, description = load_transfer_prior(_copied(records, file), OTHER, device, 0)
    assert prior is not None
    assert len(prior.group_names) == 1
    assert "; what simulator 1 said is left out" in description


def test_rows_of_another_generator_are_used(records: Path, tmp_path: Path) -> None:
    """A run does not find them by their key; those it finds are no lesson."""
    device = devices.open("a100")
    before, _ = load_transfer_prior(_copied(records, tmp_path / "a.db", nvrtc="13.5, 1"), SMALL, device, 0)
    assert before is not None
    assert len(before.group_names) == 1
    assert load_transfer_prior(_copied(records, tmp_path / "b.db"), SMALL, device, 0)[0] is None


def test_rows_under_different_conditions_are_different_groups(records: Path, tmp_path: Path) -> None:
    """Else the later timing of a kernel would stand in for the earlier one, and be paired with its watts."""
    file, device = tmp_path / "two.db", devices.open("a100")
    for policy in ("L2 cold", "L2 warm"):
        _copied(records, file, data_policy=policy)
    prior, _ = load_transfer_prior(file, OTHER, device, 0)
    assert prior is not None
    assert len(prior.group_names) == 2


def test_rows_at_another_clock_use_peaks_of_that_clock(records: Path, tmp_path: Path) -> None:
    def moved(regime: str) -> Path:
        return _copied(records, tmp_path / f"{regime}.db", clock_regime=regime)

    device = devices.open("a100")
    slow, _ = load_transfer_prior(moved("fixed 705 MHz"), OTHER, device, 0)
    now, _ = load_transfer_prior(moved(device.clock_regime), OTHER, device, 0)
    assert slow is not None
    assert now is not None
    seen = _group(1, law=True).inputs
    assert not np.allclose(
        slow.correct_inputs(seen).expected_power_w, now.correct_inputs(seen).expected_power_w
    )
    nothing, description = load_transfer_prior(moved("free"), OTHER, device, 0)
    assert nothing is None
    assert "nothing is known of the rates of a100, clocks free" in description


def test_too_few_kernels_are_not_used(tmp_path: Path) -> None:
    file = tmp_path / "few.db"
    ekc.tune(SMALL, "a100", trials=SURROGATE.min_rows // 2, records=file, progress=False)
    prior, description = load_transfer_prior(file, OTHER, devices.open("a100"), 0)
    assert prior is None
    assert f"{SURROGATE.min_rows} timed kernels" in description


def test_warm_run_names_its_groups_and_tries_other_schedules(records: Path, tmp_path: Path) -> None:
    # Two groups may teach that neither foretells the other; what one says nothing can test.
    old = _copied(records, tmp_path / "old.db")
    cold = ekc.tune(OTHER, "a100", trials=TRIALS, progress=False)
    warm = ekc.tune(OTHER, "a100", trials=TRIALS, progress=False, warm_start=old)
    assert cold.warm_start == ""
    assert "warm start" not in cold.summary()
    assert "warm start " in warm.summary()
    assert "matmul(A[64, 64]" in warm.summary()
    assert [t.schedule.digest for t in warm.trials] != [t.schedule.digest for t in cold.trials]


def test_resumed_run_has_same_transfer_prior(records: Path, tmp_path: Path) -> None:
    file = tmp_path / "both.db"
    file.write_bytes(records.read_bytes())
    first = ekc.tune(OTHER, "a100", trials=TRIALS, progress=False, records=file, warm_start=file)
    again = ekc.tune(OTHER, "a100", trials=TRIALS, progress=False, records=file, warm_start=file)
    assert first.warm_start == again.warm_start
    assert [t.schedule.digest for t in first.trials] == [t.schedule.digest for t in again.trials]


def test_missing_warm_start_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="there is no record file"):
        ekc.tune(OTHER, "a100", trials=4, progress=False, warm_start=tmp_path / "none.db")
