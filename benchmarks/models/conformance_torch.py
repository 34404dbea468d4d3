"""Samples of PyTorch's own operator database, `op_db`, read by ekc and held against PyTorch.

    python -m benchmarks.models.conformance_torch --seed 0 --samples 515 --json FILE

needs `pip install torch==2.13.0 expecttest`. The samples are drawn by the seed: the operators with samples of
float32 on the CPU are shuffled, and each gives one of its samples before any gives a second. Each becomes a
module and is read as `ekc.models.from_torch` reads it. Verdicts:

right      the graph evaluated in NumPy, its layers evaluated by their operators, and the module that
           `ekc.torch.compile` would make without kernels all give what PyTorch gives
opaque     an operator of the graph is left to PyTorch, with its name and a reason; the compiled module, which
           calls PyTorch for it, gives what PyTorch gives
refused    one line of `InvalidInput`
wrong      some result differs
internal   an exception inside a reader, which made its operator opaque
crash      any other exception
"""

from __future__ import annotations

import argparse
import random
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.utils import _pytree as pytree

from benchmarks.common.script import make_main
from ekc.errors import InvalidInput
from ekc.models.build import build_model, execute_fused
from ekc.models.evaluate import evaluate
from ekc.models.graph import Graph
from ekc.models.torch_reader.program import import_torch, quiet
from ekc.tables import format_table

TOLERANCE = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 8e-2}
"""Difference, of the larger of 1 and the expected value, that rounding explains."""
VERDICTS = ("right", "opaque", "refused", "wrong", "internal", "crash")
FAILED = ("wrong", "internal", "crash")
BAR = {"wrong": 0, "internal": 0, "crash": 0}


@dataclass(frozen=True)
class Case:
    """One sample of an operator."""

    name: str
    """Operator, and the place of the sample among those of the operator: "nn.functional.gelu:1"."""
    module: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Verdict:
    """What became of a case."""

    name: str
    verdict: str
    reason: str = ""


class Call(torch.nn.Module):
    """A call of an operator whose tensors are the inputs of the module."""

    def __init__(self, function: Any, leaves: list[Any], spec: Any) -> None:
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


def draw_cases(seed: int, count: int, only: str = "", dtype: torch.dtype = torch.float32) -> Iterator[Case]:
    """`count` samples; the same seed gives the same operators and samples."""
    from torch.testing._internal.common_methods_invocations import op_db

    generator = random.Random(seed)
    infos = [op for op in op_db if op.supports_dtype(dtype, "cpu") and only in op.name]
    generator.shuffle(infos)
    unused: dict[int, list[int]] = {}
    for place in range(count * len(infos)):
        info, which = infos[place % len(infos)], place % len(infos)
        torch.manual_seed(seed)
        samples = list(info.sample_inputs("cpu", dtype, requires_grad=False))
        left = unused.setdefault(which, generator.sample(range(len(samples)), len(samples)))
        if not left:
            if place >= len(infos) and not any(unused.values()):
                return
            continue
        index = left.pop()
        sample = samples[index]
        leaves, spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
        tensors = tuple(leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor))
        label = info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")
        yield Case(f"{label}:{index}", Call(info.op, leaves, spec).eval(), tensors)
        count -= 1
        if not count:
            return


def judge_case(case: Case) -> Verdict:
    """Read a case and compare every way in which ekc computes it with PyTorch."""
    try:
        with quiet():
            wanted = pytree.tree_leaves(case.module(*copy(case.inputs)))
    except Exception as error:
        return Verdict(case.name, "refused", f"PyTorch does not compute it: {error}"[:200])
    try:
        with quiet():
            return compare_case(case, [x for x in wanted if isinstance(x, torch.Tensor)])
    except InvalidInput as refusal:
        lines = len(str(refusal).splitlines())
        return Verdict(case.name, "refused" if lines == 1 else "crash", str(refusal))
    except Exception as error:
        return Verdict(case.name, "crash", "".join(traceback.format_exception(error)[-3:]))


def copy(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The same elements in memory of their own."""
    return tuple(tensor.clone() for tensor in tensors)


def compare_case(case: Case, wanted: list[torch.Tensor]) -> Verdict:
    """The verdict for the results that PyTorch gives. Raises what the readers raise."""
    from ekc.torch.module_graph import read_module

    read = read_module(case.module, copy(case.inputs))
    graph = read.graph
    opaque = [node for node in graph.nodes if node.kind == "opaque"]
    reasons = "; ".join(dict.fromkeys(f"{node.target}: {node.attributes['reason']}" for node in opaque))
    if "internal error" in reasons:
        return Verdict(case.name, "internal", reasons)
    if not opaque:
        problem = find_difference(evaluate(graph, to_arrays(case.inputs)), wanted)
        if problem:
            return Verdict(case.name, "wrong", f"evaluated: {problem}")
    if not any(is_random(node) for node in opaque):
        problem = compare_model(case, read, wanted, not opaque)
        if problem:
            return Verdict(case.name, "wrong", problem)
    return Verdict(case.name, "opaque" if opaque else "right", reasons)


def compare_model(case: Case, read: Any, wanted: list[torch.Tensor], is_whole: bool) -> str:
    """What differs in the fused graph and in the module without kernels; "" for nothing."""
    from ekc.torch.replace_layers import replace_layers
    from ekc.torch.tuned_layers import TunedLayers

    try:
        model = build_model(read.graph)
    except InvalidInput:
        return ""
    if is_whole and model.fused is not None:
        problem = find_difference(execute_fused(model.fused, to_arrays(case.inputs)), wanted)
        if problem:
            return f"layers: {problem}"
    nothing = TunedLayers("a100 (simulated)", True, "sm_80", None, {})
    for attention in ("pytorch", "ekc"):
        fast = replace_layers(case.module, read, model, nothing, attention)
        found = pytree.tree_leaves(fast(*copy(case.inputs)))
        problem = find_difference(to_arrays([x for x in found if isinstance(x, torch.Tensor)]), wanted)
        if problem:
            return f"compiled module, attention={attention!r}: {problem}"
    return ""


def is_random(node: Any) -> bool:
    """Whether an opaque operator draws random numbers, or leaves memory as it is."""
    target = node.attributes["call"][0]
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) or "empty" in str(target)


def to_arrays(tensors: Any) -> list[np.ndarray[Any, Any]]:
    """Tensors as arrays; float64 is what ekc reads as float32."""
    return [to_array(tensor) for tensor in tensors]


def to_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor as an array, of `ml_dtypes` too."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    if hasattr(ml_dtypes, name):
        bits = torch.int16 if tensor.element_size() == 2 else torch.uint8
        return tensor.view(bits).numpy().view(getattr(ml_dtypes, name))
    return tensor.numpy()


def find_difference(found: Any, wanted: list[torch.Tensor]) -> str:
    """The first difference in number, shape, type or elements; "" for none. NaN and infinity by position."""
    if len(found) != len(wanted):
        return f"{len(found)} results, PyTorch gives {len(wanted)}"
    for place, (a, tensor) in enumerate(zip(found, wanted, strict=True)):
        b = to_array(tensor)
        if a.shape != b.shape:
            return f"result {place} has shape {a.shape}, PyTorch gives {b.shape}"
        if a.dtype != b.dtype:
            return f"result {place} is {a.dtype}, PyTorch gives {b.dtype}"
        x, y = (np.asarray(array).astype(np.float64) for array in (a, b))
        tolerance = TOLERANCE.get(b.dtype.name, 0.0) * np.maximum(1.0, np.abs(np.nan_to_num(y)))
        with np.errstate(invalid="ignore"):
            is_near = (x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= tolerance)
        if not is_near.all():
            at = tuple(int(i) for i in np.argwhere(~is_near)[0])
            return f"result {place} at {at}: {x[at]!r}, PyTorch gives {y[at]!r}"
    return ""


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Judge every case and print the table."""
    warnings.simplefilter("ignore")
    import_torch()
    print(f"torch {torch.__version__}, op_db, seed {arguments.seed}", flush=True)
    verdicts = []
    for case in draw_cases(arguments.seed, arguments.samples, arguments.only):
        verdicts.append(judge_case(case))
        if verdicts[-1].verdict in FAILED:
            print(f"{verdicts[-1].verdict}: {verdicts[-1].name}: {verdicts[-1].reason}", file=sys.stderr)
    counts = Counter(v.verdict for v in verdicts)
    rows = [(name, str(counts[name])) for name in VERDICTS]
    print(format_table(("verdict", "samples"), rows, f"{len(verdicts)} samples of op_db"))
    return {
        "torch": torch.__version__,
        "counts": {name: counts[name] for name in VERDICTS},
        "cases": [asdict(v) for v in verdicts],
        "lines": [{"verdict": name, "count": counts[name], "pass": counts[name] == 0} for name in FAILED],
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the script."""
    parser.add_argument("--samples", type=int, default=515, help="number of samples, default %(default)s")
    parser.add_argument("--only", default="", help="operators whose name contains this")


main = make_main(__doc__, measure, BAR, add_options)

if __name__ == "__main__":
    sys.exit(main())
