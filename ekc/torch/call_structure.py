"""How the arguments and results of a module become the tensors of its graph, and back."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ekc.argument_checks import format_value
from ekc.errors import InvalidInput
from ekc.tables import count_nouns


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
