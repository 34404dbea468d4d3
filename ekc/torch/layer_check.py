"""Compare a compiled module with the original, layer by layer and at its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import _pytree as pytree

from ekc.errors import InvalidInput, KernelFault
from ekc.ir.comparison.tolerance import ReferenceEvaluator, overflow_to_infinity
from ekc.ir.dtypes import TF32, DType
from ekc.models.graph import Node
from ekc.models.model import FusedGraph, LayerCall
from ekc.models.torch_reader.program import split_examples
from ekc.tables import count_nouns, format_table
from ekc.torch.compiled_module import CompiledModule, list_calls
from ekc.torch.graph_module import ValueTable
from ekc.torch.node_functions import apply_node, apply_view, find_torch_dtype


@dataclass(frozen=True)
class CheckedValue:
    """Largest difference of one layer's output, or of one result of the module."""

    name: str
    operator: str
    """Name of the layer's operator; "" for a result of the module."""
    error: float
    """Largest absolute difference beyond what a comparison in the operator may change."""
    tolerance: float
    """Largest difference that rounding can explain in the element types."""

    @property
    def ok(self) -> bool:
        """Whether rounding can explain the difference."""
        return self.error <= self.tolerance

    def __str__(self) -> str:
        what = f"{self.name} ({self.operator})" if self.operator else self.name
        return f"{what}: error {self.error:.3g}, tolerance {self.tolerance:.3g}"


@dataclass(frozen=True)
class ModuleCheck:
    """The comparison of a compiled module with the original."""

    layers: tuple[CheckedValue, ...]
    """Calls of kernels, in the order of the module."""
    results: tuple[CheckedValue, ...]
    """Results of the module."""

    @property
    def first_wrong(self) -> CheckedValue | None:
        """The first layer, else the first result, whose difference is beyond its tolerance."""
        return next((one for one in (*self.layers, *self.results) if not one.ok), None)

    @property
    def ok(self) -> bool:
        """Whether every difference is within its tolerance."""
        return self.first_wrong is None

    def __str__(self) -> str:
        rows = [
            (
                one.name,
                one.operator or "result",
                f"{one.error:.3g}",
                f"{one.tolerance:.3g}",
                "right" if one.ok else "wrong",
            )
            for one in (*self.layers, *self.results)
        ]
        headers = ("layer", "operator", "error", "tolerance", "verdict")
        return format_table(
            headers, rows, f"{count_nouns(len(self.layers), 'kernel')} checked", label_count=2
        )


def check(module: torch.nn.Module, fast: CompiledModule, inputs: Any) -> ModuleCheck:
    """Compare the kernels of `fast` with the module that it was compiled from, on `inputs` as in `compile`.

    Each kernel gets the inputs that PyTorch computes for its layer. The reference is the layer's functions of
    PyTorch in float64 on the same inputs, the tolerance that of its operator and element types. Then the
    results of `fast` and `module` are compared; their tolerance is found by adding the tolerances of the
    layers to the layers' outputs. Tensors on the CPU are computed by the PTX machine, so take small inputs.

    Raises `KernelFault` with the first layer whose difference is beyond its tolerance, else the first such
    result; `InvalidInput` for arguments.
    """
    if not isinstance(fast, CompiledModule):
        raise InvalidInput("fast: needed a module that ekc.torch.compile returned")
    args, kwargs = split_examples(inputs)
    tensors = fast.flatten(args, kwargs)
    device = tensors[0].device if tensors else torch.device("cpu")
    constants = {name: x.to(device) for name, x in fast.constants.items()}
    with torch.no_grad():
        native = _LayerValues(fast.fused, constants, tensors)
        calls = [call for call in list_calls(fast.fused) if call.op.digest in fast.operators]
        layers = tuple(_check_layers(native, calls, fast.operators))
        expected = [x for x in pytree.tree_leaves(module(*args, **kwargs)) if isinstance(x, torch.Tensor)]
        found = [x for x in pytree.tree_leaves(fast(*args, **kwargs)) if isinstance(x, torch.Tensor)]
        results = tuple(_check_results(native, calls, layers, expected, found))
    checked = ModuleCheck(layers, results)
    if checked.first_wrong is not None:
        raise KernelFault(f"{fast.fused.graph.name}: {checked.first_wrong}")
    return checked


class _LayerValues:
    """The tensors that PyTorch computes for every value of a graph, in the types of the module."""

    def __init__(
        self,
        fused: FusedGraph,
        constants: Mapping[str, torch.Tensor],
        inputs: Sequence[torch.Tensor],
        errors: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] | None = None,
    ) -> None:
        self.fused, self.constants, self.inputs = fused, constants, inputs
        values, self.errors = fused.graph.values, errors or {}

        def apply(node: Node, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
            found: torch.Tensor = apply_node(node, values, tensors)
            found = found.to(find_torch_dtype(values[node.output].dtype.name))
            return self.errors[node.output](found) if node.output in self.errors else found

        known = dict(zip(fused.graph.inputs, inputs, strict=True))
        self.table = ValueTable(fused, constants.get, apply, known)

    def read_inputs(self, call: LayerCall) -> list[torch.Tensor]:
        """The inputs of a layer's kernel."""
        found = []
        for source in call.inputs:
            tensor = self.table.get(source.value)
            for view in source.views:
                tensor = apply_view(tensor, view)
            found.append(tensor.contiguous())
        return found

    def read_results(self) -> list[torch.Tensor]:
        """The results of the module."""
        return [self.table.get(name) for name in self.fused.graph.outputs]

    def compute_in_float64(self, call: LayerCall) -> torch.Tensor:
        """The output of a layer by PyTorch in float64, from inputs in the types of the module."""
        made = {node.output for node in call.nodes}
        read = {name: self.table.get(name) for node in call.nodes for name in node.inputs if name not in made}
        for source in call.inputs:
            # A floating constant that the kernel reads in another type was rounded to it.
            for kind, dtype in source.views:
                found = read.get(source.value) if kind == "cast" and source.value in self.constants else None
                if found is not None and found.is_floating_point():
                    read[source.value] = apply_view(found, (kind, dtype))
        known = {name: _widen(tensor) for name, tensor in read.items()}
        values = self.fused.graph.values

        def apply(node: Node, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
            if node.kind == "cast" and values[node.output].dtype.kind not in "biu":
                return _widen(tensors[0])
            made: torch.Tensor = apply_node(node, values, tensors)
            return made

        table = ValueTable(self.fused, lambda name: None, apply, known)
        table.compute(call.nodes)
        result: torch.Tensor = table.get(call.output)
        return result


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _check_layers(
    native: _LayerValues, calls: Sequence[LayerCall], operators: Mapping[str, Any]
) -> Iterator[CheckedValue]:
    for call in calls:
        inputs, result = native.read_inputs(call), call.op.outputs[0]
        found = operators[call.op.digest](*inputs)
        # An operator takes tensors as arrays.
        evaluator = ReferenceEvaluator(call.op, tuple(x.cpu() for x in inputs))
        reference = evaluator.evaluate_tensor(result.name)
        shape = native.fused.graph.values[call.output].shape

        def arrange(array: Any, call: LayerCall = call, shape: Any = shape) -> NDArray[Any]:
            """A result of the operator as the value of the graph, in float64."""
            x = torch.as_tensor(array).double().cpu().expand(call.op.outputs[0].shape)
            return np.asarray(x.reshape(shape).numpy())

        expected = np.asarray(native.compute_in_float64(call).double().cpu().numpy())
        tolerance = reference.tolerance
        if any(spec.dtype is TF32 for spec in call.op.inputs):
            # PyTorch does not round the inputs to tf32: what that changes is no error of the kernel.
            tolerance += float(np.max(np.abs(arrange(reference.values) - expected), initial=0.0))
        choices = arrange(np.asarray(reference.choice_tolerances))
        error = _measure_error(arrange(found), expected, result.dtype, choices)
        yield CheckedValue(call.name, call.op.name, error, tolerance)


def _measure_error(
    values: NDArray[Any], expected: NDArray[Any], dtype: DType, choices: NDArray[Any]
) -> float:
    """Largest difference beyond `choices`. Infinities and NaN equal themselves; else they are an infinite
    error. Expected values that overflow the type are infinities."""
    reference = overflow_to_infinity(expected, dtype)
    equal = (values == reference) | (np.isnan(values) & np.isnan(reference))
    with np.errstate(invalid="ignore"):
        difference = np.abs(np.where(equal, 0.0, values - reference)) - choices
    return float(np.max(np.where(np.isnan(difference), np.inf, np.maximum(difference, 0.0)), initial=0.0))


def _check_results(
    native: _LayerValues,
    calls: Sequence[LayerCall],
    layers: Sequence[CheckedValue],
    expected: Sequence[torch.Tensor],
    found: Sequence[torch.Tensor],
) -> Iterator[CheckedValue]:
    """Compare the results of the modules. The kernel and PyTorch may each be wrong by the tolerance of a
    layer, so its output is shifted by twice that: up, down, and with random signs. The largest change of a
    result is its tolerance."""
    fused, plain = native.fused, native.read_results()
    tolerances = [0.0] * len(plain)
    for sign in (1.0, -1.0, None):
        shifts = {
            call.output: partial(_shift, error=2 * one.tolerance, sign=sign)
            for call, one in zip(calls, layers, strict=True)
        }
        shifted = _LayerValues(fused, native.constants, native.inputs, shifts).read_results()
        changes = [_measure_largest_difference(a, b) for a, b in zip(plain, shifted, strict=True)]
        tolerances = [max(pair) for pair in zip(tolerances, changes, strict=True)]
    for name, tolerance, a, b in zip(fused.graph.outputs, tolerances, expected, found, strict=True):
        yield CheckedValue(name, "", _measure_largest_difference(a, b), tolerance)


def _shift(x: torch.Tensor, error: float, sign: float | None) -> torch.Tensor:
    """A tensor with an error added; `sign` None draws a sign for each element."""
    if not x.is_floating_point():
        return x
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, 2, x.shape, generator=generator).to(x) * 2 - 1 if sign is None else sign
    return (x.double() + error * drawn).to(x.dtype)


def _measure_largest_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest absolute difference; infinite where one is NaN and the other is not."""
    x, y = a.double().cpu(), b.double().cpu()
    equal = (x == y) | (x.isnan() & y.isnan())
    difference = torch.where(equal, 0.0, (x - y).abs()).nan_to_num(nan=float("inf"), posinf=float("inf"))
    return float(difference.max()) if difference.numel() else 0.0
