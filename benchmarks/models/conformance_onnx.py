"""The conformance cases that the package onnx ships: single nodes, and small models of PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.models.outcomes import FAULTS, Array, Outcome, judge
from ekc.models.onnx_reader.read import read_onnx

SHIPPED = ("pytorch-converted", "pytorch-operator", "simple")
"""Folders of whole models. Those of `light` have no expected outputs, those of `real` need a download."""


@dataclass(frozen=True, eq=False)
class Case:
    """A model with inputs and the outputs that it has to give."""

    name: str
    kind: str
    """ "node", or the folder of a shipped model."""
    model: onnx.ModelProto
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    rtol: float = 1e-3
    atol: float = 1e-7

    @property
    def operator(self) -> str:
        """The operator of a single node; of a model with several the first."""
        name = self.name.removeprefix("test_").partition("_expanded")[0]
        nodes = self.model.graph.node
        return nodes[0].op_type if len(nodes) == 1 else name


def list_node_cases() -> list[Case]:
    """The cases of single operators. Making them takes 15 s."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases("")  # type: ignore[arg-type]
    return [
        Case(case.name, "node", case.model, *map(_list_arrays, (inputs, outputs)), case.rtol, case.atol)
        for case in found
        for inputs, outputs in case.data_sets[:1]
    ]


def _list_arrays(values: Sequence[Any]) -> list[Any]:
    """Tensors of the file format as arrays; the others are arrays, sequences or None."""
    return [numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in values]


def list_shipped_cases() -> list[Case]:
    """The cases whose files are in the package."""
    data = Path(onnx.__file__).parent / "backend/test/data"
    found = []
    for kind in SHIPPED:
        for folder in sorted(path for path in (data / kind).iterdir() if (path / "model.onnx").exists()):
            model = onnx.load(str(folder / "model.onnx"))
            first = sorted(folder.glob("test_data_set_*"))[0]
            inputs, outputs = (list(_read_values(first, what)) for what in ("input", "output"))
            found.append(Case(folder.name, kind, model, inputs, outputs))
    return found


def _read_values(folder: Path, what: str) -> Iterator[Any]:
    for number in range(len(list(folder.glob(f"{what}_*.pb")))):
        data = (folder / f"{what}_{number}.pb").read_bytes()
        try:
            yield numpy_helper.to_array(onnx.TensorProto.FromString(data))
        except Exception:
            yield None  # A sequence or an optional value: no tensor.


def run_case(case: Case) -> Outcome:
    """The outcome of a case. All inputs are inputs first; where that is not right, those after the first are
    given as values. A fault in either way is the outcome."""
    first = _run_case(case, 1_000)
    if first.verdict == "right" or first.verdict in FAULTS or len(case.inputs) < 2:
        return first
    second = _run_case(case, 1)
    return second if second.verdict in ("right", *FAULTS) else first


def _run_case(case: Case, kept: int) -> Outcome:
    """The outcome with the inputs after the first `kept` given as values."""
    names = [value.name for value in case.model.graph.input]
    arrays = dict(zip(names, case.inputs, strict=False))
    values = {n: a for n, a in list(arrays.items())[kept:] if isinstance(a, np.ndarray | np.generic)}
    shapes = {
        n: a.shape for n, a in arrays.items() if hasattr(a, "shape") and n not in values and 0 not in a.shape
    }

    def list_inputs(graph: Any) -> list[Array]:
        return [np.asarray(arrays[name]) for name in graph.inputs]

    return judge(
        case.name,
        case.operator,
        lambda: read_onnx(case.model, shapes=shapes, values=values),
        list_inputs,
        case.outputs,
        rtol=case.rtol,
        atol=case.atol,
    )


def run_onnx(kinds: Sequence[str] = ("node", *SHIPPED)) -> dict[str, list[Outcome]]:
    """The outcomes of all cases, by "node" and "shipped"."""
    cases = [*list_node_cases(), *list_shipped_cases()]
    found: dict[str, list[Outcome]] = {"node": [], "shipped": []}
    for case in cases:
        found["node" if case.kind == "node" else "shipped"].append(run_case(case))
    return found
