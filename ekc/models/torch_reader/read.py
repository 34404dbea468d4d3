"""Reads modules and programs of PyTorch into graphs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ekc.argument_checks import check_choice
from ekc.errors import InvalidInput
from ekc.models.graph import READ_DTYPES, Graph, GraphBuilder
from ekc.models.torch_reader.names import packet_of
from ekc.models.torch_reader.program import (
    Shapes,
    check_arguments,
    export_module,
    find_decompositions,
    find_facts,
    import_torch,
    load_program,
    make_functional,
)
from ekc.models.torch_reader.reading import Reading, take_elements
from ekc.models.torch_reader.walk import KEPT_WHOLE, Walk
from ekc.models.torch_reader.writes import needs_functional

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
    torch = import_torch()
    check_arguments(shapes, name)
    if isinstance(exported, str | Path):
        name = name or Path(exported).stem
        exported = load_program(exported)
    if not isinstance(exported, torch.export.ExportedProgram):
        raise InvalidInput(
            "from_exported: an ExportedProgram or the path of a .pt2 file is needed, not"
            f" {type(exported).__name__}"
        )
    return read_program(exported, dtype=dtype, shapes=shapes, name=name or "model")


def build_graph(reading: Reading, outputs: Sequence[str], notes: Sequence[str]) -> Graph:
    """The graph of what the outputs need, with the elements of its constants."""
    builder = reading.builder
    needed, nodes = set(outputs), []
    for node in reversed(builder.nodes):
        if node.output in needed:
            needed.update(node.inputs)
            nodes.append(node)
    final = GraphBuilder(builder.name, inputs=builder.inputs, nodes=nodes[::-1], notes=list(notes))
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
    wanted = None if dtype is None else parse_dtype(dtype)
    tried: dict[Any, Any] | None = {} if needs_functional(exported) else None
    for _ in range(MAX_ROUNDS):
        functional = exported if tried is None else make_functional(exported, tried)
        facts = find_facts(functional, shapes)
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


def parse_dtype(dtype: str) -> np.dtype[Any]:
    """The floating type to read a model as."""
    check_choice("dtype", dtype, READ_DTYPES)
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


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
