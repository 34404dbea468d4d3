"""Compiling on a Dask cluster of two processes, one of which is killed while it compiles."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import ekc
from ekc.cli.arguments import build_operator
from ekc.errors import ToolchainError
from ekc.search.loop.compile_job import _import_job_modules
from tests.processes.test_child import alive
from tests.search.conftest import SharedRun
from tests.search.helpers import tune, winner
from tests.search.loop.test_compile_job import OTHER_NVRTC, PATCH, RESTORE, ROOT, line_about

OTHER_EKC = PATCH + "patch('ekc.search.loop.compile_job.__version__', '99.1').start()"


@pytest.fixture(scope="module")
def worker_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def client(worker_cache: Path) -> Iterator[Any]:
    """A client of a cluster of two processes, which have imported what they need to compile."""
    distributed = pytest.importorskip("distributed", reason="Dask is not installed (pip install distributed)")
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "EKC_CACHE_DIR": str(worker_cache)}
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, env=environment
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def read_figures(file: Path) -> list[tuple[Any, ...]]:
    """The rows of a record file, without their times."""
    columns = "kind, schedule_digest, draw, window_s, payload, status"
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(f"select {columns} from trials order by {columns}").fetchall()


class WorkerKiller(threading.Thread):
    """Kills the process of the first worker that compiles."""

    def __init__(self, client: Any) -> None:
        super().__init__(daemon=True)
        self.client, self.pids = client, client.run(os.getpid)
        self.killed: int | None = None
        self.lost_jobs = 0

    def run(self) -> None:
        while self.killed is None:
            for address, keys in self.client.processing().items():
                jobs = sum("run_compile_job" in str(key) for key in keys)
                if jobs and address in self.pids:
                    os.kill(self.pids[address], signal.SIGKILL)
                    self.killed, self.lost_jobs = self.pids[address], jobs
                    return
            time.sleep(0.002)


@pytest.mark.parametrize("retries", [3, 0], ids=["job is tried again", "job is given up"])
def test_killed_worker_loses_no_row_and_changes_no_winner(
    retries: int, client: Any, worker_cache: Path, matvec_run: SharedRun, tmp_path: Path
) -> None:
    """With no retries Dask raises `KilledWorker` for the job, and its kernel is compiled here."""
    client.cluster.scheduler.allowed_failures = retries
    client.wait_for_workers(2)
    client.run(_import_job_modules)
    shutil.rmtree(worker_cache)
    killer = WorkerKiller(client)
    killer.start()
    if retries:
        result = tune(executor=client, records=tmp_path / "r.db")
    else:
        with pytest.warns(RuntimeWarning, match="executor: KilledWorker: .*; its kernel is compiled in this"):
            result = tune(executor=client, records=tmp_path / "r.db")
    killer.join()
    assert killer.killed is not None
    assert not alive(killer.killed)
    assert killer.lost_jobs
    plain, file = matvec_run
    assert winner(result) == winner(plain)
    assert read_figures(tmp_path / "r.db") == read_figures(file)


@pytest.mark.parametrize(
    ("change", "line", "rows"),
    [(OTHER_NVRTC, line_about("10.1"), 64), (OTHER_EKC, line_about(version="99.1"), 72)],
    ids=["NVRTC", "ekc"],
)
def test_one_worker_of_two_with_other_versions_is_refused(
    change: str, line: str, rows: int, client: Any
) -> None:
    """Each case has its own operator: Dask answers a job from memory as long as a future of an equal one
    exists, and the error of the case before holds some."""
    client.wait_for_workers(2)
    one = [next(iter(client.run(os.getpid)))]
    client.run(exec, change, {}, workers=one)
    try:
        with pytest.raises(ToolchainError) as caught:
            tune(ekc.matvec(rows, 96), executor=client)
    finally:
        client.run(exec, RESTORE, {}, workers=one)
    assert str(caught.value) == line


def read_distinct_layers() -> dict[str, tuple[str, dict[str, Any]]]:
    """Kind and arguments of each layer of the example, equal ones once, by the name of the first."""
    layers = tomllib.loads((ROOT / "examples" / "layers.toml").read_text())["layer"]
    found: dict[str, tuple[str, str, dict[str, Any]]] = {}
    for layer in layers:
        arguments = {k: v for k, v in layer.items() if k not in ("name", "model", "operator", "count")}
        found.setdefault(
            repr((layer["operator"], sorted(arguments.items()))),
            (layer["name"], layer["operator"], arguments),
        )
    return {f"{n} {name}": (kind, arguments) for n, (name, kind, arguments) in enumerate(found.values())}


LAYERS = read_distinct_layers()


@pytest.mark.exhaustive
@pytest.mark.parametrize("layer", LAYERS)
def test_layer_has_the_same_winner_on_two_workers(layer: str, client: Any) -> None:
    client.wait_for_workers(2)
    kind, arguments = LAYERS[layer]
    op = build_operator(kind, arguments)
    assert winner(tune(op, trials=8, executor=client)) == winner(tune(op, trials=8))
