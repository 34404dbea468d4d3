"""Kernels as operators of PyTorch."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch

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
        return _call(kernel, [tensor.detach() for tensor in tensors])

    registered = torch.library.custom_op(name, compute, mutates_args=(), schema=_write_schema(kernel))
    registered.register_fake(partial(_make_fake, kernel))
    return registered


_LAYERS: dict[str, Any] = {}
"""Operators of layers by name."""


@cache
def _open_library() -> Any:
    """The namespace of the operators of layers. PyTorch drops it where nothing refers to it."""
    return torch.library.Library("ekc", "FRAGMENT")


def register_layer(kernel: Kernel) -> Any:
    """Register a kernel under a name of its own, "ekc::OPERATOR_DIGEST_ARCH", once in a process, and return
    the operator.

    It is for inference: PyTorch prepares no gradient, which makes calls cheaper than those of `register`, and
    a call that needs one raises `InvalidInput`. It gives no warning: the caller warns for all layers.

    Raises `InvalidInput` for a kernel without inputs.
    """
    schedule = kernel.schedule
    name = f"{schedule.op.name}_{schedule.digest[:12]}_{kernel.arch}"
    if name not in _LAYERS:
        library = _open_library()
        library.define(name + _write_schema(kernel))
        library.impl(name, lambda *tensors: _call(kernel, tensors), "CompositeExplicitAutograd")
        torch.library.register_fake(f"ekc::{name}", partial(_make_fake, kernel), lib=library)
        _LAYERS[name] = getattr(torch.ops.ekc, name).default
    return _LAYERS[name]


def _write_schema(kernel: Kernel) -> str:
    """The arguments and the result, as PyTorch declares operators. Raises `InvalidInput` without inputs."""
    op = kernel.schedule.op
    if not op.inputs:
        raise InvalidInput(f"{op.name}: no inputs, by which PyTorch chooses a device; call the kernel itself")
    return f"({', '.join(f'Tensor {spec.name}' for spec in op.inputs)}) -> Tensor"


def _call(kernel: Kernel, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The result of a kernel for tensors of any strides."""
    inputs = zip(kernel.schedule.op.inputs, tensors, strict=True)
    plain = (detach_tensor(spec.name, tensor).contiguous() for spec, tensor in inputs)
    result: torch.Tensor = kernel(*plain)
    return result


def _make_fake(kernel: Kernel, *tensors: torch.Tensor) -> torch.Tensor:
    """A tensor without elements in place of the result."""
    op = kernel.schedule.op
    for spec, tensor in zip(op.inputs, tensors, strict=True):
        _check_tensor(spec, tensor, tensors[0].device)
    result = op.outputs[0]
    return tensors[0].new_empty(result.shape, dtype=_find_dtype(result))


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
