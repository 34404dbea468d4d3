"""Elements of constants, as NumPy arrays of the type that the graph has."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ekc.models.torch_reader.program import import_torch
from ekc.models.torch_reader.reading import Reading


def store_dtype(reading: Reading, name: str, tensor: Any) -> np.dtype[Any]:
    """Element type of a constant: the type that is asked for; float32 for floating constants without
    dimensions then."""
    if tensor.dtype.is_floating_point and not tensor.shape and reading.dtype is not None:
        return np.dtype(np.float32)
    return reading.find_dtype(name, tensor)


def take_elements(reading: Reading, name: str) -> np.ndarray[Any, Any] | None:
    """Elements of a constant as NumPy array, without a copy where the type stays."""
    torch = import_torch()
    tensor = reading.tensors[name]
    if tensor.is_meta:
        return None
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    found = str(tensor.dtype).removeprefix("torch.")
    if hasattr(ml_dtypes, found):
        bits = torch.int16 if tensor.element_size() == 2 else torch.uint8
        data = tensor.view(bits).numpy().view(getattr(ml_dtypes, found))
    else:
        data = tensor.numpy()
    wanted = reading.builder.values[name].dtype
    return data if data.dtype == wanted else np.asarray(reading.limit(data)).astype(wanted)
