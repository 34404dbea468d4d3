"""A device of a real GPU in a child that was forked from the process that opened it."""

from __future__ import annotations

from tests.scripted.nvml.boards import ScriptedBoards

SCRIPT = """
import os, sys, threading
from functools import partial
import ekc
from ekc.codegen.generate import compile_schedule
from ekc.devices.cuda import gpu as real_gpu
from ekc.devices.cuda.device import open_cuda
from ekc.processes.child import ChildProcess
from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import ActuatorError
from ekc.ir.schedule.naive import make_naive_schedule

real_gpu.explain_refusal = lambda: ""
hire = partial(ChildProcess, "tests.scripted.cuda.worker")
device = open_cuda("cuda:0", hire, lambda uuid: GpuSensors(sys.argv[1]))
kernel = compile_schedule(make_naive_schedule(ekc.matmul(16, 16, 16)), "sm_80")
device.submit(lambda: kernel, 0).result(60)
slow = device.at_clock(900)
slow.time(kernel)
worker = device._gpus[0].remote._processes[0]._process.pid

holds, ends = threading.Event(), threading.Event()
def hold():
    with device._gpus[0].lock:
        holds.set()
        ends.wait()
thread = threading.Thread(target=hold)
thread.start()
holds.wait()
child = os.fork()
if child == 0:
    print("timed", device.submit(lambda: kernel, 0).result(30).latency_s > 0, flush=True)
    try:
        slow.time(kernel)
    except ActuatorError as problem:
        held = f"is governed by process {os.getppid()} already" in str(problem)
        print("held by the parent:", held, flush=True)
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
ends.set()
thread.join()
slow.time(kernel)
print("same worker", device._gpus[0].remote._processes[0]._process.pid == worker)
"""


def test_forked_child_has_its_own_workers_threads_and_locks_and_no_lease(boards: ScriptedBoards) -> None:
    process = boards.start_python("-c", SCRIPT, boards.get_uuid(), start_new_session=True)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.splitlines() == ["timed True", "held by the parent: True", "same worker True"]
