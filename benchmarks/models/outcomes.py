"""The verdict on one conformance case, such as "right" or "opaque"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ekc.errors import InvalidInput
from ekc.models.build import build_model, derive_layers, execute_fused
from ekc.models.evaluate import evaluate
from ekc.models.graph import Graph

VERDICTS = ("right", "opaque", "refused", "wrong", "internal error", "crash")
"""Right: the graph, and its fused form, gives the outputs of the case. Opaque: a node has no kind, and its
reason says why. Refused: the reader raised `InvalidInput`. The last three are faults."""
FAULTS = VERDICTS[3:]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Outcome:
    """The verdict of one case; `reason` says why it is not right."""

    name: str
    operator: str
    verdict: str
    reason: str = ""


def judge(
    name: str,
    operator: str,
    read: Callable[[], Graph],
    inputs: Callable[[Graph], Sequence[Array]],
    expected: Sequence[Array],
    *,
    rtol: float = 1e-3,
    atol: float = 1e-7,
) -> Outcome:
    """Read a case, evaluate its graph and its layers, and compare with the expected outputs."""
    try:
        graph = read()
    except InvalidInput as problem:
        return Outcome(name, operator, "refused", str(problem))
    except Exception as problem:
        return Outcome(name, operator, "crash", describe(problem))
    try:
        if graph.internal_errors:
            return Outcome(name, operator, "internal error", graph.internal_errors[0].attributes["reason"])
        opaque = [node for node in graph.nodes if node.kind == "opaque"]
        if opaque:
            derive_layers(graph)
            return Outcome(name, operator, "opaque", f"{opaque[0].target}: {opaque[0].attributes['reason']}")
        arrays = inputs(graph)
        for made in (evaluate(graph, arrays), evaluate_layers(graph, arrays)):
            differs = find_difference(made, expected, rtol, atol) if made is not None else None
            if differs:
                return Outcome(name, operator, "wrong", differs)
    except Exception as problem:
        return Outcome(name, operator, "crash", describe(problem))
    return Outcome(name, operator, "right")


def evaluate_layers(graph: Graph, arrays: Sequence[Array]) -> tuple[Array, ...] | None:
    """The outputs by the references of the layers; None where no layer covers anything. Raises `RuntimeError`
    where ekc failed at a node."""
    try:
        model = build_model(graph)
    except InvalidInput:
        return None
    if model.internal_errors:
        raise RuntimeError(model.internal_errors[0].reason)
    assert model.fused is not None
    return execute_fused(model.fused, arrays)


def find_difference(made: Sequence[Array], expected: Sequence[Array], rtol: float, atol: float) -> str | None:
    """How outputs differ from those that are expected; None where they do not. The relative tolerance is at
    least twice the machine epsilon of the type."""
    if len(made) != len(expected):
        return f"{len(made)} outputs, {len(expected)} expected"
    for number, (one, other) in enumerate(zip(made, map(np.asarray, expected), strict=True)):
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"output {number}: {one.dtype} {one.shape}, expected {other.dtype} {other.shape}"
        if "float" not in one.dtype.name:
            same = np.array_equal(one, other)
        else:
            allowed = max(rtol, 2 * float(ml_dtypes.finfo(one.dtype).eps))
            same = np.allclose(one.astype(float), other.astype(float), allowed, atol, equal_nan=True)
        if not same:
            return f"output {number}: other elements than expected"
    return None


def describe(problem: Exception) -> str:
    """An unexpected error in one line."""
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"


def count_verdicts(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Verdict -> number of cases."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def count_reasons(
    outcomes: Iterable[Outcome], shorten: Callable[[Outcome], str]
) -> list[tuple[str, str, str, int]]:
    """Operator, verdict, short reason and number of cases of what is not right, in order."""
    found = Counter((o.operator, o.verdict, shorten(o)) for o in outcomes if o.verdict != "right")
    return [(*key, count) for key, count in sorted(found.items())]


def format_markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [headers, ["---"] * len(headers), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
