"""The graph of a module, its arguments and results, and its weights: by `torch.export`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.utils import _pytree as pytree

from ekc.argument_checks import format_value
from ekc.errors import InvalidInput
from ekc.models.graph import VIEW_KINDS, Graph
from ekc.models.torch_reader.program import export_module
from ekc.models.torch_reader.read import read_exported
from ekc.tables import count_nouns
from ekc.torch.node_functions import apply_node


@dataclass(frozen=True, eq=False)
class ModuleGraph:
    """A module as a graph."""

    graph: Graph
    structure: CallStructure


def read_module(module: torch.nn.Module, example_inputs: Any) -> ModuleGraph:
    """Export a module and read its graph.

    Raises `InvalidInput` for what is no module, one in training mode, one that `torch.export` or ekc cannot
    read, and one that writes to its buffers or inputs.
    """
    if not isinstance(module, torch.nn.Module):
        raise InvalidInput(f"module: {format_value(module)} is no torch.nn.Module")
    training = next((name for name, part in module.named_modules() if part.training), None)
    if training is not None:
        raise InvalidInput(
            f"module: {training or type(module).__name__} is in training mode, kernels are for inference; "
            "call module.eval() first"
        )
    program = export_module(module, example_inputs, None)
    graph = read_exported(program, name=type(module).__name__)
    results = [value for value in program.graph_signature.user_outputs if isinstance(value, str)]
    if len(graph.outputs) > len(results):
        # The reader adds the new values of what the module writes to, and a note with the names.
        names = next(note.rpartition(": ")[2] for note in graph.notes if "writes to" in note)
        raise InvalidInput(
            f"module: {type(module).__name__} writes to {names} when it is called; "
            "take a module that returns new values"
        )
    return ModuleGraph(graph, derive_structure(module, program, graph))


def derive_structure(module: torch.nn.Module, program: Any, graph: Graph) -> CallStructure:
    """How arguments and results of an exported program become the tensors of its graph."""
    arguments = {
        place: value
        for place, value in enumerate(program.graph_signature.user_inputs)
        if not (isinstance(value, str) and value in graph.inputs)
    }
    leaves = torch.utils._pytree.tree_leaves(program.example_inputs)
    constants = {place: leaves[place] for place in arguments}
    if any(isinstance(value, torch.Tensor) for value in constants.values()):
        raise InvalidInput(f"{graph.name}: an argument is a tensor that the graph does not take")
    results = {
        place: value
        for place, value in enumerate(program.graph_signature.user_outputs)
        if not isinstance(value, str)
    }
    spec, (args, kwargs) = program.call_spec, program.example_inputs
    signature = inspect.signature(module.forward)
    positional = tuple(signature.bind(*args, **kwargs).arguments)[: len(args)]
    return CallStructure(
        spec.in_spec, constants, positional, tuple(kwargs), signature, spec.out_spec, results
    )


def collect_constants(
    graph: Graph, read: Graph, module: torch.nn.Module, device: torch.device
) -> dict[str, torch.Tensor]:
    """The constants of a graph as tensors on a device.

    One that is a weight or buffer of the module, or a view of one, is that tensor, without a copy. `read` is
    the graph as it was read: there constants have the names of the weights, and views are nodes.
    """
    owned: dict[str, torch.Tensor] = {
        **dict(module.named_buffers(remove_duplicate=False)),
        **dict(module.named_parameters(remove_duplicate=False)),
    }

    def find_owned(name: str) -> torch.Tensor | None:
        """The tensor of the module that a constant of `read` is."""
        value = read.values.get(name)
        if name in owned:
            is_same = value is not None and value.data is not None and _is_same(owned[name], value.data)
            return owned[name].detach() if is_same else None
        node = read.producers.get(name)
        if node is None or node.kind not in VIEW_KINDS:
            return None
        source = find_owned(node.inputs[0])
        return None if source is None else apply_node(node, read.values, [source])

    found = {}
    for name, value in graph.values.items():
        if value.data is not None:
            own = find_owned(name)
            found[name] = make_tensor(value.data).to(device) if own is None else own
    return found


def _is_same(own: torch.Tensor, data: np.ndarray[Any, Any]) -> bool:
    tensor = make_tensor(data)
    same_kind = own.shape == tensor.shape and own.dtype == tensor.dtype
    return same_kind and bool(torch.equal(own.detach().cpu(), tensor))


def make_tensor(data: np.ndarray[Any, Any]) -> torch.Tensor:
    """An array as a tensor, in its own memory where that can be shared."""
    data = np.ascontiguousarray(data).reshape(data.shape)
    if data.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(data.view(np.int16)).view(torch.bfloat16)
    if not data.flags.writeable:
        data = data.copy()
    found: torch.Tensor = torch.from_numpy(data)
    return found


def list_versions(tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
    """A number of each tensor that grows when it is written to; 0 for those made under `inference_mode`,
    which count no writes."""
    return tuple(0 if x.is_inference() else x._version for x in tensors)


@dataclass(frozen=True, eq=False)
class CallStructure:
    """How the arguments and results of a module become the tensors of its graph."""

    arguments: pytree.TreeSpec
    constants: Mapping[int, Any]
    """Arguments that are no tensors, by place: they were fixed when the module was compiled."""
    positional: tuple[str, ...]
    """Names of the parameters that were given by position."""
    keywords: tuple[str, ...]
    signature: inspect.Signature
    result: pytree.TreeSpec
    result_constants: Mapping[int, Any]
    """Results that are no tensors, by place."""

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The tensors among the arguments, in order. Raises `InvalidInput` for another structure."""
        args, kwargs = self._arrange(args, kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self.arguments:
            raise InvalidInput(
                f"arguments: {spec_text(spec)}, compiled for {spec_text(self.arguments)}; "
                "compile again with example_inputs of this form"
            )
        for place, value in self.constants.items():
            if leaves[place] is not value and leaves[place] != value:
                raise InvalidInput(
                    f"argument {place} is {format_value(leaves[place])}, compiled for {format_value(value)}; "
                    "compile again"
                )
        return [leaf for place, leaf in enumerate(leaves) if place not in self.constants]

    def _arrange(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments by position and by name as in the example, whichever way they were given."""
        if any(one.kind is one.VAR_POSITIONAL for one in self.signature.parameters.values()):
            return args, dict(kwargs)
        try:
            given = self.signature.bind(*args, **kwargs).arguments
        except TypeError as problem:
            raise InvalidInput(f"arguments: {problem}") from None
        if set(given) != {*self.positional, *self.keywords}:
            return args, dict(kwargs)
        return tuple(given[n] for n in self.positional), {n: given[n] for n in self.keywords}

    def unflatten(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The result of the module, made of the tensors that its graph gives."""
        rest = iter(tensors)
        leaves = [
            self.result_constants[place] if place in self.result_constants else next(rest)
            for place in range(self.result.num_leaves)
        ]
        return pytree.tree_unflatten(leaves, self.result)


def spec_text(spec: pytree.TreeSpec) -> str:
    """The structure of arguments in a few words."""
    args, kwargs = spec.children() if hasattr(spec, "children") else spec.children_specs
    return (
        f"{count_nouns(args.num_leaves, 'positional value')} and {count_nouns(kwargs.num_leaves, 'keyword')}"
    )
