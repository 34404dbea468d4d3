"""Traces of rules and analysis, recorded once for all spaces of one operator and GPU."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import pytest
from numpy.typing import NDArray

from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.trace.recorder import WalkTrace
from ekc.search.sketches.builder import Structure
from ekc.search.space.constraints import StructureEvaluator

TRACES: dict[bytes, tuple[WalkTrace, WalkTrace]] = {}
"""Content of an evaluator -> its traces of the rules and of the analysis, once both are recorded; those used
last are last."""
MAX_TRACES = 100
"""Most traces that are kept: a large one has 40 MB."""


class SharingEvaluator(StructureEvaluator):
    """An evaluator that takes the traces of an earlier one with the same content. A search of a few trials
    would spend a third of its time on them."""

    def __init__(
        self,
        op: Operator,
        structures: Sequence[Structure],
        limits: LaunchLimits,
        sample: Mapping[str, NDArray[np.int64]],
    ) -> None:
        super().__init__(op, structures, limits, sample)
        self._content = pickle.dumps((op.to_json(), tuple(structures), limits, self._sample))
        if self._content in TRACES:
            self._rule_trace, self._quantity_trace = TRACES[self._content] = TRACES.pop(self._content)

    @cached_property
    def _quantity_trace(self) -> WalkTrace:
        found = StructureEvaluator._quantity_trace.func(self)
        TRACES[self._content] = self._rule_trace, found
        while len(TRACES) > MAX_TRACES:
            del TRACES[next(iter(TRACES))]
        return found


@pytest.fixture(autouse=True, scope="module")
def shared_traces() -> Iterator[None]:
    """Spaces of these tests share traces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ekc.search.space.space.StructureEvaluator", SharingEvaluator)
        yield
