"""Kernels: compiled schedules that can be called with arrays of NumPy, PyTorch and other libraries. A call in
the PTX machine that takes long is announced by a warning."""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.argument_checks import format_value
from ekc.codegen.compiled import CompiledKernel, Launch, Resources
from ekc.codegen.generate import compile_schedule
from ekc.devices.cuda.device_arrays import is_on_gpu
from ekc.devices.device import Device, ExecutionDevice, check_emulation_memory, check_transfer_memory
from ekc.display import format_html_table, format_line, shorten
from ekc.emulator.launch import BATCH_LANES
from ekc.errors import InvalidInput, KernelFault
from ekc.host_memory import format_bytes
from ekc.ir.arrays import convert_like, is_torch_tensor
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.schedule.schedule import Schedule
from ekc.ir.validate import check_kernel_name
from ekc.runtime.execute import EXECUTED_BY, execute
from ekc.tables import count_nouns

_SINGLE_OPERATION_S = 1e-4
"""Seconds of an operation of one thread that runs alone: calls of NumPy, whatever they do."""
_LANE_OPERATION_S = 3e-9
"""Seconds of an operation per lane of many. Both are rounded, from one machine (2 cores of a shared EPYC)."""
_WARNING_THRESHOLD_S = 60.0


def estimate_emulation_s(compiled: CompiledKernel) -> float:
    """Seconds of an emulated call, roughly, by the operator's arithmetic and lanes that run together."""
    operations = compiled.flops / len(compiled.launches)
    lanes = [min(BATCH_LANES, math.prod(one.grid) * math.prod(one.block)) for one in compiled.launches]
    return sum(operations * (_SINGLE_OPERATION_S / count + _LANE_OPERATION_S) for count in lanes)


def warn_if_slow(compiled: CompiledKernel) -> None:
    """Warn of a call that takes so long that it could seem to hang."""
    seconds = estimate_emulation_s(compiled)
    if seconds < _WARNING_THRESHOLD_S:
        return
    threads = max(math.prod(one.grid) * math.prod(one.block) for one in compiled.launches)
    fix = "take smaller shapes, or `ekc run`, which runs some of the blocks"
    if threads < BATCH_LANES:
        fix = "bind loops to blocks and threads, or take smaller shapes"
    what = f"{compiled.name}: the CPU executes every thread of this kernel ({threads} together)"
    warnings.warn(f"{what} in {_format_duration(seconds)} or so; {fix}", stacklevel=4)


def _format_duration(seconds: float) -> str:
    """A rounded duration in a fitting unit."""
    for limit, unit, word in ((5400, 60, "minutes"), (172800, 3600, "hours")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {word}"
    return f"{seconds / 86400:.0f} days"


@dataclass(frozen=True, repr=False)
class Kernel:
    """A schedule, and the CUDA, PTX and CUBIN made of it. Call it: arrays in, an array out.

    NumPy in, NumPy out; tensors of PyTorch in, a tensor out. With several libraries in one call, the library
    of the first input makes the result.

    Arrays in the memory of the host: the call executes the compiled PTX in the PTX machine, under a
    sanitizer: every launch, every thread, no GPU. That shows the result of the kernel, not its speed. A
    kernel that was compiled for a real device (`ekc.compile(schedule, device=ekc.devices.open("cuda:0"))`)
    runs there, in a worker, so that a fault costs no more than the call. `executed_by` says which of the two.
    Libraries with the array API standard (JAX) get their own arrays back; for any other array that NumPy can
    read the result is a NumPy array.

    Arrays on a GPU (PyTorch, CuPy, Numba: any with DLPack or `__cuda_array_interface__`) stay there. The
    kernel is queued on the library's current stream, or on `stream`, a CUDA handle, without a copy and
    without waiting. The result is a new array, or `out`.

    A kernel has no gradient: a tensor that requires one is refused unless PyTorch's gradients are off
    (`torch.no_grad()`). `ekc.torch.register` makes an operator, for gradients, `torch.compile` and export.
    """

    schedule: Schedule
    compiled: CompiledKernel
    device: ExecutionDevice | None = field(default=None, compare=False)
    """GPU for arrays in the memory of the host, if one was given."""

    @property
    def executed_by(self) -> str:
        """Description of what computes the result for arrays in the memory of the host."""
        return EXECUTED_BY if self.device is None else self.device.executed_by

    @property
    def cuda_source(self) -> str:
        """CUDA C++ text of all launches."""
        return self.compiled.cuda_source

    @property
    def ptx(self) -> str:
        """PTX of all launches."""
        return self.compiled.ptx

    @property
    def cubin(self) -> bytes:
        """Machine code for `arch`, an ELF file."""
        return self.compiled.cubin

    @property
    def resources(self) -> tuple[Resources, ...]:
        """Registers, shared memory and spills, one entry per launch."""
        return self.compiled.resources

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Launches in order, with grid and block."""
        return self.compiled.launches

    @property
    def arch(self) -> str:
        """Architecture that the kernel was compiled for, such as "sm_80"."""
        return self.compiled.arch

    def __call__(self, *arrays: Any, out: Any = None, stream: int | None = None) -> Any:
        """The result for input arrays in the operator's order; see the class.

        Raises `InvalidInput` for an array of another shape or dtype than declared and where memory does not
        suffice, `KernelFault` when the sanitizer finds an access out of bounds, a race or the like, or when
        an element is never written, `DeviceError` where the driver of a GPU refuses, and `EkcError` for an
        instruction that the machine does not support.
        """
        if "torch._dynamo" in sys.modules and any(map(is_torch_tensor, arrays)):
            # torch.compile would trace the Python code of the PTX machine.
            return sys.modules["torch"].compiler.disable(self._dispatch)(arrays, out, stream)
        return self._dispatch(arrays, out, stream)

    def _dispatch(self, arrays: tuple[Any, ...], out: Any, stream: int | None) -> Any:
        """See `__call__`."""
        if any(is_on_gpu(array) for array in arrays):
            from ekc.devices.cuda.call import call_kernel

            return call_kernel(self.schedule.op, self.compiled, arrays, out, stream)
        if out is not None or stream is not None:
            raise InvalidInput("out and stream are for arrays on a GPU; these are not: leave both out")
        device = self.device
        result = self._run_emulated(arrays) if device is None else self._run_on_device(device, arrays)
        return convert_like(arrays[0], result) if arrays else result

    def _run_on_device(self, device: ExecutionDevice, arrays: tuple[Any, ...]) -> NDArray[Any]:
        """Run on the GPU of `device`, in its worker."""
        op = self.schedule.program.op
        check_transfer_memory(op)
        specs = [op.tensors[one.arguments[-1]] for one in self.launches]
        blanks = [np.empty(spec.shape, spec.dtype.numpy_dtype) for spec in specs]
        return device.execute(self.compiled, op.check_arrays(arrays), blanks)[-1]

    def _run_emulated(self, arrays: tuple[Any, ...]) -> NDArray[Any]:
        """Run in the PTX machine."""
        check_emulation_memory(self.schedule.program.op, self.compiled)
        warn_if_slow(self.compiled)
        runs = execute(self.schedule.program.op, self.compiled, arrays)
        written: dict[str, NDArray[np.bool_]] = {}
        for one, run in zip(self.launches, runs, strict=True):
            if run.report.findings:
                findings = run.report.findings
                raise KernelFault(f"{count_nouns(len(findings), 'finding')}; the first: {findings[0]}")
            # A launch that adds to its output need not change elements of an earlier one.
            name = one.arguments[-1]
            written[name] = written.get(name, False) | run.is_written
            if not written[name].all():
                missing = f"{(~written[name]).sum()} of {run.is_written.size} elements"
                raise KernelFault(f"{run.report.kernel} leaves {missing} of its output unwritten")
        return runs[-1].output

    def __repr__(self) -> str:
        inputs = shorten(", ".join(map(str, self.schedule.op.inputs)), 36)
        runner = shorten(self.executed_by.partition(": ")[0])
        return format_line(self, f"{shorten(self.compiled.name)}({inputs}), {self.arch}, run by {runner}")

    def _repr_html_(self) -> str:
        """A table of the launches."""
        launches = zip(self.launches, self.resources, strict=True)
        rows = [
            (
                *(one.name, _format_extents(one.grid), _format_extents(one.block), str(used.registers)),
                format_bytes(used.shared_bytes + one.shared_bytes),
                format_bytes(used.spill_store_bytes + used.spill_load_bytes),
            )
            for one, used in launches
        ]
        headers = ("function", "blocks", "threads of a block", "registers", "shared memory", "spilled")
        note = f"{self.arch}; calls run by {self.executed_by}; cuda_source and ptx have the text"
        return format_html_table(headers, rows, str(self.schedule.op).splitlines()[0], note)


def _format_extents(extents: tuple[int, int, int]) -> str:
    return " x ".join(map(str, extents))


DEFAULT_ARCH = "sm_80"


def compile(
    schedule: Schedule,
    arch: str | None = None,
    limits: LaunchLimits | None = None,
    device: Device | None = None,
    name: str | None = None,
) -> Kernel:
    """Compile a schedule for `arch` ("sm_80" by default); needs no GPU. `limits` default to those of an A100,
    with the shared memory of `arch`; asynchronous copies and matrix instructions depend on `arch` alone. With
    a `device`, such as `ekc.devices.open("cuda:0")`, both are the device's, and a device that executes
    kernels runs this one when it is called with NumPy arrays. `name` replaces the operator's name in
    functions and files: two shapes of one operator need two names to be linked into one program.

    Raises `ScheduleError` for a schedule that breaks a rule or a limit, `InvalidInput` for an arch that NVRTC
    does not support, an arch beside a device, a name that C cannot have.
    """
    if not isinstance(schedule, Schedule):
        raise InvalidInput(
            f"schedule: {format_value(schedule)} is not an ekc.Schedule; ekc.Schedule(op) starts one"
        )
    if arch is not None and not isinstance(arch, str):
        raise InvalidInput(
            f"arch: {format_value(arch)} is not the name of a target; the nearest is {_suggest_arch(arch)!r}"
        )
    if limits is not None and not isinstance(limits, LaunchLimits):
        raise InvalidInput(
            f"limits: {format_value(limits)} is not an ekc.ir.hardware.target.LaunchLimits; leave it out"
        )
    if device is not None and not (hasattr(device, "arch") and hasattr(device, "limits")):
        raise InvalidInput(
            f"device: {format_value(device)} is not a device; ekc.devices.open('a100') gives one"
        )
    if name is not None:
        check_kernel_name("name", name)
    if device is None:
        return Kernel(schedule, compile_schedule(schedule, arch or DEFAULT_ARCH, limits, name))
    if arch is not None or limits is not None:
        raise InvalidInput("device and arch or limits: give one; a device has its own")
    compiled = compile_schedule(schedule, device.arch, device.limits, name)
    return Kernel(schedule, compiled, device if isinstance(device, ExecutionDevice) else None)


def _suggest_arch(arch: object) -> str:
    """ "sm_80" of 80, and of what is no number at all."""
    return f"sm_{arch}" if isinstance(arch, int) and 10 <= arch < 1000 else DEFAULT_ARCH
