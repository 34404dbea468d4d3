"""What differs between the libraries whose arrays kernels take: their current stream, and a new array."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ekc.errors import InvalidInput
from ekc.ir.operator import TensorSpec


def find_current_stream(array: Any) -> int:
    """The stream that the array's library queues its work on now, as a handle. Of a library not known here:
    the stream that the array tells, or the default one."""
    library = sys.modules.get(_find_library(array))
    match _find_library(array):
        case "torch":
            return int(library.cuda.current_stream(array.device).cuda_stream)  # type: ignore[union-attr]
        case "cupy":
            return int(library.cuda.get_current_stream().ptr)  # type: ignore[union-attr]
    told = getattr(array, "__cuda_array_interface__", {}).get("stream")
    return 0 if told in (None, 1) else int(told)


def use_device_of(array: Any) -> AbstractContextManager[Any]:
    """Within the block the array's GPU is its library's current one: PyTorch hands out no others."""
    if _find_library(array) == "torch":
        return sys.modules["torch"].cuda.device(array.device)  # type: ignore[no-any-return]
    return nullcontext()


def allocate_like(array: Any, spec: TensorSpec) -> Any:
    """A new array for a tensor, of the array's library and on its GPU. `InvalidInput` for a library not known
    here."""
    library, name = sys.modules.get(_find_library(array)), spec.dtype.numpy_dtype.name
    match _find_library(array):
        case "torch":
            return library.empty(spec.shape, dtype=getattr(library, name), device=array.device)  # type: ignore[union-attr]
        case "cupy":
            with array.device:
                return library.empty(spec.shape, dtype=name)  # type: ignore[union-attr]
        case "numba":
            return library.cuda.device_array(spec.shape, dtype=name)  # type: ignore[union-attr]
    raise InvalidInput(
        f"{spec.name}: ekc cannot make an array of {type(array).__module__}; pass one for the result as out="
    )


def _find_library(array: Any) -> str:
    """The library that made an array's class, or the class that it is derived from."""
    libraries = [kind.__module__.partition(".")[0] for kind in type(array).__mro__]
    return next((name for name in libraries if name in ("torch", "cupy", "numba")), libraries[0])
