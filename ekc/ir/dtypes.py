"""The element types of the IR: what each is called here, in NumPy and in CUDA text."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import numpy as np

from ekc.errors import InvalidInput


@dataclass(frozen=True)
class DType:
    """One element type. `bytes` is its size in memory."""

    name: str
    bytes: int
    cuda: str
    """Its type name in the emitted CUDA text."""

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy type that holds the same values."""
        return np.dtype(self.name)

    def __str__(self) -> str:
        return self.name


FLOAT32 = DType("float32", 4, "float")
FLOAT16 = DType("float16", 2, "half_t")
_TABLE = {d.name: d for d in (FLOAT32, FLOAT16)}


def dtype_of(name: str | DType) -> DType:
    """The DType called `name`; `InvalidInput` with the nearest spelling when there is none."""
    if isinstance(name, DType):
        return name
    if name in _TABLE:
        return _TABLE[name]
    near = difflib.get_close_matches(str(name), _TABLE, n=1, cutoff=0.3) or ["float32"]
    raise InvalidInput(f"dtype: {name!r} is not one of {', '.join(_TABLE)}; the nearest is {near[0]!r}")
