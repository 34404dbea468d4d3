"""Children forked from a process that tunes: none hangs, none harms objects of its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

PATIENCE_S = 120
"""Seconds for a script, which takes a few: the tests look for hangs."""


FORK = '''
import os, threading

def fork(act):
    """Exit status of a child that exits with what `act` returns."""
    child = os.fork()
    if child == 0:
        os._exit(act())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def fork_while_held(context, act):
    """Print the exit status of a child, forked while another thread is inside a context."""
    held, ends = threading.Event(), threading.Event()
    def hold():
        with context:
            held.set()
            ends.wait()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    print("child:", fork(act))
    ends.set()
    thread.join()
'''
"""Beginning of scripts."""


def run_script(folder: Path, text: str, *words: str) -> list[str]:
    """Lines printed by a script in a new process, which has not forked or tuned before."""
    script = folder / "script.py"
    script.write_text(FORK + text)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen(
        [sys.executable, script, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=folder,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        with suppress(ProcessLookupError):  # Children that hang.
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, err[-4000:]
    return out.splitlines()


POOL = """
import multiprocessing
import ekc

def tune(seed):
    op = ekc.matvec(32, 64)
    return ekc.tune(op, target="a100", trials=10, seed=seed, progress=False).best.schedule.digest

def tune_in_grandchild(seed):
    near, far = multiprocessing.Pipe()
    if os.fork() == 0:
        far.send(tune(seed))
        os._exit(0)
    return near.recv()

if __name__ == "__main__":
    first = tune(0)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(tune, [0, 0]).get(200) == [first] * 2
        assert pool.map_async(tune_in_grandchild, [0]).get(200) == [first]
    print("as in the parent")
"""


@pytest.mark.slow
def test_forked_children_and_theirs_tune_after_their_parent_did(tmp_path: Path) -> None:
    assert run_script(tmp_path, POOL) == ["as in the parent"]


TREES = """
import numpy as np
import xgboost
from ekc.boosted_trees import predict_values, train_trees

def learn():
    rows = np.random.default_rng(0).normal(size=(16, 5)).astype(np.float32)
    values = 1.0 + np.arange(16)
    trees = train_trees({}, rows, values, 20)
    assert len(predict_values(trees, rows)) == 16
    return 0

threads = len(os.listdir("/proc/self/task"))
learn()
print("threads started:", len(os.listdir("/proc/self/task")) - threads, flush=True)
xgboost.DMatrix(np.ones((64, 4)), nthread=4)  # as a user's own code does, in this thread
print("child:", fork(learn))
"""


def test_trees_need_no_openmp_threads_whoever_started_some_before(tmp_path: Path) -> None:
    assert run_script(tmp_path, TREES) == ["threads started: 0", "child: 0"]


INSIDE = """
import sys, time
import numpy as np

under_way, entered = [], threading.Event()

def watched(call):
    def wrapper(*arguments, **named):
        under_way.append(1)
        entered.set()
        time.sleep(0.5)
        try:
            return call(*arguments, **named)
        finally:
            under_way.pop()
    return wrapper

def nvrtc():
    from cuda.bindings import nvrtc as library
    from ekc.codegen import nvrtc
    library.nvrtcCompileProgram = watched(library.nvrtcCompileProgram)
    return lambda: nvrtc.compile('extern "C" __global__ void k(float *a) { a[0] = 1; }')

def xgboost():
    import xgboost as library
    from ekc.boosted_trees import train_trees
    library.train = watched(library.train)
    rows, one = np.arange(8, dtype=np.float32)[:, None] * np.ones(3, np.float32), np.ones(8)
    return lambda: train_trees({}, rows, one, 20)

def sqlite():
    from ekc.search.database.database import RecordStore
    def add():
        store = RecordStore("some.db")
        def traced(statement):
            if statement.startswith("begin"):
                under_way.append(1)
                entered.set()
                time.sleep(0.5)
            if statement.startswith(("commit", "rollback")):
                under_way.clear()
        store._connection.set_trace_callback(traced)
        with store._raise_record_errors(), store._transaction():
            pass
    return add

def nvml():
    from ekc.devices.nvml.library import call_nvml
    import pynvml
    return lambda: call_nvml("the name of an error", watched(pynvml.nvmlErrorString), 1)

work = locals()[sys.argv[1]]()
thread = threading.Thread(target=work)
thread.start()
assert entered.wait(60)
print("under way in the child:", fork(lambda: len(under_way)))
thread.join()
"""


@pytest.mark.parametrize("library", ["nvrtc", "xgboost", "sqlite", "nvml"])
def test_fork_waits_for_library_calls_of_other_threads(library: str, tmp_path: Path) -> None:
    assert run_script(tmp_path, INSIDE, library) == ["under way in the child: 0"]


GATE = """
import signal, time
from ekc.forks import hold_forks

def call():
    with hold_forks():  # a child has no calls of other threads, and may make its own
        signal.raise_signal(signal.SIGUSR1)
    return 7

signal.signal(signal.SIGUSR1, lambda *_: None)
with hold_forks(), hold_forks():
    assert fork(call) == 7, "a thread does not wait for itself"

ends = threading.Event()
def busy():
    while not ends.is_set():
        with hold_forks(), hold_forks():
            time.sleep(0.001)
threads = [threading.Thread(target=busy) for _ in range(3)]
for thread in threads:
    thread.start()
forking = [threading.Thread(target=lambda: [fork(call) for _ in range(5)]) for _ in range(3)]
for thread in forking:
    thread.start()
for thread in forking:
    thread.join()
ends.set()
for thread in threads:
    thread.join()
print("all forked")
"""


def test_forks_and_calls_of_several_threads_alternate(tmp_path: Path) -> None:
    assert run_script(tmp_path, GATE) == ["all forked"]


BLAS = """
from threadpoolctl import threadpool_info, threadpool_limits
import numpy as np
from ekc.search.cost_model.feature_process import one_blas_thread

def numbers():
    np.ones((2, 2)) @ np.ones((2, 2))
    return {x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas"}

def count_threads():
    with one_blas_thread():
        assert numbers() == {1}
    return max(numbers())

with threadpool_limits(2, user_api="blas"):
    fork_while_held(one_blas_thread(), count_threads)
    print("parent:", numbers())
"""


def test_child_has_blas_threads_though_a_thread_of_its_parent_limited_them(tmp_path: Path) -> None:
    assert run_script(tmp_path, BLAS) == ["child: 2", "parent: {2}"]


LEAVING = """
import sys
from pathlib import Path
import ekc
from ekc.devices.recording.writer import RecordingWriter
from ekc.errors import RecordError
from ekc.search.database.database import RecordStore
from ekc.search.database.rows import RecordKey, RecordRow
from ekc.processes.pool import WorkerProcesses

device = ekc.devices.open("a100")
key = RecordKey("a100", True, "fixed", "random", "", "", "{}", "digest", 0, None)
with WorkerProcesses(1) as pool, RecordingWriter("some.jsonl", device), RecordStore("some.db") as store:
    worker = pool.submit(os.getpid).result()
    governor = ekc.Governor(quiet=True)
    folder = governor._folder if isinstance(governor._folder, Path) else Path(governor._folder.name)
    store.add(RecordRow("timing", key, "{}", "ok", {}))
    child = os.fork()
    if child == 0:
        with governor.step():
            pass
        sys.exit(5)  # through every block above, then atexit and finalizers
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert pool.submit(os.getpid).result() == worker
    print("worker is there")
    assert (folder / "steps").read_bytes() == bytes(8), "a step of the child counts"
    print("files are there")
    if os.fork() == 0:
        try:
            RecordingWriter("some.jsonl", device)
        except RecordError:
            os._exit(0)
        os._exit(1)
    print("lock is held:", os.wait()[1] == 0)
    store.add(RecordRow("timing", key, "{}", "ok", {}))
    assert len(list(store.read_rows())) == 2
    assert Path("some.db-wal").exists()
    print("records are there")
del governor
print("files are removed:", not folder.exists())
"""


def test_child_that_leaves_the_with_blocks_of_its_parent_ends_nothing(tmp_path: Path) -> None:
    assert run_script(tmp_path, LEAVING) == [
        "worker is there",
        "files are there",
        "lock is held: True",
        "records are there",
        "files are removed: True",
    ]


LOG = """
from ekc.search.database.database import RecordStore
from ekc.search.database.rows import RecordKey, RecordRow

key = RecordKey("a100", True, "fixed", "random", "", "", "{}", "digest", 0, None)
with RecordStore("some.db") as store:
    store.add(RecordRow("timing", key, "{}", "ok", {}))
    # As the thread that moves rows does for a moment whenever it wakes.
    fork_while_held(store._checkpoints._due._cond, lambda: store.close() or 7)
"""


def test_child_closes_a_record_file_though_a_thread_of_its_parent_was_moving_rows(tmp_path: Path) -> None:
    assert run_script(tmp_path, LOG) == ["child: 7"]


PROPERTY = """
import contextlib
import ekc
from ekc.ir.graph import OperatorGraph

op = ekc.matvec(8, 8)
lock = getattr(vars(OperatorGraph)["digest"], "lock", contextlib.nullcontext())
fork_while_held(lock, lambda: len(op.digest))
"""


def test_child_reads_properties_though_a_thread_of_its_parent_computed_one(tmp_path: Path) -> None:
    assert run_script(tmp_path, PROPERTY) == ["child: 16"]


IMPORT = """
import importlib, time
import ekc

started, begun, done = threading.Event(), [], []
load = importlib.import_module

def load_slowly(name):
    begun.append(name)
    started.set()
    time.sleep(1)
    found = load(name)
    done.append(name)
    return found

importlib.import_module = load_slowly
thread = threading.Thread(target=lambda: ekc.tune)
thread.start()
started.wait()
print("child:", fork(lambda: 7 if sorted(done) == sorted(begun) else 1))
thread.join()
"""


def test_fork_waits_for_imports_of_other_threads(tmp_path: Path) -> None:
    assert run_script(tmp_path, IMPORT) == ["child: 7"]
