"""Functions of a bundle: operators that differ in extents alone share one, under a legal name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ekc.codegen.library.kernels import list_extents
from ekc.codegen.library.legal_names import has_meaning
from ekc.errors import InvalidInput
from ekc.ir.expr import evaluate
from ekc.ir.operator import Operator
from ekc.ir.validate import check_kernel_name, is_identifier
from ekc.models.model import ModelLayer
from ekc.tables import group_pairs

HEADER_NAMES = frozenset(
    {"Prefer", "Code", "How", "Options", "Status", "Info", "Stream", "Workspace", "View", "Device"}
    | {"list", "detail", "runtime", "kernel_count", "kernel_at", "preload", "unload", "std", "ekc"}
)
"""Names that the C++ header declares in the namespace of the bundle."""
_DIGITS = 8
"""Digits of a digest in a name."""
FUNCTION_SUFFIXES = ("", "_extents", "_workspace_bytes", "_info", "_select", "_shape")
"""Endings of the names that the C++ header declares for each function."""


@dataclass(frozen=True)
class NamedOperator:
    """An operator under a name: that of a layer, or "" to have one made."""

    op: Operator
    name: str = ""
    """Name that the name of its function is made of."""
    model: str = ""
    """Model that the layer belongs to; for messages."""
    layer: str = ""
    """Name of the layer as its model has it; "" for an operator of a record file."""
    is_shared: bool = False
    """Whether operators that differ in extents alone have this name too."""


@dataclass(frozen=True)
class FunctionPlan:
    """A function before its kernels are collected."""

    name: str
    signature: str
    operators: tuple[Operator, ...]
    """Operators by extents, smallest first."""
    layers: tuple[str, ...] = ()
    """Names of the layers that it is for."""


def describe_signature(op: Operator) -> str:
    """Describe an operator without its extents: names, types, ranks, axes and bodies, as canonical JSON."""
    data = op.to_json()
    tensors = [[name, len(shape), dtype] for name, shape, dtype in data["inputs"]]
    computes = [
        {
            **compute,
            "output": [compute["output"][0], len(compute["output"][1]), compute["output"][2]],
            "axes": [[name, bool(reduction)] for name, _, reduction in compute["axes"]],
        }
        for compute in data["computes"]
    ]
    return json.dumps({"name": op.name, "inputs": tensors, "computes": computes}, sort_keys=True)


def name_layers(layers: Sequence[ModelLayer]) -> list[NamedOperator]:
    """Operators under the names of the layers. Where a model calls different operators `conv`, the name of
    each ends with digits of its operator's digest, `conv_1f0c8a2b`, whatever their order."""
    named: dict[tuple[str, str], list[Operator]] = {}
    for layer in layers:
        for use in layer.uses:
            own = named.setdefault((use.model, use.name), [])
            if layer.op not in own:
                own.append(layer.op)
    return [
        NamedOperator(op, name if len(own) == 1 else f"{name}_{op.digest[:_DIGITS]}", model, name)
        for (model, name), own in named.items()
        for op in own
    ]


def name_recorded(op: Operator) -> NamedOperator:
    """Name an operator of a record file after itself alone, so that another operator in the file changes no
    name: `matmul_float32_8c1d0a4e`. Operators that differ in extents alone have one name."""
    margins = [
        int(size - evaluate(index, {a.name: a.extent - 1 for a in compute.axes}, lambda _: 0))
        for compute in op.computes
        for load in compute.loads
        for size, index in zip(op.tensors[load.tensor].shape, load.index, strict=True)
    ]
    # The margins differ where inputs of operators of equal extents have other sizes.
    digest = hashlib.sha256(f"{describe_signature(op)} {margins}".encode()).hexdigest()
    return NamedOperator(op, f"{make_short_name(op)}_{digest[:_DIGITS]}", is_shared=True)


def make_short_name(op: Operator) -> str:
    """Make a name of that of the operator and the type of its first input: `matmul_float32`."""
    return make_function_name(f"{op.name}_{(op.inputs or op.outputs)[0].dtype.name}")


def plan_functions(operators: Sequence[NamedOperator]) -> tuple[FunctionPlan, ...]:
    """Plan the functions, by name. Layers of one name and of equal signature become one function of several
    shapes. Where layers of one name in several models are different operators, the model is a part of the
    names of their functions.

    Raises `InvalidInput` for two layers of one name that are different operators, and for names that the
    header cannot have.
    """
    named = _name_operators(operators)
    plans = [_plan_function(name, entries) for name, entries in sorted(named.items())]
    _check_names([plan.name for plan in plans])
    return tuple(plans)


def _name_operators(operators: Sequence[NamedOperator]) -> dict[str, list[NamedOperator]]:
    """Operators by the name of their function."""
    named: dict[str, list[NamedOperator]] = {}
    unnamed: dict[str, list[NamedOperator]] = {}
    for entry in operators:
        if entry.name:
            named.setdefault(make_function_name(entry.name), []).append(entry)
        else:
            unnamed.setdefault(describe_signature(entry.op), []).append(entry)
    layers: dict[str, list[NamedOperator]] = {}
    for name, entries in named.items():
        if all(entry.is_shared for entry in entries):
            layers.update(_split_equal_extents(name, entries))
            continue
        is_one = _fit_one_function(entries)
        for entry in entries:
            own = name if is_one or not entry.model else make_function_name(f"{entry.model} {entry.name}")
            layers.setdefault(own, []).append(entry)
    bases = group_pairs((make_short_name(entries[0].op), text) for text, entries in unnamed.items())
    for base, signatures in bases.items():
        for signature in signatures:
            digits = hashlib.sha256(signature.encode()).hexdigest()[:_DIGITS]
            for name, entries in _split_equal_extents(
                base if len(signatures) == 1 else f"{base}_{digits}", unnamed[signature]
            ):
                layers.setdefault(name, []).extend(entries)
    return layers


def _fit_one_function(entries: Sequence[NamedOperator]) -> bool:
    """Whether operators differ in their extents alone, so that these distinguish them."""
    by_extents: dict[tuple[int, ...], str] = {}
    signatures = {describe_signature(entry.op) for entry in entries}
    digests = [by_extents.setdefault(list_extents(entry.op), entry.op.digest) for entry in entries]
    return len(signatures) == 1 and digests == [entry.op.digest for entry in entries]


def _split_equal_extents(name: str, entries: list[NamedOperator]) -> list[tuple[str, list[NamedOperator]]]:
    """Split operators of one signature where two have equal extents, as with inputs of different size."""
    by_digest = {entry.op.digest: entry for entry in entries}
    if len({list_extents(entry.op) for entry in by_digest.values()}) == len(by_digest):
        return [(name, list(by_digest.values()))]
    return [(f"{name}_{digest[:_DIGITS]}", [entry]) for digest, entry in by_digest.items()]


def _plan_function(name: str, entries: Sequence[NamedOperator]) -> FunctionPlan:
    found: dict[tuple[int, ...], NamedOperator] = {}
    for entry in entries:
        _check_model(entry, entries)
        found.setdefault(list_extents(entry.op), entry)
    if not _fit_one_function(entries):
        raise InvalidInput(
            f"layers: the function {name} would be {_describe(entries[0])}, and {_describe(entries[-1])}; "
            "change the name of one of these layers or models"
        )
    ordered = [found[extents].op for extents in sorted(found)]
    layers = dict.fromkeys(entry.layer for entry in entries if entry.layer)
    return FunctionPlan(name, describe_signature(entries[0].op), tuple(ordered), tuple(layers))


def _check_model(entry: NamedOperator, others: Sequence[NamedOperator]) -> None:
    """Raises `InvalidInput` where one model has two layers of one name with different operators."""
    for other in others:
        if (
            entry.name
            and not entry.is_shared
            and other.model == entry.model
            and other.op.digest != entry.op.digest
        ):
            raise InvalidInput(
                f"layers: two layers{f' of {entry.model}' * bool(entry.model)} are called {entry.name!r}: "
                f"{_describe(entry)}, and {_describe(other)}; call one of them {entry.name}_2"
            )


def _describe(entry: NamedOperator) -> str:
    return "; ".join(str(entry.op).splitlines()) + (f" of {entry.model}" if entry.model else "")


def make_function_name(text: str) -> str:
    """Make a C++ name of the name of a layer: `layer1.0.conv1` -> `layer1_0_conv1`."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "layer"
    if name[0].isdigit():
        name = f"layer_{name}"
    if name in HEADER_NAMES or has_meaning(name):
        name += "_"
    return check_kernel_name("layer", name if is_identifier(name) else f"{name}_")


def _check_names(names: Sequence[str]) -> None:
    """Raises `InvalidInput` where what the header declares for one function is the name of another."""
    declared: dict[str, str] = {}
    for name in names:
        for suffix in FUNCTION_SUFFIXES:
            other = declared.setdefault(name + suffix, name)
            if other != name:
                raise InvalidInput(
                    f"layers: {name!r} and {other!r} cannot both be functions, because the header declares "
                    f"{name + suffix!r} for both; call one of them {name}_2"
                )


def make_parameter_names(names: Sequence[str], taken: Collection[str]) -> dict[str, str]:
    """Make a C++ name for each tensor or axis: the name, with `_` added where it is taken."""
    made: dict[str, str] = {}
    for name in names:
        own = re.sub(r"[^A-Za-z0-9_]", "_", name)
        while own in taken or own in made.values() or has_meaning(own):
            own += "_"
        made[name] = own
    return made


CPP_TYPES: Mapping[str, str] = {
    "float32": "float",
    "tf32": "float",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "int8": "std::int8_t",
    "int32": "std::int32_t",
}
"""C++ type of each element type in the header."""
