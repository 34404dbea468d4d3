"""A compiled schedule that can be called with arrays of NumPy, PyTorch and other libraries."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel, Launch, Resources
from ekc.devices.base import ExecutionDevice
from ekc.devices.capacity import check_emulation_memory, check_transfer_memory
from ekc.devices.cuda.arrays import is_on_gpu
from ekc.devices.execute import EXECUTED_BY, execute
from ekc.devices.patience import warn_if_slow
from ekc.errors import InvalidInput, KernelFault
from ekc.ir.arrays import convert_like, is_torch_tensor
from ekc.ir.schedule.schedule import Schedule


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
            from ekc.devices.cuda.calls import call_kernel

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
