"""Reads modules and programs of PyTorch into graphs and models.

Most programs have no writes to tensors but some as `relu_` that can be read as if they gave a new tensor, and
are read as torch.export gives them. All others are made functional by PyTorch first, and so are those with
operators that have no reader but a decomposition; that takes as long as the export.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ekc.argument_checks import check_choice
from ekc.errors import InvalidInput
from ekc.models.build import build_model
from ekc.models.graph import READ_DTYPES, Graph, GraphBuilder, list_needed, parse_value_dtype
from ekc.models.model import Model
from ekc.models.torch_reader import contractions, elementwise, reductions, torch
from ekc.models.torch_reader.program import (
    Shapes,
    check_arguments,
    derive_facts,
    export_module,
    find_decompositions,
    load_program,
    make_functional,
)
from ekc.models.torch_reader.reading import Reading, take_elements
from ekc.models.torch_reader.walk import KEPT_WHOLE, Walk, packet_of

MAX_ROUNDS = 5
"""Rounds of decomposition: what a decomposition is made of may need one itself."""


def read_torch(
    module: Any,
    example_inputs: Any,
    *,
    dtype: str | None = None,
    shapes: Shapes | None = None,
    name: str | None = None,
) -> Graph:
    """The graph of a module in inference. Arguments and errors as `from_torch`."""
    check_arguments(shapes, name)
    exported = export_module(module, example_inputs, shapes)
    return read_program(exported, dtype=dtype, name=name or type(module).__name__)


def read_exported(
    exported: Any, *, dtype: str | None = None, shapes: Shapes | None = None, name: str | None = None
) -> Graph:
    """The graph of a program of `torch.export`, or of its .pt2 file. Arguments as `from_exported`."""
    is_program = isinstance(exported, torch.export.ExportedProgram)
    check_arguments(shapes, name)
    if isinstance(exported, str | Path):
        name = name or Path(exported).stem
        exported = load_program(exported)
    elif not is_program:
        raise InvalidInput(
            "from_exported: an ExportedProgram or the path of a .pt2 file is needed, not"
            f" {type(exported).__name__}"
        )
    return read_program(exported, dtype=dtype, shapes=shapes, name=name or "model")


def build_graph(reading: Reading, outputs: Sequence[str], notes: Sequence[str]) -> Graph:
    """The graph of what the outputs need, with the elements of its constants."""
    builder = reading.builder
    nodes, needed = list_needed(builder.nodes, outputs)
    final = GraphBuilder(builder.name, inputs=builder.inputs, nodes=list(nodes), notes=list(notes))
    for name, value in builder.values.items():
        if name not in needed and name not in builder.inputs:
            continue
        data = value.data
        if value.is_constant and data is None and name in reading.tensors:
            data = take_elements(reading, name)
        final.add_value(name, value.shape, value.dtype, is_constant=value.is_constant, data=data)
    if reading.clamped:
        final.notes.append(f"constants limited to the range of {reading.dtype}: {reading.clamped}")
    return final.build(outputs)


def read_program(
    exported: Any, *, dtype: str | None = None, shapes: Shapes | None = None, name: str = "model"
) -> Graph:
    """The graph of an exported program; operators without a kind are decomposed once more."""
    if dtype is not None:
        check_choice("dtype", dtype, READ_DTYPES)
    wanted = None if dtype is None else parse_value_dtype("dtype", dtype)
    tried: dict[Any, Any] | None = {} if needs_functional(exported) else None
    for _ in range(MAX_ROUNDS):
        functional = exported if tried is None else make_functional(exported, tried)
        facts = derive_facts(functional, shapes)
        reading = Reading(GraphBuilder(name), wanted)
        walk = Walk(functional, facts, reading)
        outputs = walk.run()
        if not walk.undecided:
            break
        known = tried or {}
        found = find_decompositions([t for t in walk.undecided if can_decompose(t) and t not in known])
        if not found and tried is not None:
            break
        tried = known | found
    return build_graph(reading, outputs, list_notes(functional, wanted))


def can_decompose(target: Any) -> bool:
    """Whether the parts of an operator are worth more than the operator itself."""
    return hasattr(target, "_schema") and packet_of(target) not in KEPT_WHOLE


def list_notes(exported: Any, dtype: np.dtype[Any] | None) -> list[str]:
    """Changes that the reader made, a sentence each."""
    notes = []
    if dtype is not None:
        given = {
            str(node.meta["val"].dtype).removeprefix("torch.")
            for node in exported.graph_module.graph.nodes
            if node.op == "placeholder"
            and hasattr(node.meta.get("val"), "dtype")
            and node.meta["val"].dtype.is_floating_point
        }
        if given - {str(dtype)}:
            notes.append(f"floating tensors read as {dtype}; the program has {', '.join(sorted(given))}")
    signature = exported.graph_signature
    written = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if written:
        notes.append(
            f"tensors that the model writes to, new values are the first outputs: {', '.join(written)}"
        )
    return notes


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
    return build_model(read_exported(program, dtype=dtype, shapes=shapes, name=name))


MAY_SHARE = frozenset({"to", "_to_copy", "type_as", "fill", *elementwise.DROPOUT})
NEW_TENSORS = frozenset({*contractions.HANDLERS, *elementwise.HANDLERS, *reductions.HANDLERS} - MAY_SHARE)
"""Operators whose result is in memory of its own. What the schemas say is not enough: in inference `dropout`
gives its input."""


def needs_functional(exported: Any) -> bool:
    """Whether a program has writes that others may see, or graphs of its own inside."""
    nodes = [node for node in exported.graph_module.graph.nodes if node.op != "placeholder"]
    if any(node.op == "get_attr" for node in nodes):
        return True
    places = {node: place for place, node in enumerate(nodes)}
    calls = [node for node in nodes if node.op == "call_function"]
    return any(not is_plain(node) and not is_private_write(node, places) for node in calls)


def is_plain(node: Any) -> bool:
    """Whether a call only reads its tensors."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return bool(node.target is operator.getitem or is_number(node))
    return not schema.is_mutable


def is_number(node: Any) -> bool:
    """Whether a call gives a number, of sizes for example."""
    return getattr(node.target, "__module__", "") in ("_operator", "math") and "val" in node.meta


def is_private_write(node: Any, places: dict[Any, int]) -> bool:
    """Whether nothing else sees what a call writes: its first tensor is in memory of its own, has no views,
    and is not read later."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not node.args or not str(schema.name).endswith("_"):
        return False
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    tensor = node.args[0]
    if written != [schema.arguments[0].name] or tensor not in places:
        return False
    if packet_of(tensor.target) not in NEW_TENSORS or count_reads(node, tensor) != 1:
        return False
    others = [user for user in tensor.users if user is not node]
    return all(
        places.get(user, len(places)) < places[node] and packet_of(user.target) in NEW_TENSORS
        for user in others
    )


def count_reads(node: Any, tensor: Any) -> int:
    """How often a call has a tensor among its arguments."""
    return sum(argument is tensor for argument in (*node.args, *node.kwargs.values()))
