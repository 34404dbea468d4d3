"""Shapes of a model's inputs: those of the file, with symbolic dimensions replaced by given ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ekc.argument_checks import check_choice, check_mapping, format_value
from ekc.errors import InvalidInput

if TYPE_CHECKING:
    from onnx import ValueInfoProto

EXAMPLE = 'shapes={"x": (8, 3, 224, 224)}'


def find_input_shapes(
    label: str, inputs: Sequence[ValueInfoProto], shapes: Mapping[str, Sequence[int]] | None
) -> dict[str, tuple[int, ...]]:
    """The shape of each input of a model.

    `shapes` gives those of inputs with symbolic dimensions, by name; a symbol that one input gives counts for
    all. Raises `InvalidInput` for unknown names, for shapes that differ from fixed dimensions, and for
    dimensions without a size.
    """
    given = {} if shapes is None else check_mapping("shapes", shapes, EXAMPLE)
    names = [value.name for value in inputs]
    for name in given:
        if not names:
            raise InvalidInput(f"shapes: {label} has no inputs, and {format_value(name)} is given")
        check_choice(f"shapes of {label}", name, names)
    symbols: dict[str, int] = {}
    for value in inputs:
        if value.name in given:
            _match_given(label, value, given[value.name], symbols)
    return {value.name: _find_shape(label, value, given, symbols) for value in inputs}


def _match_given(label: str, value: ValueInfoProto, given: Any, symbols: dict[str, int]) -> None:
    """Check a given shape, and learn the sizes of its symbols."""
    what = f"shapes of {label}: {value.name}"
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidInput(f"{what}: {format_value(given)} is no shape; write {EXAMPLE}")
    for size in given:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidInput(f"{what}: {format_value(size)} is no size; use whole numbers of at least 1")
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return
    dims = tensor.shape.dim
    if len(dims) != len(given):
        raise InvalidInput(f"{what}: {len(given)} dimensions are given, the file has {len(dims)}")
    for axis, (dim, size) in enumerate(zip(dims, given, strict=True)):
        if dim.dim_value > 0 and dim.dim_value != size:
            raise InvalidInput(f"{what}: dimension {axis} is {dim.dim_value} in the file, not {size}")
        if dim.dim_param and symbols.setdefault(dim.dim_param, size) != size:
            raise InvalidInput(
                f"{what}: dimension {axis} is {dim.dim_param!r}, which is {symbols[dim.dim_param]} in another"
                f" place, not {size}"
            )


def _find_shape(
    label: str, value: ValueInfoProto, given: Mapping[str, Sequence[int]], symbols: Mapping[str, int]
) -> tuple[int, ...]:
    if value.name in given:
        return tuple(given[value.name])
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise InvalidInput(
            f"{label}: input {value.name!r} has no shape; give it with shapes={{{value.name!r}: (...)}} or"
            f" --input {value.name}=8x3x224x224"
        )
    shape, open_axis = [], None
    for axis, dim in enumerate(tensor.shape.dim):
        size = dim.dim_value if dim.dim_value > 0 else symbols.get(dim.dim_param)
        if size is None and open_axis is None:
            open_axis = axis
        shape.append(size or 1)
    if open_axis is None:
        return tuple(shape)
    symbol = tensor.shape.dim[open_axis].dim_param
    example = tuple(
        size if dim.dim_value > 0 or dim.dim_param in symbols else 8
        for dim, size in zip(tensor.shape.dim, shape, strict=True)
    )
    called = f"({symbol!r}) " if symbol else ""
    # Some exporters write 0 for a dimension that is not known.
    lacks = "is 0 in the file" if tensor.shape.dim[open_axis].HasField("dim_value") else "has no size"
    raise InvalidInput(
        f"{label}: dimension {open_axis} {called}of input {value.name!r} {lacks}; give for example"
        f" shapes={{{value.name!r}: {example}}} or --input {value.name}={'x'.join(map(str, example))}"
    )
