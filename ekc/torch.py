"""A kernel as an operator of PyTorch. Nothing else in ekc imports this module, and PyTorch is no dependency.

>>> import ekc.torch
>>> gemm = ekc.torch.register(kernel, "mine::gemm")
>>> c = gemm(a, b)                   # or torch.ops.mine.gemm(a, b), also under torch.compile
"""

from __future__ import annotations

from typing import Any

try:
    import torch
except ImportError as problem:
    reason = str(problem).partition("\n")[0]
    raise ImportError(f"ekc.torch needs PyTorch ({reason}): pip install torch") from None

from ekc.devices.kernel import Kernel


def register(kernel: Kernel, name: str) -> Any:
    """Make a kernel the operator `name`, "namespace::operator", for tensors on a GPU; returns it.

    It takes the operator's inputs in order and returns a new tensor; `torch.compile` and export see it as one
    operator whose shape and type are known. Its work is queued on the current stream. Inputs that are not
    contiguous are copied first. It has no gradient: `register_autograd` of the result gives it one.

    Raises what `torch.library.custom_op` raises for a name that is malformed, and `InvalidInput` when called
    with tensors of another shape or type.
    """
    op = kernel.schedule.op
    result = op.outputs[0]
    arguments = ", ".join(f"Tensor {spec.name}" for spec in op.inputs)

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        # PyTorch hands out no tensor that still asks for its gradient; autograd has seen to that above.
        made: torch.Tensor = kernel(*(tensor.detach().contiguous() for tensor in tensors))
        return made

    def shape(*tensors: torch.Tensor) -> torch.Tensor:
        return tensors[0].new_empty(result.shape, dtype=getattr(torch, result.dtype.numpy.name))

    registered = torch.library.custom_op(
        name, run, mutates_args=(), device_types="cuda", schema=f"({arguments}) -> Tensor"
    )
    registered.register_fake(shape)
    return registered
