"""A recorded tape, played over the columns of a population."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ekc.ir.trace.compiler import EmptyMask, TraceOutput


class WalkOutput(NamedTuple):
    """Values that a walk gives under a label, for some rows; a number is the same for all of them."""

    label: Any
    rows: slice
    values: tuple[Any, ...]


@dataclass(frozen=True)
class WalkTrace:
    """Recorded walks: columns in, what the walks give out."""

    columns: tuple[str, ...]
    function: Callable[..., tuple[tuple[Any, ...], ...]]
    """Values of every part, answers of every walk, and masks."""
    output_parts: tuple[TraceOutput, ...]
    assumed_branches: tuple[tuple[bool, ...], ...]
    """How the branches of each walk went."""
    empty_masks: tuple[EmptyMask, ...]
    """Masks, as the function gives them, that no row may set."""
    call_count: int
    """Calls on the tape."""

    def __call__(
        self, columns: Mapping[str, NDArray[np.int64]], bounds: Sequence[int]
    ) -> tuple[list[WalkOutput], set[int]]:
        """What each walk gives for its own rows: those from `bounds[i]` to `bounds[i + 1]` of the columns.

        And the walks of which nothing is given, as one of their branches would go another way. What walks
        that stand together give alike is given once.
        """
        with np.errstate(all="ignore"):
            outputs, answers, masks = self.function(bounds, *(columns[name] for name in self.columns))
        astray = {
            walk for walk, own in enumerate(answers) if tuple(map(bool, own)) != self.assumed_branches[walk]
        }
        for mask, where in zip(masks, self.empty_masks, strict=True):
            if mask.any():
                astray.update(where.find_set_walks(mask, bounds))
        found: list[WalkOutput] = []
        for (label, _, first, last), values in zip(self.output_parts, outputs, strict=True):
            begin, end = bounds[first], bounds[last + 1]
            if begin == end:
                continue
            if not astray:
                found.append(WalkOutput(label, slice(begin, end), values))
                continue
            for low, high in _iterate_runs(first, last, astray):
                rows = slice(bounds[low], bounds[high + 1])
                if rows.start < rows.stop:
                    found.append(
                        WalkOutput(label, rows, _slice_values(values, rows.start - begin, rows.stop - begin))
                    )
        return found, astray


def _iterate_runs(first: int, last: int, invalid_walks: Container[int]) -> Iterator[tuple[int, int]]:
    """The walks from first to last, without those astray."""
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
