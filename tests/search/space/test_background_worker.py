"""The background worker: same results as one process, also when it fails."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ekc
from ekc.processes.child import ChildProcess, RemoteWorker
from ekc.processes.jobs import JobOutcome
from ekc.processes.pool import WorkerProcesses, WorkerThreads
from ekc.search import compile_pool
from ekc.search.compile_pool import MIN_TRIALS_FOR_BACKGROUND_WORKER, open_background_worker
from ekc.search.data.defaults import SPACE
from ekc.search.data.population import Population
from ekc.search.space.partition import SpacePartition
from ekc.search.space.space import Space
from tests.search.helpers import LIMITS, OPERATORS, PEAKS, drawn, space


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_pool, "count_cores", lambda: 2)


@pytest.fixture
def worker() -> Iterator[RemoteWorker]:
    with open_background_worker(MIN_TRIALS_FOR_BACKGROUND_WORKER) as remote:
        assert remote is not None
        yield remote


def _same(one: Population, other: Population) -> None:
    np.testing.assert_array_equal(one.structure, other.structure)
    np.testing.assert_array_equal(one.genes, other.genes)


def check_equal(name: str, paired: Space) -> None:
    """A space with a worker repairs and analyses as the space without."""
    (mine, why), (theirs, why_there) = (
        one.repair(np.random.default_rng(3), drawn(name, 300)) for one in (space(name), paired)
    )
    _same(mine, theirs)
    assert why == why_there
    np.testing.assert_array_equal(
        space(name).extract_inputs(mine, PEAKS).features, paired.extract_inputs(mine, PEAKS).features
    )


@pytest.mark.parametrize("name", ["matmul", "fp16", "conv groups", "epilogues"])
def test_results_equal_those_of_one_process(name: str, worker: RemoteWorker) -> None:
    assert len(space(name).partitions) == SPACE.partition_count
    check_equal(name, Space(OPERATORS[name], LIMITS, worker=worker))


def test_last_partition_runs_in_the_worker(worker: RemoteWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    paired = Space(OPERATORS["matmul"], LIMITS, worker=worker)
    partitions: list[int] = []
    repair = SpacePartition.repair

    def here(part: SpacePartition, population: Population, seed: int) -> object:
        partitions.append(part.index)
        return repair(part, population, seed)

    # The worker imports the original method by this name.
    here.__module__, here.__qualname__ = repair.__module__, repair.__qualname__
    monkeypatch.setattr(SpacePartition, "repair", here)
    paired.repair(np.random.default_rng(0), drawn("matmul", 50))
    assert partitions == [0]


def test_dead_worker_changes_no_result(worker: RemoteWorker) -> None:
    paired = Space(OPERATORS["matmul"], LIMITS, worker=worker)
    paired.repair(np.random.default_rng(0), drawn("matmul", 50))
    os.kill(worker._processes[0]._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.warns(RuntimeWarning, match="killed by SIGKILL; its part is done here"):
        check_equal("matmul", paired)
    check_equal("matmul", paired)


def test_run_without_worker_process_breeds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> ChildProcess:
        raise OSError("no more processes")

    with pytest.warns(RuntimeWarning, match="no more processes.*; its part is done here"):
        paired = Space(OPERATORS["matmul"], LIMITS, worker=RemoteWorker("missing", none))
    check_equal("matmul", paired)


@pytest.mark.parametrize("where", ["here", "there"])
def test_interrupted_call_leaves_no_stale_answer(
    where: str, worker: RemoteWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    paired = Space(OPERATORS["matmul"], LIMITS, worker=worker)
    paired.repair(np.random.default_rng(0), drawn("matmul", 50))
    with monkeypatch.context() as patched:
        patched.setattr(
            *((paired.partitions[0], "find_violations") if where == "here" else (worker, "receive")),
            _interrupted,
        )
        with pytest.raises(KeyboardInterrupt):
            paired.repair(np.random.default_rng(1), drawn("matmul", 70))
    check_equal("matmul", paired)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_worker_without_memory_changes_no_result(
    worker: RemoteWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    paired = Space(OPERATORS["matmul"], LIMITS, worker=worker)
    monkeypatch.setattr(worker, "receive", lambda: JobOutcome(None, MemoryError(), ()))
    with pytest.warns(RuntimeWarning, match="MemoryError; its part is done here"):
        check_equal("matmul", paired)


def test_warnings_of_the_worker_are_shown(worker: RemoteWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    paired, reply = Space(OPERATORS["matmul"], LIMITS, worker=worker), worker.receive
    monkeypatch.setattr(
        worker, "receive", lambda: replace(reply(), warnings=(("odd", UserWarning, "part.py", 1),))
    )
    with pytest.warns(UserWarning, match="odd"):
        check_equal("matmul", paired)


def test_executor_of_the_caller_gets_no_worker() -> None:
    with (
        ThreadPoolExecutor(1) as executor,
        open_background_worker(MIN_TRIALS_FOR_BACKGROUND_WORKER, executor) as remote,
    ):
        assert remote is None
    with open_background_worker(MIN_TRIALS_FOR_BACKGROUND_WORKER - 1) as remote:
        assert remote is None


def test_winner_is_the_same_with_and_without_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    op, trials = ekc.matmul(96, 64, 32), 12
    alone = ekc.tune(op, "a100", trials=trials, records=tmp_path / "r.db", progress=False)
    monkeypatch.setattr(compile_pool, "MIN_TRIALS_FOR_BACKGROUND_WORKER", 1)
    hired: list[RemoteWorker] = []
    post = RemoteWorker.send

    def noting(remote: RemoteWorker, *given: object) -> None:
        hired.append(remote)
        post(remote, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(RemoteWorker, "send", noting)
    both = ekc.tune(op, "a100", trials=trials, records=tmp_path / "r.db", progress=False)
    assert hired
    assert [t.schedule for t in both.trials] == [t.schedule for t in alone.trials]
    assert both.best.schedule == alone.best.schedule
    assert not hired[0]._processes


@pytest.mark.parametrize("kind", [WorkerProcesses, WorkerThreads])
def test_own_pool_may_have_a_background_worker(kind: type[WorkerThreads]) -> None:
    with kind(2) as ours, open_background_worker(MIN_TRIALS_FOR_BACKGROUND_WORKER, ours) as remote:
        assert remote is not None
    with kind(1) as alone, open_background_worker(MIN_TRIALS_FOR_BACKGROUND_WORKER, alone) as remote:
        assert remote is None


def test_genomes_are_sent_as_small_integers() -> None:
    population = drawn("matmul", 1000)
    text = pickle.dumps(population)
    assert len(text) < 3 * population.genes.size
    _same(pickle.loads(text), population)
    odd = Population(population.structure[:2], np.array([[-1], [1 << 40]]))
    _same(pickle.loads(pickle.dumps(odd)), odd)
    empty = pickle.loads(pickle.dumps(population[:0]))
    assert empty.genes.shape == population.genes[:0].shape
