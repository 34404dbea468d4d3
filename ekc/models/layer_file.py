"""Layer files: the operators of a network, in TOML, each with the number of times it occurs.

    [[layer]]
    name = "layer1.conv2"
    model = "ResNet-50, batch 1"
    operator = "conv2d"
    count = 3
    n = 1
    c = 64
    ...

    epilogue = "relu(y + bias)"
    inputs = { bias = [64, 1, 1] }

Every key but the first four is an argument of the operator. An epilogue, elementwise in the result, and the
shapes of its further inputs are allowed with any operator. Layers of equal operator and arguments become one,
which is tuned once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ekc.argument_checks import check_path
from ekc.errors import InvalidInput
from ekc.file_limits import parse_toml, read_plain_file
from ekc.ir.operator import Operator
from ekc.ir.validate import check_name_part
from ekc.models.model import LayerUse, Model, ModelLayer
from ekc.models.operator_arguments import OPERATOR_KINDS, build_operator

_LAYER_KEYS = ("name", "model", "operator", "count")
FILE_KINDS = frozenset(OPERATOR_KINDS) - {"einsum"}
"""Kinds of operators that a layer may have. The subscripts of an einsum are no named argument."""

OPERATOR_ARGUMENTS = frozenset(
    {"m", "n", "k", "b", "c", "d", "h", "w", "out_channels", "kernel", "stride", "padding", "output_padding"}
    | {"dilation", "groups", "layout", "transpose_a", "transpose_b"}
    | {"shape", "axis", "axes", "combine", "keepdims", "eps"}
    | {"dtype", "acc_dtype", "out_dtype", "epilogue", "inputs"}
)
"""Arguments of all kinds of operators; those of one kind are checked when the operator is made."""


@dataclass(frozen=True)
class Layer:
    """An operator as the file has it, and every place that uses it."""

    operator_kind: str
    arguments: dict[str, object]
    uses: tuple[LayerUse, ...]


def from_layers(path: str | Path) -> Model:
    """Read a layer file as a model: each distinct operator is a layer, and nothing is left uncovered. The
    model has the name of the file without its ending.

    Raises `InvalidInput` for the file: one line with the file, and the line or the layer."""
    path = Path(check_path("path", path))
    layers: dict[str, ModelLayer] = {}
    # All operators are made before the first is tuned, so that a mistake in the last is reported at once.
    for layer in read_layers(path):
        op = _build_layer_operator(path, layer)
        first = layers.get(op.digest, ModelLayer(op, ()))
        layers[op.digest] = replace(first, uses=first.uses + layer.uses)
    return Model(path.stem, tuple(layers.values()))


def _build_layer_operator(file: Path, layer: Layer) -> Operator:
    try:
        return build_operator(layer.operator_kind, layer.arguments)
    except InvalidInput as problem:
        raise InvalidInput(f"{file}: layer {layer.uses[0].name}: {problem}") from problem


def read_layers(path: Path) -> tuple[Layer, ...]:
    """Read the layers of a TOML file in order, equal ones merged. Raises InvalidInput, one line with the file
    and the line or the layer."""
    document = _read_toml(path)
    for key in document:
        if key != "layer":
            raise InvalidInput(
                f"{path}: {_describe_unknown_key(key, ['layer'])}; each layer starts with [[layer]]"
            )
    tables = document.get("layer")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InvalidInput(f"{path} holds no layers; each starts with a line [[layer]]")
    entries = (_parse_layer(table, f"{path}, layer {i}") for i, table in enumerate(tables, 1))
    return _merge_layers(entries)


def _read_toml(path: Path) -> dict[str, object]:
    try:
        data = read_plain_file(path)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}{_suggest_file(path)}") from error
    try:
        return parse_toml(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInput(f"{path}, line {line}: not UTF-8 text") from error
    except ValueError as error:
        # tomllib writes the line into the message: "... (at line 3, column 5)".
        found = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", str(error), re.DOTALL)
        if found is None:
            raise InvalidInput(f"{path} cannot be read as TOML: {error}") from error
        line = int(found[2] or data.count(b"\n") + 1)
        raise InvalidInput(f"{path}, line {line}: {found[1]}") from error


def _suggest_file(path: Path) -> str:
    names = [p.name for p in path.parent.glob("*.toml")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""


def _parse_layer(table: dict[str, object], place: str) -> Layer:
    for key in table:
        if key not in _LAYER_KEYS and key not in OPERATOR_ARGUMENTS:
            raise InvalidInput(
                f"{place}: {_describe_unknown_key(key, [*_LAYER_KEYS, *sorted(OPERATOR_ARGUMENTS)])}"
            )
    name, kind = _parse_text(table, "name", place), _parse_text(table, "operator", place)
    place = f"{place} ({check_name_part(f'{place}: name', name)})"
    if kind not in FILE_KINDS:
        near = difflib.get_close_matches(kind, sorted(FILE_KINDS), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"operators are {', '.join(sorted(FILE_KINDS))}"
        raise InvalidInput(f"{place}: no operator {kind!r}; {hint}")
    count = table.get("count", 1)
    if type(count) is not int or count < 1:
        raise InvalidInput(f"{place}: count is {count!r}; it must be a whole number from 1")
    model = _parse_text(table, "model", place) if "model" in table else ""
    arguments = {
        key: _parse_value(key, table[key], place) for key in table if key not in (*_LAYER_KEYS, "inputs")
    }
    if "inputs" in table:
        arguments["inputs"] = _parse_inputs(table["inputs"], place)
    return Layer(kind, arguments, (LayerUse(name, model, count),))


def _parse_text(table: Mapping[str, object], key: str, place: str) -> str:
    if key not in table:
        raise InvalidInput(f'{place}: it has no {key}; add {key} = "..."')
    value = table[key]
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{place}: {key} is {value!r}; it must be a text in quotes")
    return value


def _parse_value(key: str, value: object, place: str) -> object:
    if isinstance(value, list):
        return tuple(_parse_value(key, item, place) for item in value)
    if isinstance(value, (bool, int, float, str)):
        return value
    raise InvalidInput(f"{place}: {key} is {value!r}; it must be a number, a text, true or false, or a list")


def _parse_inputs(value: object, place: str) -> dict[str, object]:
    """Name -> shape of each input of the epilogue."""
    if not isinstance(value, dict):
        raise InvalidInput(f"{place}: inputs is {value!r}; write inputs = {{ bias = [64] }}")
    return {name: _parse_value(f"inputs.{name}", shape, place) for name, shape in value.items()}


def _describe_unknown_key(key: str, allowed_keys: list[str]) -> str:
    near = difflib.get_close_matches(key, allowed_keys, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"keys are {', '.join(allowed_keys)}"
    return f"no key {key!r}; {hint}"


def _merge_layers(entries: Iterable[Layer]) -> tuple[Layer, ...]:
    merged: dict[tuple[object, ...], Layer] = {}
    for entry in entries:
        # Compared as text, because True == 1 in Python.
        shape = (entry.operator_kind, *sorted((k, repr(v)) for k, v in entry.arguments.items()))
        first = merged.get(shape)
        uses = entry.uses if first is None else first.uses + entry.uses
        merged[shape] = Layer(entry.operator_kind, entry.arguments, uses)
    return tuple(merged.values())
