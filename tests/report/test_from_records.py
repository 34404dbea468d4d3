"""Reports of record files: what is in them, what is not, and one line where there is nothing to report."""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ekc
from ekc.errors import InvalidInput, RecordError
from ekc.search.data.selection import DEFAULT_RULE
from ekc.search.run_data.from_records import collect_records
from ekc.search.run_data.from_result import collect_run
from tests.report.conftest import SharedRun
from tests.search.helpers import add_rows, change_rows, tune


def test_record_file_has_the_figures_of_its_run(recorded_run: SharedRun) -> None:
    result, file = recorded_run
    (run,) = collect_records([file], DEFAULT_RULE).runs
    whole = collect_run(result)
    assert run.title == whole.title
    assert run.data.device.label == whole.data.device.label == "a100 (simulated)"
    digests = [t.digest for t in run.data.trials]
    assert set(digests) == {t.digest for t in whole.data.trials}
    order = [digests.index(t.digest) for t in whole.data.trials]
    assert np.array_equal(run.trials.latency_s[order], whole.trials.latency_s, equal_nan=True)
    assert np.array_equal(run.trials.metered[order], whole.trials.metered)
    assert np.array_equal(run.trials.dram_bytes[order], whole.trials.dram_bytes, equal_nan=True)
    assert {role: t.digest for role, t in run.named.items()} == {
        role: t.digest for role, t in whole.named.items()
    }
    assert run.named["best"] == whole.named["best"]
    assert run.data.device.peaks == whole.data.device.peaks
    assert run.data.spent.idle_w == whole.data.spent.idle_w
    assert run.causes is not None
    assert whole.causes is not None
    assert np.array_equal(run.causes.joules, whole.causes.joules)
    assert {"model card", "seed", "refused genomes"} <= set(run.missing)
    assert "seed" not in dict(run.conditions)


def test_metered_schedules_are_predicted_by_models_of_the_others(recorded_run: SharedRun) -> None:
    result, file = recorded_run
    (run,) = collect_records([file], DEFAULT_RULE).runs
    records = run.data.predictions
    assert "5 folds" in run.predicted
    metered = {t.schedule.digest for t in result.trials if t.ok and t.metered}
    assert sorted(one.digest for one in records) == sorted(metered), "each once, without the naive schedule"
    errors = [abs(one.predicted_j / one.measured_j - 1) for one in records]
    assert 0 < np.median(errors) < 0.5


def test_sets_are_those_of_operators_and_conditions(recorded_run: SharedRun, tmp_path: Path) -> None:
    other = add_rows(recorded_run[1], tmp_path / "other.db", nvrtc="12.0, generator 1")
    tune(ekc.matmul(16, 16, 16), trials=2, records=other)
    found = collect_records([recorded_run[1], other], DEFAULT_RULE).runs
    assert [run.title.split("(")[0] for run in found] == ["matvec", "matvec", "matmul"]
    assert [dict(run.conditions)["toolchain"] for run in found][1] == "NVRTC 12.0, generator 1"
    assert found[1].kernels[0].note.endswith("measured with 12.0, generator 1.")
    assert found[0].kernels[0].note == ""


def test_device_that_is_not_here_leaves_out_what_needs_it(recorded_run: SharedRun, tmp_path: Path) -> None:
    file = add_rows(recorded_run[1], tmp_path / "gpu.db", device="NVIDIA L40S", simulated=False)
    (run,) = collect_records([file], DEFAULT_RULE).runs
    assert run.data.device.label == "NVIDIA L40S"
    assert not run.data.device.simulated
    assert {"roofline", "energy", "predicted"} <= set(run.missing)
    assert not any(i.inputs == "features" for i in run.importances)
    assert math.isnan(run.trials.dram_bytes[0])
    assert {row[0]: row[5] for row in run.figures.rows}["best"] == "-"
    (kernel,) = run.kernels
    assert kernel.cuda
    assert (kernel.machine_code, kernel.missing_machine_code) == (
        "",
        "the architecture of the device is not known here",
    )


Prepare = Callable[[Path], Path]


def _keep_failures(file: Path) -> Path:
    return change_rows(file, "kind = 'failure', status = 'compile: no luck', payload = '{}'")


def _empty(file: Path) -> Path:
    with sqlite3.connect(file) as connection:
        connection.execute("delete from trials")
    connection.close()
    return file


@pytest.fixture
def records(recorded_run: SharedRun, tmp_path: Path) -> Path:
    """A copy of the record file of the run."""
    return Path(shutil.copy(recorded_run[1], tmp_path / "r.db"))


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (_keep_failures, r"no schedule works; matvec\(.* on a100 \(simulated\): \d+ schedules, none works"),
        (_empty, "r.db holds no measurement; ekc tune --records adds some"),
    ],
    ids=["failures only", "empty"],
)
def test_nothing_to_report_is_one_line(prepare: Prepare, words: str, records: Path) -> None:
    file = prepare(records)
    with pytest.raises(InvalidInput, match=words) as refused:
        collect_records([file], DEFAULT_RULE)
    assert "\n" not in str(refused.value)


def test_unknown_operator_device_and_file_are_one_line(records: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"holds no matmul\(.*; it holds matvec\(.* on a100 \(sim"):
        collect_records([records], DEFAULT_RULE, ekc.matmul(8, 8, 8))
    with pytest.raises(InvalidInput, match=r"holds nothing on h100 \(simulated\); it holds matvec"):
        collect_records([records], DEFAULT_RULE, target="h100")
    with pytest.raises(RecordError, match="there is no record file"):
        collect_records([tmp_path / "absent.db"], DEFAULT_RULE)
