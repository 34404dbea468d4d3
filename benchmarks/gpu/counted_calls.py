"""Calls kernels under Nsight Compute: the program that `counters.py` runs there.

    ncu --profile-from-start off ... python -m benchmarks.gpu.counted_calls FILE GPU

FILE holds pickled kernels. Each is called once before the call that is counted, so that the L2 is
warm.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path


def _main(file: Path, gpu: int) -> None:
    from cuda.bindings import driver as cuda

    from ekc.devices.cuda.driver import Driver
    from ekc.devices.cuda.loaded_kernel import LoadedKernel

    driver = Driver()
    driver.push_context(gpu)
    loaded = LoadedKernel(driver)
    for work in pickle.loads(file.read_bytes()):
        loaded.load_kernel(work)
        loaded.queue_launches()
        cuda.cuCtxSynchronize()
        cuda.cuProfilerStart()
        loaded.queue_launches()
        cuda.cuCtxSynchronize()
        cuda.cuProfilerStop()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))
