"""Models from PyTorch: `from_torch` of a module, `from_exported` of a program of torch.export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ekc.models.model import Model


def from_torch(
    module: Any,
    example_inputs: Any,
    *,
    dtype: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    name: str | None = None,
) -> Model:
    """The layers of a `torch.nn.Module`, by `torch.export` in inference and without gradients.

    `example_inputs` is a tensor, a tuple of arguments or a dict of named ones; their shapes become those of
    the model, their elements do not matter. `shapes` gives inputs other shapes, by the names of the arguments
    of `forward`. `dtype` reads every floating tensor as "float32", "float16" or "bfloat16". Modules on the
    meta device are read without their weights. `name` is that of the class otherwise.

    Raises `InvalidInput` where PyTorch is missing or cannot export the module, for complex and float64
    tensors, and where no layer covers anything. What is not covered is listed in `Model.uncovered`.

    >>> model = from_torch(module, torch.zeros(1, 3, 224, 224), dtype="float16")    # doctest: +SKIP
    """
    from ekc.models.build import build_model
    from ekc.models.torch_reader.read import read_torch

    return build_model(read_torch(module, example_inputs, dtype=dtype, shapes=shapes, name=name))


def from_exported(
    program: Any,
    *,
    dtype: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    name: str | None = None,
) -> Model:
    """The layers of a `torch.export.ExportedProgram`, or of the .pt2 file that holds one.

    `shapes` gives inputs with dynamic dimensions their sizes, by name: `{"x": (8, 3, 224, 224)}`. The other
    arguments are those of `from_torch`; `name` is that of the file otherwise.

    Raises `InvalidInput` as `from_torch`, for a missing or broken file, for a dynamic dimension without a
    size, and for sizes that the program excludes.
    """
    from ekc.models.build import build_model
    from ekc.models.torch_reader.read import read_exported

    return build_model(read_exported(program, dtype=dtype, shapes=shapes, name=name))
