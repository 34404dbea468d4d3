"""The real driver class over the real cuda.bindings, on a scripted libcuda that prints its calls."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from ekc.devices.cuda.device import WORKER_MODULE
from ekc.devices.cuda.device_attributes import GpuProperties
from ekc.devices.cuda.driver import Driver, DriverError
from ekc.devices.cuda.messages import WorkerRequest
from ekc.processes.child import ChildProcess, RemoteWorker

SOURCE = Path(__file__).parents[2] / "scripted" / "cuda" / "libcuda.c"
SCRIPT = """
import numpy as np
from ekc.devices.cuda.device import WORKER_MODULE
from ekc.devices.cuda.driver import Driver
from ekc.devices.cuda.driver import DriverError

def refused(call, *arguments):
    try:
        call(*arguments)
    except DriverError as error:
        print(error, flush=True)

driver = Driver()
refused(driver.get_name, 1)
driver.push_context(0)
module = driver.load(b"\\x7fELF and so on")
add = driver.get_function(module, "add", 65536)
refused(driver.get_function, module, "sub", 0)
stream = driver.create_stream()
places = [driver.allocate(4) for _ in range(3)]
for place, value in zip(places, (1.5, 2.25)):
    driver.upload(place, np.float32([value]))
driver.launch(add, (1, 2, 3), (4, 5, 6), 65536, stream, places)
out = np.empty(1, np.float32)
driver.download(out, places[2])
print("sum", out[0], flush=True)
refused(driver.launch, add, (13, 1, 1), (1, 1, 1), 0, stream, places)
refused(driver.launch, add, (14, 1, 1), (1, 1, 1), 0, stream, places)
driver.fill(places[2], 255, 4, stream)
driver.download(out, places[2])
print("filled", out[0], "on", driver.find_owner_gpu(places[0]), flush=True)
driver.free_async(driver.allocate_async(64, stream), stream)
event = driver.create_event()
driver.record_event(event, stream)
driver.wait_for_event(event)
print("seconds", driver.elapsed_s(event, event), flush=True)
driver.wait_for_stream(stream, 7)
driver.begin_capture(stream)
graph = driver.end_capture(stream)
driver.launch_graph(graph, stream)
driver.destroy_graph(graph)
driver.free(places[0])
driver.unload(module)
driver.pop_context()
"""
SAID = """
cuDeviceGet: CUDA_ERROR_INVALID_DEVICE (some error)
retain 40 0 0
push 4096 0 0
load 127 69 76
function 8192 0 0
attribute 12288 8 65536
cuModuleGetFunction: CUDA_ERROR_NOT_FOUND (some error)
stream 1 0 0
upload 4 0 0
stream synchronize 0 0 0
upload 4 0 0
stream synchronize 0 0 0
launch 12288 65536 16384
grid 1 2 3
block 4 5 6
synchronize 0 0 0
sum 3.75
launch 12288 0 16384
grid 13 1 1
block 1 1 1
cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal access)
launch 12288 0 16384
grid 14 1 1
block 1 1 1
cuLaunchKernel: unknown error (4242 is not a valid CUresult)
synchronize 0 0 0
filled nan on 3
borrow 64 16384 0
give back 16384 0 0
event 1 0 0
record 20480 16384 0
wait 20480 0 0
seconds 0.0025
event 2 0 0
record 20480 7 0
wait event 16384 20480 0
destroy 20480 0 0
capture 16384 1 0
captured 16384 0 0
instantiate 24576 0 0
template 24576 0 0
replay 28672 16384 0
drop 28672 0 0
unload 8192 0 0
pop 0 0 0
"""


@pytest.fixture(scope="module", autouse=True)
def _libcuda(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("libcuda")
    made = [compiler, "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(SOURCE), "-ldl"]
    subprocess.run(made, check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(folder))
        yield


def test_calls_reach_the_driver_in_its_form() -> None:
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert found.stdout == SAID.removeprefix("\n")


def test_worker_process_describes_its_gpu() -> None:
    """`python -m`, pipes, messages and the real bindings; CUDA numbers its attributes from 1 on."""
    remote = RemoteWorker("cuda:0", partial(ChildProcess, WORKER_MODULE))
    facts = remote.query(WorkerRequest("describe"))
    remote.close()
    assert isinstance(facts, GpuProperties)
    assert (facts.name, facts.gpu_count, facts.driver_version) == ("Stub 40", 1, 13000)
    assert facts.uuid == "00112233-4455-6677-8899-aabbccddeeff"
    assert facts.memory_bytes == 2**33
    assert facts.attributes["MULTIPROCESSOR_COUNT"] == 1016
    assert facts.attributes["COMPUTE_CAPABILITY_MAJOR"] == 1075


@pytest.mark.parametrize("unknown", [ValueError("4242 is not a valid CUresult"), KeyError(4242)])
def test_status_that_the_bindings_cannot_name_is_a_fault(unknown: Exception) -> None:
    def answers(*arguments: object) -> None:
        raise unknown

    bindings = Driver.__new__(Driver)
    bindings._cuda = SimpleNamespace(cuDeviceGetCount=answers)
    with pytest.raises(DriverError, match=r"cuDeviceGetCount: unknown error .*4242"):
        bindings.count_gpus()
