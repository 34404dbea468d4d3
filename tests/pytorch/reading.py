"""Graphs of small functions read from PyTorch and evaluated in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from ekc.models.evaluate import evaluate
from ekc.models.graph import Graph
from ekc.models.torch_reader.read import read_torch


class Function(torch.nn.Module):
    """A function, or several with the same inputs, as a module."""

    def __init__(self, *functions: Callable[..., Any]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *inputs: torch.Tensor) -> Any:
        return tuple(f(*inputs) for f in self.functions)


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor as an array, bfloat16 too."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def make_input(shape: Sequence[int], seed: int = 0) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))


def flatten_inputs(inputs: Iterable[Any]) -> list[np.ndarray[Any, Any]]:
    """Arrays of tensors, and of lists of them, in order."""
    return [to_numpy(x) for given in inputs for x in (given if isinstance(given, list) else [given])]


def list_opaque(graph: Graph) -> list[str]:
    """Targets of the nodes without a kind."""
    return [str(node.attributes["target"]) for node in graph.nodes if node.kind == "opaque"]


def check_module(
    module: torch.nn.Module, *inputs: torch.Tensor, tolerance: float = 2e-5, **named: Any
) -> Graph:
    """Read a module, and hold its graph in NumPy against PyTorch on the CPU; returns the graph."""
    module = module.eval()
    graph = read_torch(module, named or inputs)
    assert not list_opaque(graph)
    with torch.no_grad():
        expected = module(*inputs, **named)
    wanted = torch.utils._pytree.tree_leaves(expected)
    given = evaluate(graph, flatten_inputs(inputs or named.values()))
    assert len(given) == len(wanted)
    for i, (a, b) in enumerate(zip(given, wanted, strict=True)):
        b = to_numpy(b)
        assert a.shape == b.shape, i
        assert a.dtype == b.dtype, i
        np.testing.assert_allclose(
            a.astype(np.float64), b.astype(np.float64), tolerance, tolerance, err_msg=f"output {i}"
        )
    return graph
