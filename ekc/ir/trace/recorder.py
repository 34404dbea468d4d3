"""Records walks over vectors as traces, so that a population is analysed without the walk's Python code.

For all populations of a schedule a walk makes the same array operations; only the numbers differ.
`record_walks` runs it once on arrays that record the calls made on them. The result is a `WalkTrace`:
straight-line NumPy calls, each distinct one once, without calls that are unused or folded. Where the walk
branches on values ("does any member..."), the trace is valid for columns with the same outcomes, and reports
when they differ.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ekc.errors import EkcError
from ekc.ir.trace.compiler import (
    EmptyMask,
    Ref,
    TraceCompiler,
    TracedCall,
    TraceOutput,
    fold_call,
    list_leaves,
    list_refs,
    merge_outputs,
    order_operands,
    promote_integers,
    to_python_number,
)

RECORDING_ROWS = 97
"""Rows of the columns while recording; a size that no other array of a walk has."""
_LOST_VECTOR_MESSAGE = (
    "a vector left the trace: use np.asanyarray, not np.asarray and the like, and np.where for new vectors"
)


class _TracedArray(np.ndarray):
    """A vector that records the calls made on it."""

    recorder: _Recorder | None = None
    ref: Ref | None = None

    def __array_finalize__(self, source: Any) -> None:
        # np.asanyarray(x, dtype) makes no call that is recorded: the same numbers in another type.
        if isinstance(source, _TracedArray) and source.recorder is not None and self.shape == source.shape:
            self.recorder, self.ref = source.recorder, source.recorder.record_cast(source, self.dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        options.pop("out", None)
        recorder = next((x.recorder for x in inputs if isinstance(x, _TracedArray)), None)
        recorder = recorder or _find_recorder(inputs)
        if method == "__call__" and not options:
            return recorder.record_simple_call(ufunc, inputs)
        return recorder.record_call(getattr(ufunc, method), inputs, options)

    def __array_function__(self, function: Any, _types: Any, args: Any, options: Any) -> Any:
        if function is np.ndim:
            return args[0].view(np.ndarray).ndim
        if function is np.where and not options:
            return _find_recorder(args).record_simple_call(function, args)
        return _find_recorder((args, options)).record_call(function, args, options)

    def __getitem__(self, key: Any) -> Any:
        return _find_recorder(self).record_call(operator.getitem, (self, key), {})

    def __len__(self) -> int:
        raise EkcError(_LOST_VECTOR_MESSAGE)

    def __bool__(self) -> bool:
        return _find_recorder(self).assume_branch(self)


class _WalkSection(NamedTuple):
    """One sequence of outputs that a walk yields, with the assumptions made until then."""

    outputs: list[tuple[Any, tuple[Any, ...]]]
    assumed_branches: dict[Ref, bool]
    """Outcomes of the branches taken so far."""
    empty_masks: tuple[Ref, ...]
    """Masks that the walk assumed to be False in every row."""


class _Recorder:
    """Recorded calls in order, each distinct one once."""

    def __init__(self) -> None:
        self.calls: list[TracedCall] = []
        self.call_numbers: dict[Any, int] = {}
        self.assumed_branches: dict[Ref, bool] = {}
        self.empty_masks: dict[Ref, None] = {}
        """Masks, in order, that the walk assumed to be False in every row."""
        self.results: dict[Ref, Any] = {}
        self.simple_results: dict[Any, Any] = {}
        """Results of calls on vectors and numbers; six of seven such calls of walks are repetitions."""
        self.per_walk_refs: set[Ref] = set()

    def add_column(self, value: NDArray[np.int64]) -> _TracedArray:
        """Add an input column."""
        self.calls.append(TracedCall(None, (), {}))
        return self._wrap_result(value, Ref(len(self.calls) - 1))

    def record_call(self, function: Any, args: Any, options: dict[str, Any]) -> Any:
        """Make a call and record it."""
        operands = [_map_leaves(given, self.to_operand) for given in (tuple(args), options)]
        ref = self._note_call(function, *operands)
        if ref in self.results:
            return self.results[ref]
        found = function(*_map_leaves(args, _strip_tracing), **_map_leaves(options, _strip_tracing))
        if isinstance(found, (tuple, list)):
            parts = [self._note_call(operator.getitem, (ref, i), {}) for i in range(len(found))]
            self.results[ref] = type(found)(map(self._wrap_result, found, parts))
        else:
            self.results[ref] = self._wrap_result(found, ref)
        return self.results[ref]

    def record_simple_call(self, function: Any, operands: Any) -> Any:
        """Make a call on vectors and numbers, and record it unless it is folded."""
        key = (function, *[x.ref if type(x) is _TracedArray else (type(x), x) for x in operands])
        try:
            return self.simple_results[key]
        except KeyError:
            found = self.simple_results[key] = self._record_folded_call(function, operands)
            return found
        except TypeError:
            # An operand is an array that has no reference in the trace.
            return self._record_folded_call(function, operands)

    def _record_folded_call(self, function: Any, operands: Any) -> Any:
        operands = promote_integers(function, tuple(to_python_number(x) for x in operands))
        operands = order_operands(function, operands, tuple(self.to_operand(x) for x in operands))
        found = self.record_call(function, operands, {})
        folded = fold_call(function, operands, found)
        return found if folded is None else folded

    def run_walk(self, walk: Walk, columns: Mapping[str, Any]) -> Iterator[_WalkSection]:
        """The sequences that a walk yields, with its assumptions; other walks may run in between."""
        assumed: dict[Ref, bool] = {}
        empty_masks: dict[Ref, None] = {}
        self.assumed_branches, self.empty_masks = assumed, empty_masks
        for outputs in walk(columns):
            references = [
                (label, tuple(self.to_operand(_unwrap_single(v)) for v in values))
                for label, values in outputs
            ]
            yield _WalkSection(references, dict(assumed), tuple(empty_masks))
            self.assumed_branches, self.empty_masks = assumed, empty_masks

    def record_cast(self, source: _TracedArray, dtype: Any) -> Ref | None:
        """Record a conversion to another type."""
        if source.ref is None or source.dtype == dtype:
            return source.ref
        return self._note_result_rows(source.shape, self._note_call(np.asarray, (source.ref, dtype), {}))

    def assume_branch(self, value: _TracedArray) -> bool:
        """Outcome of a branch on a value, recorded as an assumption of the trace."""
        ref, outcome = self.to_operand(value), bool(_strip_tracing(value))
        mask = self.calls[ref].args[0] if self.calls[ref].function is np.any else None
        if isinstance(mask, Ref) and mask not in self.per_walk_refs and not outcome:
            self.empty_masks[mask] = None
        else:
            self.assumed_branches[ref] = outcome
        return outcome

    def to_operand(self, value: Any) -> Any:
        """A value as an operand in the trace: a reference for a traced array, else the value."""
        if isinstance(value, _TracedArray):
            if value.ref is None:
                raise EkcError(_LOST_VECTOR_MESSAGE)
            return value.ref
        if isinstance(value, np.ndarray) and RECORDING_ROWS in value.shape:
            if not (value == value.flat[0]).all():
                raise EkcError(_LOST_VECTOR_MESSAGE)
            value = value.flat[0]
        return to_python_number(value)

    def _note_call(self, function: Any, args: Any, options: dict[str, Any]) -> Ref:
        key = _make_key((function, args, tuple(sorted(options.items()))))
        if key not in self.call_numbers:
            self.call_numbers[key] = len(self.calls)
            self.calls.append(TracedCall(function, args, options))
        return Ref(self.call_numbers[key])

    def _wrap_result(self, value: Any, ref: Ref) -> _TracedArray:
        traced = np.asarray(value).view(_TracedArray)
        traced.recorder, traced.ref = self, self._note_result_rows(np.shape(value), ref)
        return traced

    def _note_result_rows(self, shape: tuple[int, ...], ref: Ref) -> Ref:
        """Record whether a result has no rows, as a reduction over all rows, or depends on one that has none.

        A call whose result has rows must work row by row: walks must not sort or sum over part of the rows.
        """
        call = self.calls[ref]
        refs = list_refs((call.args, call.options))
        if shape[-1:] != (RECORDING_ROWS,) or any(r in self.per_walk_refs for r in refs):
            self.per_walk_refs.add(ref)
        return ref


def record_as_one_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: the function is recorded as one call, whatever it does inside. Vectors are arguments, not
    parts of one."""

    @wraps(function)
    def call(*args: Any) -> Any:
        is_traced = any(type(x) is _TracedArray for x in args)
        return _find_recorder(args).record_call(function, args, {}) if is_traced else function(*args)

    return call


def has_any(mask: Any) -> bool:
    """Whether a mask is True for any member; while recording always True, so the code must handle both."""
    if isinstance(mask, (bool, np.bool_)):
        return bool(mask)
    return isinstance(mask, _TracedArray) or bool(np.any(mask))


def _find_recorder(values: Any) -> _Recorder:
    for one in list_leaves(values):
        if isinstance(one, _TracedArray) and one.recorder is not None:
            return one.recorder
    raise EkcError(_LOST_VECTOR_MESSAGE)


def _unwrap_single(value: Any) -> Any:
    """The number in a vector of one element, as it is the same for all rows; other values unchanged."""
    return value[0] if type(value) is np.ndarray and value.shape == (1,) else value


def _strip_tracing(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, _TracedArray) else value


def _map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    kind = type(value)
    if kind is tuple:
        return tuple([_map_leaves(one, change) for one in value])
    if kind is list:
        return [_map_leaves(one, change) for one in value]
    if kind is dict:
        return {key: _map_leaves(one, change) for key, one in value.items()}
    return change(value)


def _make_key(value: Any) -> Any:
    """A hashable key, equal for equal values of equal type."""
    kind = type(value)
    if kind is tuple or kind is list:
        return (kind, *map(_make_key, value))
    if kind is np.ndarray:
        return (value.dtype.str, value.shape, value.tobytes())
    return (kind, value)


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
                    part = slice(rows.start - begin, rows.stop - begin)
                    own = tuple(v[..., part] if np.ndim(v) else v for v in values)
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


Walk = Callable[[Mapping[str, Any]], Iterator[Sequence[tuple[Any, tuple[Any, ...]]]]]
"""A generator over columns; it yields sequences of (label, values)."""


def record_walks(walks: Sequence[Walk], columns: Mapping[str, NDArray[np.int64]]) -> Iterator[WalkTrace]:
    """Record walks on columns of `RECORDING_ROWS` rows; yields a trace for each sequence that they yield.

    All walks yield equally many sequences. Raises `EkcError` where a vector leaves the trace.
    """
    recorder = _Recorder()
    traced = {name: recorder.add_column(column) for name, column in columns.items()}
    sections_by_yield = zip(*(recorder.run_walk(walk, traced) for walk in walks), strict=True)
    while True:
        with np.errstate(all="ignore"):
            sections = next(sections_by_yield, None)
        if sections is None:
            return
        yield _build_trace(recorder, tuple(columns), sections)


def _build_trace(
    recorder: _Recorder, columns: tuple[str, ...], sections: Sequence[_WalkSection]
) -> WalkTrace:
    outputs = merge_outputs([s.outputs for s in sections], recorder.per_walk_refs)
    compiler = TraceCompiler(recorder.calls, len(columns), recorder.per_walk_refs)
    branches, masks = [tuple(s.assumed_branches) for s in sections], [s.empty_masks for s in sections]
    function, length, empty_masks = compiler.compile_function(outputs, branches, masks)
    assumed = tuple(tuple(s.assumed_branches.values()) for s in sections)
    return WalkTrace(columns, function, tuple(outputs), assumed, empty_masks, length)
