"""A compiled schedule that can be called with arrays of NumPy, PyTorch and other libraries.

How long the PTX machine will take for a whole call, said before it starts where that is long.

From a schedule to a kernel that can be called.
"""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.arguments import format_value
from ekc.codegen.compiled import CompiledKernel, Launch, Resources
from ekc.codegen.generate import compile_schedule
from ekc.devices.capacity import check_emulation_memory, check_transfer_memory
from ekc.devices.cuda.arrays import is_on_gpu
from ekc.devices.device import Device, ExecutionDevice
from ekc.emulator.launch import BATCH_LANES
from ekc.errors import InvalidInput, KernelFault
from ekc.ir.arrays import convert_like, is_torch_tensor
from ekc.ir.hardware.limits import Limits
from ekc.ir.schedule.schedule import Schedule
from ekc.ir.validate import check_identifier
from ekc.runtime.execute import EXECUTED_BY, execute

_SINGLE_OPERATION_S = 1e-4
"""For an operation of one thread with nobody beside it: NumPy's calls, whatever they hold."""
_LANE_OPERATION_S = 3e-9
"""For an operation of one lane of many. Both are of one machine (2 cores of a shared EPYC) and round."""
_WARNING_THRESHOLD_S = 60.0


def estimate_emulation_s(compiled: CompiledKernel) -> float:
    """Seconds, to an order of magnitude, by the operator's arithmetic and the lanes that do it together."""
    operations = compiled.flops / len(compiled.launches)
    return sum(
        operations
        * (
            _SINGLE_OPERATION_S / min(BATCH_LANES, math.prod(one.grid) * math.prod(one.block))
            + _LANE_OPERATION_S
        )
        for one in compiled.launches
    )


def warn_if_slow(compiled: CompiledKernel) -> None:
    """One line for whoever would think that the call hangs."""
    seconds = estimate_emulation_s(compiled)
    if seconds < _WARNING_THRESHOLD_S:
        return
    threads = max(math.prod(one.grid) * math.prod(one.block) for one in compiled.launches)
    fix = (
        "bind loops to blocks and threads, or take smaller shapes"
        if threads < BATCH_LANES
        else "take smaller shapes, or `ekc run`, which runs some of the blocks"
    )
    warnings.warn(
        f"{compiled.name}: the CPU executes every thread of this kernel ({threads} together) in "
        f"{_format_duration(seconds)} or so; {fix}",
        stacklevel=4,
    )


def _format_duration(seconds: float) -> str:
    """A round figure in the unit that a person would use."""
    for limit, unit, word in ((5400, 60, "minutes"), (172800, 3600, "hours")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {word}"
    return f"{seconds / 86400:.0f} days"


@dataclass(frozen=True, repr=False)
class Kernel:
    """A schedule, and the CUDA, PTX and CUBIN made of it. Call it: arrays in, an array out.

    NumPy in, NumPy out; tensors of PyTorch in, a tensor out. Of several libraries in one call, that of the
    first input makes the result.

    Arrays in the memory of the host: the call executes the compiled PTX in a machine made of NumPy, under a
    sanitizer: every launch, every thread, and no GPU. That shows what the kernel computes, not how fast it
    is. If it was compiled for a real device (`ekc.compile(schedule, device=ekc.devices.open("cuda:0"))`) it
    runs there, in a worker, so that a fault costs no more than the call. `executed_by` says which of the two.
    Libraries with the array API standard (JAX) get their own arrays back, all else that NumPy can read is
    answered in NumPy.

    Arrays on a GPU (PyTorch, CuPy, Numba: anything with DLPack or `__cuda_array_interface__`) stay there. The
    kernel is queued on the library's current stream, or on `stream`, a CUDA handle; nothing is copied or
    waited for. The result is a new array, or `out`.

    A kernel has no gradient: a tensor that requires one is refused unless PyTorch's gradients are off
    (`torch.no_grad()`). `ekc.torch.register` makes an operator, for gradients, `torch.compile` and export.
    """

    schedule: Schedule
    compiled: CompiledKernel
    device: ExecutionDevice | None = field(default=None, compare=False)
    """The GPU that arrays of the host are sent to, if one was named."""

    @property
    def executed_by(self) -> str:
        """Who computes the result for arrays in the memory of the host."""
        return EXECUTED_BY if self.device is None else self.device.executed_by

    @property
    def cuda_source(self) -> str:
        """The CUDA C++ text of all launches."""
        return self.compiled.cuda_source

    @property
    def ptx(self) -> str:
        """The PTX of all launches."""
        return self.compiled.ptx

    @property
    def cubin(self) -> bytes:
        """The machine code for `arch`, an ELF file."""
        return self.compiled.cubin

    @property
    def resources(self) -> tuple[Resources, ...]:
        """Registers, shared memory and spills, one entry per launch."""
        return self.compiled.resources

    @property
    def launches(self) -> tuple[Launch, ...]:
        """What to start, in order, with which grid and block."""
        return self.compiled.launches

    @property
    def arch(self) -> str:
        """The target it was compiled for, such as "sm_80"."""
        return self.compiled.arch

    def __call__(self, *arrays: Any, out: Any = None, stream: int | None = None) -> Any:
        """The result for input arrays in the operator's order; see the class.

        Raises `InvalidInput` for an array of another shape or dtype than declared and where memory does not
        suffice, `KernelFault` when the
        sanitizer sees a stray access, a race or the like, or when an element is never written,
        `DeviceError` where a GPU's driver refuses, and `EkcError` for an instruction that the machine does
        not know.
        """
        if "torch._dynamo" in sys.modules and any(map(is_torch_tensor, arrays)):
            # torch.compile would follow Python into the PTX machine.
            return sys.modules["torch"].compiler.disable(self._dispatch)(arrays, out, stream)
        return self._dispatch(arrays, out, stream)

    def _dispatch(self, arrays: tuple[Any, ...], out: Any, stream: int | None) -> Any:
        """See `__call__`."""
        if any(is_on_gpu(array) for array in arrays):
            from ekc.devices.cuda.call import call_kernel

            return call_kernel(self.schedule.op, self.compiled, arrays, out, stream)
        if out is not None or stream is not None:
            raise InvalidInput("out and stream are for arrays on a GPU; these are not: leave both out")
        made = self._run_emulated(arrays) if self.device is None else self._run_on_device(self.device, arrays)
        return convert_like(arrays[0], made) if arrays else made

    def _run_on_device(self, device: ExecutionDevice, arrays: tuple[Any, ...]) -> NDArray[Any]:
        """Run on the GPU of `device`, by way of its worker."""
        op = self.schedule.program.op
        check_transfer_memory(op)
        specs = [op.tensors[one.arguments[-1]] for one in self.launches]
        blanks = [np.empty(spec.shape, spec.dtype.numpy_dtype) for spec in specs]
        return device.execute(self.compiled, op.check_arrays(arrays), blanks)[-1]

    def _run_emulated(self, arrays: tuple[Any, ...]) -> NDArray[Any]:
        """Run by the machine made of NumPy."""
        check_emulation_memory(self.schedule.program.op, self.compiled)
        warn_if_slow(self.compiled)
        runs = execute(self.schedule.program.op, self.compiled, arrays)
        written: dict[str, NDArray[np.bool_]] = {}
        for one, run in zip(self.launches, runs, strict=True):
            if run.report.findings:
                raise KernelFault(f"{len(run.report.findings)} findings; the first: {run.report.findings[0]}")
            # One that adds to its output need not change what an earlier one wrote there.
            name = one.arguments[-1]
            written[name] = written.get(name, False) | run.is_written
            if not written[name].all():
                missing = f"{(~written[name]).sum()} of {run.is_written.size} elements"
                raise KernelFault(f"{run.report.kernel} leaves {missing} of its output unwritten")
        return runs[-1].output

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.schedule.op.inputs))
        return f"Kernel({self.compiled.name}({inputs}), {self.arch}, calls run by {self.executed_by})"


DEFAULT_ARCH = "sm_80"
"""What is compiled for where nothing is said."""


def compile(
    schedule: Schedule,
    arch: str | None = None,
    limits: Limits | None = None,
    device: Device | None = None,
    name: str | None = None,
) -> Kernel:
    """The kernel of a schedule for `arch` ("sm_80" if nothing is said); needs no GPU. `limits` default to an
    A100's, with the shared memory that `arch` has; whether there are asynchronous copies and products of a
    warp is always up to `arch`. With a `device`, such as `ekc.devices.open("cuda:0")`, both are the device's,
    and one that really runs kernels runs this one when it is called with NumPy arrays. `name` is what its
    functions and files are called instead of the operator's name: two shapes of one operator need two to be
    linked into one program.

    Raises `ScheduleError` for a schedule that breaks a rule or a limit, `InvalidInput` for an arch that
    NVRTC does not know, an arch beside a device, a name that C cannot have.
    """
    if not isinstance(schedule, Schedule):
        raise InvalidInput(
            f"schedule: {format_value(schedule)} is not an ekc.Schedule; ekc.Schedule(op) starts one"
        )
    if arch is not None and not isinstance(arch, str):
        raise InvalidInput(
            f"arch: {format_value(arch)} is not the name of a target; the nearest is {_suggest_arch(arch)!r}"
        )
    if limits is not None and not isinstance(limits, Limits):
        raise InvalidInput(
            f"limits: {format_value(limits)} is not an ekc.ir.hardware.limits.Limits; leave it out"
        )
    if device is not None and not (hasattr(device, "arch") and hasattr(device, "limits")):
        raise InvalidInput(
            f"device: {format_value(device)} is not a device; ekc.devices.open('a100') gives one"
        )
    if name is not None:
        check_identifier("name", name)
    if device is None:
        return Kernel(schedule, compile_schedule(schedule, arch or DEFAULT_ARCH, limits, name))
    if arch is not None or limits is not None:
        raise InvalidInput("device and arch or limits: give one; a device has its own")
    compiled = compile_schedule(schedule, device.arch, device.limits, name)
    return Kernel(schedule, compiled, device if isinstance(device, ExecutionDevice) else None)


def _suggest_arch(arch: object) -> str:
    """ "sm_80" of 80, and of what is no number at all."""
    return f"sm_{arch}" if isinstance(arch, int) and 10 <= arch < 1000 else DEFAULT_ARCH
