"""A compiled trace, replayed on the columns of a population."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ekc.ir.trace.compiler import EmptyMask, TraceOutput


class WalkOutput(NamedTuple):
    """Values that walks give under a label for some rows; a number is the same for all of these rows."""

    label: Any
    rows: slice
    values: tuple[Any, ...]


@dataclass(frozen=True)
class WalkTrace:
    """The trace of some walks: a function of columns that gives the outputs of the walks."""

    columns: tuple[str, ...]
    function: Callable[..., tuple[tuple[Any, ...], ...]]
    """Returns values of every part, outcomes of the branches of every walk, and masks."""
    output_parts: tuple[TraceOutput, ...]
    assumed_branches: tuple[tuple[bool, ...], ...]
    """Outcomes of the branches of each walk when it was recorded."""
    empty_masks: tuple[EmptyMask, ...]
    """Masks, in the order of the function's result, that must be False in every row."""
    call_count: int
    """Calls in the trace."""

    def __call__(
        self, columns: Mapping[str, NDArray[np.int64]], bounds: Sequence[int]
    ) -> tuple[list[WalkOutput], set[int]]:
        """Outputs of each walk `i` for its rows, `bounds[i]` to `bounds[i + 1]`, and the walks without
        outputs.

        A walk has no outputs where one of its branches would have another outcome than recorded. Equal
        outputs of neighbouring walks are given once.
        """
        with np.errstate(all="ignore"):
            outputs, branches, masks = self.function(bounds, *(columns[name] for name in self.columns))
        taken = (tuple(map(bool, outcomes)) for outcomes in branches)
        invalid = {walk for walk, own in enumerate(taken) if own != self.assumed_branches[walk]}
        for mask, where in zip(masks, self.empty_masks, strict=True):
            if mask.any():
                invalid.update(where.find_set_walks(mask, bounds))
        found: list[WalkOutput] = []
        for (label, _, first, last), values in zip(self.output_parts, outputs, strict=True):
            begin, end = bounds[first], bounds[last + 1]
            if begin == end:
                continue
            if not invalid:
                found.append(WalkOutput(label, slice(begin, end), values))
                continue
            for low, high in _iterate_runs(first, last, invalid):
                rows = slice(bounds[low], bounds[high + 1])
                if rows.start < rows.stop:
                    own = _slice_values(values, rows.start - begin, rows.stop - begin)
                    found.append(WalkOutput(label, rows, own))
        return found, invalid


def _iterate_runs(first: int, last: int, invalid_walks: Container[int]) -> Iterator[tuple[int, int]]:
    """Runs of walks from first to last that are not invalid."""
    low = first
    for walk in range(first, last + 1):
        if walk in invalid_walks:
            if low < walk:
                yield low, walk - 1
            low = walk + 1
    if low <= last:
        yield low, last


def _slice_values(values: Iterable[Any], low: int, high: int) -> tuple[Any, ...]:
    return tuple(v[..., low:high] if np.ndim(v) else v for v in values)
