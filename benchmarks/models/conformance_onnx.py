"""Conformance of the ONNX reader with the cases that the package onnx ships: single nodes and small models.

    python -m benchmarks.models.conformance_onnx [--page docs/reference/conformance-onnx.md]

A case is right where the graph that ekc reads, and the layers of that graph, give the expected outputs. Each
case is read with all its inputs first. Where that is not right, the inputs after the first are given as
values. The run passes if no case is wrong, crashes or has an internal error, and at least 1,150 node cases
are right.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.common.script import Arguments, Column, format_lines, make_main
from benchmarks.models.outcomes import (
    FAULTS,
    VERDICTS,
    Array,
    Outcome,
    count_reasons,
    count_verdicts,
    format_markdown,
    judge,
)
from ekc.models.onnx_reader.read import read_onnx

LEAST_RIGHT = {"node": 1150, "shipped": 0}
"""Group of cases -> how many have to be right."""
SHIPPED = ("pytorch-converted", "pytorch-operator", "simple")
"""Folders of whole models. Those of `light` have no expected outputs, those of `real` need a download."""


@dataclass(frozen=True, eq=False)
class Case:
    """A model with inputs and the outputs that it has to give."""

    name: str
    model: onnx.ModelProto
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    rtol: float = 1e-3
    atol: float = 1e-7

    @property
    def operator(self) -> str:
        """The operator of the first node. Of a definition by other operators, the one that is defined: values
        are called OPERATOR_CASE_expanded_function_NAME."""
        first = self.model.graph.node[0]
        name, is_definition, _ = first.output[0].partition("_expanded_function_")
        return name.partition("_test_")[0] if is_definition else first.op_type


def list_node_cases(modules: Sequence[str] = ()) -> list[Case]:
    """The cases of single operators: those of some modules of `onnx.backend.test.case.node`, or all of them.
    Making all takes 15 s."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in modules:
            importlib.import_module(f"{node.__name__}.{module}")
        found = list(node._NodeTestCases) if modules else node.collect_testcases("")
    return [
        Case(case.name, case.model, *map(_list_arrays, (inputs, outputs)), case.rtol, case.atol)
        for case in found
        for inputs, outputs in case.data_sets[:1]
    ]


def _list_arrays(values: Sequence[Any]) -> list[Any]:
    """The values, tensors of the file format converted to arrays. The rest are arrays, sequences or None."""
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
            found.append(Case(folder.name, model, inputs, outputs))
    return found


def _read_values(folder: Path, what: str) -> Iterator[Any]:
    for number in range(len(list(folder.glob(f"{what}_*.pb")))):
        data = (folder / f"{what}_{number}.pb").read_bytes()
        try:
            yield numpy_helper.to_array(onnx.TensorProto.FromString(data))
        except Exception:
            yield None  # A sequence or an optional value: no tensor.


def run_case(case: Case) -> Outcome:
    """The outcome of a case, read with all its inputs. Where that is neither right nor a fault, the case is
    read again with the inputs after the first given as values; the second outcome counts if it is either."""
    first = _run_case(case, len(case.inputs))
    if first.verdict in ("right", *FAULTS) or len(case.inputs) < 2:
        return first
    second = _run_case(case, 1)
    return second if second.verdict in ("right", *FAULTS) else first


def _run_case(case: Case, kept: int) -> Outcome:
    """The outcome with the first `kept` inputs as inputs, and the rest given as values."""
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
        lambda: read_onnx(case.model, shapes=shapes, values=values, name=case.name),
        list_inputs,
        case.outputs,
        rtol=case.rtol,
        atol=case.atol,
    )


def run_onnx() -> dict[str, list[Outcome]]:
    """The outcomes of all cases, by "node" and "shipped"."""
    groups = {"node": list_node_cases(), "shipped": list_shipped_cases()}
    return {name: [run_case(case) for case in cases] for name, cases in groups.items()}


def measure(arguments: Arguments) -> dict[str, Any]:
    """Run all cases; returns a line for each group, and every case that is not right."""
    groups = run_onnx()
    print(f"onnx {onnx.__version__}")
    lines = [make_line(name, outcomes) for name, outcomes in groups.items()]
    print(format_lines([Column(name, name) for name in ("cases", "number", *VERDICTS)], lines))
    for outcome in (o for found in groups.values() for o in found if o.verdict in FAULTS):
        print(f"{outcome.verdict}: {outcome.name}: {outcome.reason}")
    if arguments.page:
        arguments.page.write_text(write_page(groups))
    left = [vars(o) for found in groups.values() for o in found if o.verdict != "right"]
    return {"lines": lines, "onnx": onnx.__version__, "not right": left}


def make_line(name: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The figures of a group, with its verdict."""
    counts = count_verdicts(outcomes)
    passes = not any(counts[fault] for fault in FAULTS) and counts["right"] >= LEAST_RIGHT[name]
    return {"cases": name, "number": len(outcomes), **counts, "pass": passes}


PAGE_HEAD = """# Conformance of the ONNX reader

The package onnx {version} ships {count} cases: nodes of one operator, and small models. Each was read as
`ekc.models.from_onnx` does, and its graph and layers were evaluated in NumPy. This page is made by
`python -m benchmarks.models.conformance_onnx --page FILE`.

{table}

| outcome | meaning |
| --- | --- |
| right | the outputs are those that onnx expects |
| opaque | ekc has no kind of node for it; it stays with the framework, and `Model.uncovered` has the reason |
| refused | the model cannot be read, and one line says why |
| wrong, internal error, crash | faults of ekc |

Where a case is not right, it is read again with [values](../how-to/models.md) for the inputs after the first.

## Operators that are left out

*No kind of node*: ekc does not know this operator. Other reasons name what it does not know of the operator,
or of the model. NAME is the name of a node or value in the file of the case.

{rows}
"""


def write_page(groups: Mapping[str, Sequence[Outcome]]) -> str:
    """The page that lists what is opaque or refused, by operator and reason."""
    headers = ("cases", "number", *VERDICTS)
    lines = [make_line(name, outcomes) for name, outcomes in groups.items()]
    table = format_markdown(headers, [[str(line[key]) for key in headers] for line in lines])
    outcomes = [outcome for found in groups.values() for outcome in found]
    rows = [
        (operator, str(count), verdict, reason)
        for operator, verdict, reason, count in count_reasons(outcomes, shorten_reason)
    ]
    return PAGE_HEAD.format(
        version=onnx.__version__,
        count=f"{len(outcomes):,}",
        table=table,
        rows=format_markdown(("operator", "cases", "outcome", "reason"), rows),
    )


def shorten_reason(outcome: Outcome) -> str:
    """A reason without the names of the case, its tensors and remedies, so that equal reasons are one row."""
    text = outcome.reason.removeprefix(f"{outcome.name}: ").removeprefix(f"{outcome.operator}: ")
    for mark in ("; give for example", "; ekc needs", "; cast to", "; read the model"):
        text = text.partition(mark)[0]
    return re.sub(r"'[^'\s]*('|\.\.\.)|\b(test)?_\w+", "NAME", text)


OPTIONS = {
    "--page": {"type": Path, "metavar": "FILE", "help": "write the page of the documentation there"},
}
main = make_main(__doc__, measure, {"wrong, crash, internal error": 0, "right": LEAST_RIGHT}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
