"""One small tuning run that the tests of pictures and reports share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import ekc
from ekc import devices
from ekc.report.run_data import RunData
from ekc.search.data.options import DEFAULT_METHOD
from ekc.search.database.database import RecordStore
from ekc.search.loop.measure import Measurer
from ekc.search.run import TuningRun
from ekc.search.run_data.from_result import collect_run
from ekc.search.space.space import Space
from ekc.search.tuning_result import TuningResult
from tests.search.helpers import THREADS, make_options

SharedRun = tuple[TuningResult, Path]
"""A run and its record file, which no test may change."""


@pytest.fixture(scope="session")
def recorded_run(tmp_path_factory: pytest.TempPathFactory) -> SharedRun:
    """A run on a simulated device that meters every kernel, so that it has predictions to show."""
    file = tmp_path_factory.mktemp("run") / "r.db"
    with RecordStore(file) as store:
        measurer = Measurer(devices.open("a100"), store)
        space = Space(ekc.matvec(128, 128), measurer.device.limits)
        method = replace(DEFAULT_METHOD, metered_share=1.0)
        run = TuningRun(space, measurer, THREADS, make_options(trials=24), None, method)
        return run.run(()), file


@pytest.fixture(scope="session")
def result(recorded_run: SharedRun) -> TuningResult:
    return recorded_run[0]


@pytest.fixture(scope="session")
def run_data(result: TuningResult) -> RunData:
    return collect_run(result)


@pytest.fixture(scope="session")
def report_file(run_data: RunData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the run, which no test may change."""
    from ekc.report.page import make_report

    return make_report([run_data]).write(tmp_path_factory.mktemp("report") / "report.html")
