"""Kernels as operators of PyTorch. Nothing else in ekc imports this module, and PyTorch is no dependency.

>>> import ekc.torch
>>> gemm = ekc.torch.register(kernel, "mine::gemm")
>>> c = gemm(a, b)                   # or torch.ops.mine.gemm(a, b), also under torch.compile
"""

from __future__ import annotations

import re
import warnings
from functools import cache
from typing import Any

try:
    import torch
except ImportError as problem:
    reason = str(problem).partition("\n")[0]
    raise ImportError(f"ekc.torch needs PyTorch ({reason}): pip install torch") from None

from ekc.argument_checks import format_value
from ekc.errors import InvalidInput
from ekc.ir.arrays import detach_tensor
from ekc.ir.compute import TensorSpec
from ekc.runtime.kernel import Kernel

_OPERATOR_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*", re.ASCII)


def register(kernel: Kernel, name: str) -> Any:
    """Register a kernel as the operator `name`, "namespace::operator", and return the operator.

    The operator takes the kernel's inputs in order and returns a new tensor; `torch.compile` and export see
    one operator of known shape and type. It has no gradient: `register_autograd` of the result adds one.
    Inputs that are not contiguous are copied first.

    Tensors on a GPU: the kernel is queued on the current stream. Tensors on the CPU: `kernel.executed_by`
    computes, as for NumPy arrays, which is the PTX machine unless the kernel was compiled for a real device.
    The first such call of an operator warns with a `UserWarning`, later ones do not.

    Raises `InvalidInput` for arguments of another type or form and for a kernel without inputs. Calls raise
    `InvalidInput` for tensors of another shape, type or device, also under `torch.compile` and export.
    """
    if not isinstance(kernel, Kernel):
        raise InvalidInput(
            f"kernel: {format_value(kernel)} is no kernel; "
            'write register(ekc.compile(schedule), "namespace::operator")'
        )
    if not isinstance(name, str) or not _OPERATOR_NAME.fullmatch(name):
        raise InvalidInput(
            f'name: {format_value(name)} is not of the form "namespace::operator"; try "mine::gemm"'
        )
    op = kernel.schedule.op
    if not op.inputs:
        raise InvalidInput(f"{op.name}: no inputs, by which PyTorch chooses a device; call the kernel itself")
    result = op.outputs[0]
    arguments = ", ".join(f"Tensor {spec.name}" for spec in op.inputs)

    @cache
    def warn_once() -> None:
        warnings.warn(
            f"{name}: tensors on the CPU are computed by {kernel.executed_by}; "
            "that shows what the kernel computes, not how fast it is",
            stacklevel=2,
        )

    def compute(*tensors: torch.Tensor) -> torch.Tensor:
        if all(tensor.device.type == "cpu" for tensor in tensors):
            warn_once()
        # Autograd works above this function: no gradient is lost here.
        plain = (detach_tensor(x.name, tensor.detach()) for x, tensor in zip(op.inputs, tensors, strict=True))
        result: torch.Tensor = kernel(*(tensor.contiguous() for tensor in plain))
        return result

    def make_fake(*tensors: torch.Tensor) -> torch.Tensor:
        for spec, tensor in zip(op.inputs, tensors, strict=True):
            _check_tensor(spec, tensor, tensors[0].device)
        return tensors[0].new_empty(result.shape, dtype=_find_dtype(result))

    registered = torch.library.custom_op(name, compute, mutates_args=(), schema=f"({arguments}) -> Tensor")
    registered.register_fake(make_fake)
    return registered


def _find_dtype(spec: TensorSpec) -> torch.dtype:
    found: torch.dtype = getattr(torch, spec.dtype.numpy_dtype.name)
    return found


def _check_tensor(spec: TensorSpec, tensor: torch.Tensor, device: torch.device) -> None:
    """Raises `InvalidInput` for a tensor without memory that is not as declared, or not on the device of the
    first one."""
    if tuple(tensor.shape) != spec.shape:
        raise InvalidInput(f"{spec.name} has shape {tuple(tensor.shape)}, needed {spec.shape}")
    if tensor.dtype != _find_dtype(spec):
        raise InvalidInput(f"{spec.name} is {tensor.dtype}, needed {_find_dtype(spec)}")
    if tensor.device != device:
        raise InvalidInput(
            f"{spec.name} is on {tensor.device}, the first input on {device}: move one of them"
        )
