"""Call a kernel on arrays on a GPU: in this process, on the caller's stream, without a copy.

The call does not wait: the result is ready when the stream reaches it, as with any work of its library, and a
fault of the kernel is raised where the caller waits. Modules stay loaded while the process lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.cuda.device import check_compatible
from ekc.devices.cuda.device_arrays import (
    DeviceArray,
    allocate_like,
    check_addresses,
    find_current_stream,
    is_on_gpu,
    take_array,
    use_device_of,
)
from ekc.devices.cuda.driver import Driver
from ekc.errors import InvalidInput
from ekc.ir.arrays import detach_tensor
from ekc.ir.compute import TensorSpec
from ekc.ir.operator import Operator


@cache
def get_driver() -> Driver:
    """The driver of this process."""
    return Driver()


_FUNCTIONS: dict[tuple[Any, ...], tuple[int, ...]] = {}
"""Loaded functions by GPU, machine code and launches."""


def _get_functions(cuda_driver: Driver, gpu: int, compiled: CompiledKernel) -> tuple[int, ...]:
    """Function handle of each launch. `DeviceError` where the machine code is for another kind of GPU."""
    # Bytes cache their hash: a call does not read the machine code.
    key = (gpu, compiled.arch, compiled.cubin, *((x.name, x.shared_bytes) for x in compiled.launches))
    if key not in _FUNCTIONS:
        names = [f"COMPUTE_CAPABILITY_{part}" for part in ("MAJOR", "MINOR")]
        major, minor = (cuda_driver.get_attribute(gpu, name) for name in names)
        check_compatible(compiled, 10 * major + minor, f"{cuda_driver.get_name(gpu)} (cuda:{gpu})")
        module = cuda_driver.load(compiled.cubin)
        _FUNCTIONS[key] = tuple(
            cuda_driver.get_function(module, one.name, one.shared_bytes) for one in compiled.launches
        )
    return _FUNCTIONS[key]


def call_kernel(
    op: Operator, compiled: CompiledKernel, arrays: Sequence[Any], out: Any = None, stream: int | None = None
) -> Any:
    """The result, an array of the first input's library, or `out`; queued on `stream` (a CUDA handle), or on
    the library's current stream.

    Raises `InvalidInput` for arrays of another shape, type, GPU or alignment than needed, `DeviceError` where
    the driver refuses.
    """
    op.check_array_count(arrays)
    op_inputs = op.inputs
    arrays = [detach_tensor(spec.name, array) for spec, array in zip(op_inputs, arrays, strict=True)]
    for spec, array in zip(op_inputs, arrays, strict=True):
        if not is_on_gpu(array):
            raise InvalidInput(f"{spec.name} is not on a GPU, others are: move it there")
    if out is not None and not is_on_gpu(out):
        raise InvalidInput("out is not on a GPU, the inputs are: move it there")
    queue = find_current_stream(arrays[0]) if stream is None else stream
    specs: tuple[TensorSpec, ...] = (*op_inputs, op.outputs[0])
    with use_device_of(arrays[0]):
        result = allocate_like(arrays[0], op.outputs[0]) if out is None else out
        taken_arrays = {
            s.name: take_array(a, s, queue) for s, a in zip(specs, (*arrays, result), strict=True)
        }
    if taken_arrays[op.outputs[0].name].is_read_only:
        raise InvalidInput(f"{op.outputs[0].name} is read-only, and the result goes there")
    check_addresses(compiled, taken_arrays, op_inputs, op.outputs[0])
    _queue_launches(get_driver(), compiled, taken_arrays, queue)
    return result


def _queue_launches(
    cuda_driver: Driver, compiled: CompiledKernel, arrays_by_name: dict[str, DeviceArray], stream: int
) -> None:
    gpus = {name: cuda_driver.find_owner_gpu(array.address) for name, array in arrays_by_name.items()}
    if len(set(gpus.values())) > 1:
        gpu_texts = ", ".join(f"{name} on cuda:{gpu}" for name, gpu in gpus.items())
        raise InvalidInput(f"arrays of one call must be on one GPU: {gpu_texts}")
    gpu = next(iter(gpus.values()))
    cuda_driver.push_context(gpu)
    try:
        functions = _get_functions(cuda_driver, gpu, compiled)
        for array in arrays_by_name.values():
            if array.stream not in (None, stream):
                cuda_driver.wait_for_stream(stream, array.stream)
        places = {name: array.address for name, array in arrays_by_name.items()}
        rooms = _compute_workspace_sizes(compiled, places)
        places |= {name: cuda_driver.allocate_async(size, stream) for name, size in rooms.items()}
        for one, function in zip(compiled.launches, functions, strict=True):
            pointers = [places[name] for name in one.arguments]
            cuda_driver.launch(function, one.grid, one.block, one.shared_bytes, stream, pointers)
        for name in rooms:
            cuda_driver.free_async(places[name], stream)
    finally:
        cuda_driver.pop_context()


def _compute_workspace_sizes(compiled: CompiledKernel, addresses: dict[str, int]) -> dict[str, int]:
    """Sizes of the tensors between launches."""
    pairs = (zip(one.arguments, one.argument_bytes, strict=True) for one in compiled.launches)
    return {name: size for sizes in pairs for name, size in sizes if name not in addresses}
