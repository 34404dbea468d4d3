"""A kernel called on arrays that lie on a GPU: in this process, on the caller's stream, without a copy.

Nothing is waited for: the result is there when the stream gets to it, as with any work of its library, and a
fault of the kernel shows where the caller waits. Modules stay loaded as long as the process lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.cuda.arrays import DeviceArray, on_gpu, taken
from ekc.devices.cuda.device import check_runs
from ekc.devices.cuda.driver import Driver
from ekc.devices.cuda.frameworks import at_home, current_stream, new_like
from ekc.devices.cuda.places import check_places
from ekc.errors import InvalidInput
from ekc.ir.arrays import settle
from ekc.ir.operator import Operator, TensorSpec


@cache
def driver() -> Driver:
    """The driver of this process."""
    from ekc.devices.cuda.bindings import Bindings

    return Bindings()


class Loaded:
    """The kernels that were called, by GPU, machine code and how they are launched."""

    def __init__(self) -> None:
        self._functions: dict[tuple[Any, ...], tuple[int, ...]] = {}

    def functions(self, here: Driver, gpu: int, compiled: CompiledKernel) -> tuple[int, ...]:
        """A handle for each launch. `DeviceError` where the machine code is for another kind of GPU."""
        # Bytes keep their hash: a call costs no pass over the machine code.
        key = (gpu, compiled.arch, compiled.cubin, *((x.name, x.shared_bytes) for x in compiled.launches))
        if key not in self._functions:
            major, minor = (here.attribute(gpu, f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
            check_runs(compiled, 10 * major + minor, f"{here.name(gpu)} (cuda:{gpu})")
            module = here.load(compiled.cubin)
            self._functions[key] = tuple(
                here.function(module, one.name, one.shared_bytes) for one in compiled.launches
            )
        return self._functions[key]


_LOADED = Loaded()


def call(
    op: Operator, compiled: CompiledKernel, arrays: Sequence[Any], out: Any = None, stream: int | None = None
) -> Any:
    """The result, an array of the first input's library, or `out`; queued on `stream` (a CUDA handle), or on
    the library's current one.

    Raises `InvalidInput` for arrays of another shape, type, place or alignment than needed,
    `DeviceError` where the driver refuses.
    """
    op.check_count(arrays)
    op_inputs = op.inputs
    arrays = [settle(spec.name, array) for spec, array in zip(op_inputs, arrays, strict=True)]
    for spec, array in zip(op_inputs, arrays, strict=True):
        if not on_gpu(array):
            raise InvalidInput(f"{spec.name} is not on a GPU, others are: move it there")
    if out is not None and not on_gpu(out):
        raise InvalidInput("out is not on a GPU, the inputs are: move it there")
    queue = current_stream(arrays[0]) if stream is None else stream
    specs: tuple[TensorSpec, ...] = (*op_inputs, op.outputs[0])
    with at_home(arrays[0]):
        result = new_like(arrays[0], op.outputs[0]) if out is None else out
        held = {s.name: taken(a, s, queue) for s, a in zip(specs, (*arrays, result), strict=True)}
    if held[op.outputs[0].name].read_only:
        raise InvalidInput(f"{op.outputs[0].name} is read-only, and the result goes there")
    check_places(compiled, held, op_inputs, op.outputs[0])
    _queue(driver(), compiled, held, queue)
    return result


def _queue(here: Driver, compiled: CompiledKernel, held: dict[str, DeviceArray], queue: int) -> None:
    gpus = {name: here.holder(array.address) for name, array in held.items()}
    if len(set(gpus.values())) > 1:
        told = ", ".join(f"{name} on cuda:{gpu}" for name, gpu in gpus.items())
        raise InvalidInput(f"arrays of one call must lie on one GPU: {told}")
    gpu = next(iter(gpus.values()))
    here.open(gpu)
    try:
        functions = _LOADED.functions(here, gpu, compiled)
        for array in held.values():
            if array.stream not in (None, queue):
                here.follow(queue, array.stream)
        places = {name: array.address for name, array in held.items()}
        rooms = _rooms(compiled, places)
        places |= {name: here.borrow(size, queue) for name, size in rooms.items()}
        for one, function in zip(compiled.launches, functions, strict=True):
            pointers = [places[name] for name in one.arguments]
            here.launch(function, one.grid, one.block, one.shared_bytes, queue, pointers)
        for name in rooms:
            here.give_back(places[name], queue)
    finally:
        here.leave()


def _rooms(compiled: CompiledKernel, places: dict[str, int]) -> dict[str, int]:
    """Sizes of the tensors between launches."""
    sizes: dict[str, int] = {}
    for one in compiled.launches:
        sizes |= zip(one.arguments, one.argument_bytes, strict=True)
    return {name: size for name, size in sizes.items() if name not in places}
