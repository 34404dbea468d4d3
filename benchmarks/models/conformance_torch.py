"""Conformance of the PyTorch reader with samples of PyTorch's own operator database, `op_db`.

    python -m benchmarks.models.conformance_torch [--seed 0] [--samples 515] [--page FILE]

needs `pip install 'ekc[conformance]'`. The samples are drawn by the seed: the operators with samples of
float32 on the CPU are shuffled, and each gives one of its samples before any gives a second. Each sample
becomes a module, which is read as `ekc.models.from_torch` reads it. It is right where three results equal
PyTorch's: the graph in NumPy, its layers by their operators, and the module that `ekc.torch.compile` makes
without kernels. Where an operator is opaque, the compiled module calls PyTorch for it, and is compared too.
"""

from __future__ import annotations

import random
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from benchmarks.common.script import Arguments, make_main
from benchmarks.models.outcomes import (
    FAULTS,
    Outcome,
    count_reasons,
    count_verdicts,
    describe,
    find_difference,
    format_markdown,
    judge,
)
from ekc.errors import InvalidInput
from ekc.models.build import build_model
from ekc.models.torch_reader.program import quiet
from ekc.models.torch_reader.reading import make_array
from ekc.tables import format_table
from ekc.torch.module_graph import ModuleGraph, read_module
from ekc.torch.replace_layers import TunedLayers, replace_layers

RTOL = ATOL = 1e-4
NO_KERNELS = TunedLayers("a100 (simulated)", True, "sm_80", None, {})
NO_KIND = "no kind of node"
BAR = dict.fromkeys(FAULTS, 0)


class Call(torch.nn.Module):
    """A call of an operator whose tensors are the inputs of the module."""

    def __init__(self, function: Any, leaves: Sequence[Any], spec: Any) -> None:
        super().__init__()
        self.function, self.spec = function, spec
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        """The result for the tensors, in the order of the sample."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.function(first, *args, **kwargs)


@dataclass(frozen=True)
class Case:
    """One sample of an operator."""

    name: str
    """Operator and place of the sample: "nn.functional.gelu:1"."""
    operator: str
    module: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]


def draw_cases(seed: int, count: int, only: str = "", dtype: torch.dtype = torch.float32) -> Iterator[Case]:
    """At most `count` samples of operators whose name contains `only`; equal seeds give equal samples."""
    from torch.testing._internal.common_methods_invocations import op_db

    generator = random.Random(seed)
    infos = [op for op in op_db if op.supports_dtype(dtype, "cpu") and only in op.name]
    generator.shuffle(infos)
    unused: dict[int, list[int]] = {}
    while count and len(infos):
        for info in list(infos):
            torch.manual_seed(seed)
            samples = list(info.sample_inputs("cpu", dtype, requires_grad=False))
            left = unused.setdefault(id(info), generator.sample(range(len(samples)), len(samples)))
            if not left:
                infos.remove(info)
                continue
            index = left.pop()
            yield make_case(info, samples[index], index)
            count -= 1
            if not count:
                return


def make_case(info: Any, sample: Any, index: int) -> Case:
    """A sample of `op_db` as a module."""
    leaves, spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    tensors = tuple(leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor))
    operator = info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")
    return Case(f"{operator}:{index}", operator, Call(info.op, leaves, spec).eval(), tensors)


def judge_case(case: Case) -> Outcome:
    """Read a case and compare every way in which ekc computes it with PyTorch."""
    try:
        with quiet():
            results = pytree.tree_leaves(case.module(*copy(case.inputs)))
            expected = to_arrays(x for x in results if isinstance(x, torch.Tensor))
    except Exception as error:
        return Outcome(case.name, case.operator, "refused", f"PyTorch refuses the sample: {describe(error)}")
    found: list[ModuleGraph] = []

    def read() -> Any:
        found.append(read_module(case.module, copy(case.inputs)))
        return found[0].graph

    with quiet():
        outcome = judge(
            case.name,
            case.operator,
            read,
            lambda graph: to_arrays(case.inputs),
            expected,
            rtol=RTOL,
            atol=ATOL,
        )
        return (
            outcome if outcome.verdict not in ("right", "opaque") else check_module(case, found[0], outcome)
        )


def check_module(case: Case, read: ModuleGraph, outcome: Outcome) -> Outcome:
    """The outcome, unless the module without kernels gives something else than PyTorch."""
    opaque = [node for node in read.graph.nodes if node.kind == "opaque"]
    try:
        model = build_model(read.graph)
    except InvalidInput:
        return outcome
    if any(is_random(node) for node in opaque):
        return outcome
    expected = to_arrays(
        x for x in pytree.tree_leaves(case.module(*copy(case.inputs))) if isinstance(x, torch.Tensor)
    )
    try:
        for attention in ("pytorch", "ekc"):
            fast = replace_layers(case.module, read, model, NO_KERNELS, attention)
            results = pytree.tree_leaves(fast(*copy(case.inputs)))
            made = to_arrays(x for x in results if isinstance(x, torch.Tensor))
            differs = find_difference(made, expected, RTOL, ATOL)
            if differs:
                return Outcome(case.name, case.operator, "wrong", f"compiled module: {differs}")
    except Exception as error:
        return Outcome(case.name, case.operator, "crash", f"compiled module: {describe(error)}")
    return outcome


def is_random(node: Any) -> bool:
    """Whether an opaque operator draws random numbers, or leaves memory as it is."""
    target = node.attributes["call"][0]
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) or "empty" in str(target)


def copy(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The same elements in memory of their own."""
    return tuple(tensor.clone() for tensor in tensors)


def to_arrays(tensors: Any) -> list[np.ndarray[Any, Any]]:
    """Tensors as arrays, of `ml_dtypes` too."""
    return [make_array(tensor.detach().to_dense().contiguous()) for tensor in tensors]


def run(count: int, seed: int, only: str = "") -> list[Outcome]:
    """The outcomes of at most `count` samples that the seed draws, of operators with `only` in their name."""
    warnings.simplefilter("ignore")
    return [judge_case(case) for case in draw_cases(seed, count, only)]


def measure(arguments: Arguments) -> dict[str, Any]:
    """Judge every case; print faults and the table."""
    print(f"torch {torch.__version__}, op_db, seed {arguments.seed}", flush=True)
    outcomes = run(arguments.samples, arguments.seed, arguments.only)
    for outcome in outcomes:
        if outcome.verdict in FAULTS:
            print(f"{outcome.verdict}: {outcome.name}: {outcome.reason}")
    counts = count_verdicts(outcomes)
    if arguments.page:
        arguments.page.write_text(write_page(outcomes, arguments.seed))
    rows = [(verdict, str(count)) for verdict, count in counts.items()]
    print(format_table(("verdict", "samples"), rows, f"{len(outcomes)} samples of op_db"))
    return {
        "torch": torch.__version__,
        "cases": [asdict(outcome) for outcome in outcomes],
        "counts": counts,
        "lines": [{"verdict": one, "samples": counts[one], "pass": not counts[one]} for one in FAULTS],
    }


PAGE_HEAD = """# Conformance of the PyTorch reader

PyTorch {version} has a list of samples for its tests, `op_db`: calls of its operators with arguments. Of
these, {count} were drawn with the seed {seed} and read as `ekc.models.from_torch` does: at most one for each
operator or variant that takes float32. Three results were compared with PyTorch: the graph evaluated in
NumPy, its layers evaluated in NumPy, and the module of `ekc.torch.compile`, run without kernels. This page
is made by
`python -m benchmarks.models.conformance_torch --seed {seed} --samples {count} --page FILE`.

{table}

| outcome | meaning |
| --- | --- |
| right | all three give the results of PyTorch |
| opaque | ekc has no kind of node for it; it stays with PyTorch, and `Model.uncovered` has the reason |
| refused | the module cannot be read, and one line says why |
| wrong, internal error, crash | faults of ekc |

## Operators without a kind of node

These are opaque:

```text
{unknown}
```

## Other operators that are left out

{rows}
"""


def write_page(outcomes: Sequence[Outcome], seed: int) -> str:
    """The page that lists what is opaque or refused, by operator and reason."""
    counts = count_verdicts(outcomes)
    found = count_reasons(outcomes, shorten_reason)
    unknown = [operator for operator, _, reason, _ in found if reason == NO_KIND]
    return PAGE_HEAD.format(
        version=torch.__version__.partition("+")[0],
        count=len(outcomes),
        seed=seed,
        table=format_markdown(tuple(counts), [[str(count) for count in counts.values()]]),
        unknown=textwrap.fill(", ".join(unknown), 96),
        rows=format_markdown(
            ("operator", "outcome", "reason"),
            [(f"`{name}`", verdict, reason) for name, verdict, reason, _ in found if reason != NO_KIND],
        ),
    )


def shorten_reason(outcome: Outcome) -> str:
    """A reason without the names of the module and its tensors, and without remedies."""
    text = outcome.reason.partition(";")[0].removeprefix("torch.export ")
    for mark in (" (unhinted", " FakeTensor(", ", but found", ": AssertionError"):
        text = text.partition(mark)[0]
    text = re.sub(r"^(module|to|to_copy|tensors_\d|[a-z_0-9]+( \([a-zA-Z0-9_.]+\))?): ", "", text)
    text = re.sub(r"^Call writes to .* when", "it writes to its input when", text)
    text = re.sub(r"^\w+(\.\w+)+: ", "", text) if outcome.verdict == "opaque" else text
    return text.replace("export Call", "export it")


OPTIONS = {
    "--samples": {"type": int, "default": 515, "help": "number of samples, default %(default)s"},
    "--page": {"type": Path, "metavar": "FILE", "help": "write the page of the documentation there"},
    "--only": {"default": "", "metavar": "TEXT", "help": "operators whose name contains this"},
}

if __name__ == "__main__":
    # Not at the top, where tests without PyTorch would import it.
    raise SystemExit(make_main(__doc__, measure, BAR, options=OPTIONS)())
