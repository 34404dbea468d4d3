"""Arrays of any library in host memory: read into NumPy, and made from NumPy.

No array library is imported here: a caller that passes a tensor of PyTorch has imported PyTorch.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ekc.argument_checks import refuse_mask
from ekc.errors import InvalidInput

if TYPE_CHECKING:
    from ekc.ir.compute import TensorSpec

_ARRAY_PROTOCOLS = ("__array__", "__array_interface__", "__cuda_array_interface__", "__dlpack__")
"""Attributes of an object that is an array to some library."""
_REGISTER_HINT = "register an operator for that: ekc.torch.register(kernel, 'mine::name')"


def is_torch_tensor(array: Any) -> bool:
    """Whether an array is a tensor of PyTorch, of a class derived from `torch.Tensor` too."""
    return any((kind.__module__, kind.__name__) == ("torch", "Tensor") for kind in type(array).__mro__)


def detach_tensor(name: str, array: Any) -> Any:
    """An array without state outside its memory: a tensor's gradient, and a sign not yet applied.

    Raises `InvalidInput` for a tensor without numbers (meta, fake), for a sparse one, and for one whose
    gradient would be lost.
    """
    if not is_torch_tensor(array):
        return array
    torch: Any = sys.modules["torch"]
    fake = any(kind.__name__ == "FakeTensor" for kind in type(array).__mro__)
    if fake or array.device.type == "meta":
        kind = "FakeTensor" if fake else "meta tensor"
        raise InvalidInput(f"{name} is a {kind}, which holds no numbers; {_REGISTER_HINT}")
    if array.layout != torch.strided:
        raise InvalidInput(f"{name} is {array.layout}, needed {torch.strided}; pass {name}.to_dense()")
    if array.requires_grad and torch.is_grad_enabled():
        raise InvalidInput(
            f"{name} requires a gradient, and a kernel has none; pass {name}.detach(), or {_REGISTER_HINT}"
        )
    return array.detach().resolve_neg()


def read_array(spec: TensorSpec, array: Any) -> NDArray[Any]:
    """An array as NumPy sees it, of whatever shape and type; without a copy where NumPy can do without.

    Raises `InvalidInput` for what is no array (a list, None), for one that is not in the memory of the host,
    and what `detach_tensor` raises.
    """
    if not _is_array(array):
        given = "None" if array is None else f"of type {type(array).__name__}"
        raise InvalidInput(
            f"{spec.name} is {given}, needed an array; "
            f"try numpy.array(..., {spec.dtype.numpy_dtype.name!r}) of shape {spec.shape}"
        )
    refuse_mask(spec.name, array)
    array = detach_tensor(spec.name, array)
    try:
        if is_torch_tensor(array):
            return _read_tensor(spec, array)
        read = np.asarray(array)
        # NumPy takes an array that speaks DLPack alone for a single object.
        alone = read.dtype == object and read is not array and hasattr(array, "__dlpack__")
        return np.from_dlpack(array) if alone else read
    except (BufferError, RuntimeError, TypeError) as problem:
        raise InvalidInput(f"{spec.name} cannot be read: {str(problem).partition(chr(10))[0]}") from problem


def _is_array(array: Any) -> bool:
    """Whether an object offers its elements by a protocol of arrays, or as a buffer with a shape."""
    return isinstance(array, memoryview) or any(hasattr(array, name) for name in _ARRAY_PROTOCOLS)


def _read_tensor(spec: TensorSpec, tensor: Any) -> NDArray[Any]:
    torch: Any = sys.modules["torch"]
    if tensor.device.type != "cpu":
        raise InvalidInput(f"{spec.name} is on {tensor.device}, needed on the CPU; pass {spec.name}.cpu()")
    needed = getattr(torch, spec.dtype.numpy_dtype.name)
    if tensor.dtype != needed:
        way = "view" if (tensor.dtype, needed) == (torch.uint16, torch.bfloat16) else "to"
        raise InvalidInput(
            f"{spec.name} is {tensor.dtype}, needed {spec.dtype}; try {spec.name}.{way}({needed})"
        )
    if needed == torch.bfloat16:
        # NumPy has no such type of its own, and PyTorch does not know that of ml_dtypes.
        return np.asarray(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())


def convert_like(array: Any, result: NDArray[Any]) -> Any:
    """A result as an array of the library of `array`, on the host: a tensor for a tensor of PyTorch.

    Other libraries make theirs by the array API standard (`__array_namespace__`); one without it gets NumPy.
    """
    if is_torch_tensor(array):
        torch: Any = sys.modules["torch"]
        result = np.ascontiguousarray(result)
        if result.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(result)
    if isinstance(array, np.ndarray | np.generic) or not hasattr(array, "__array_namespace__"):
        return result
    return array.__array_namespace__().asarray(result, device=array.device)
