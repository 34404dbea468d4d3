"""Compiles recorded calls to one Python function, in which walks share the calls that they have in common.

Rows are sorted by walk. A call that neighbouring walks need runs once over the rows of all of them, and each
walk reads its part of the result. A call that reduces over rows (a sum, an "any") runs for each walk
separately.

Constant folding removes calls whose result follows from an operand that is the same for all rows. Walks often
multiply by the 1, or add to the 0, with which products and sums begin; without these calls walks also have
more calls in common.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

Span = tuple[int, int]
"""First and last of some consecutive walks."""
_MAX_WALK_GAP = 4
"""Largest distance of two walks that share a call, though walks between them may not need it."""


class Ref(int):
    """Number of a call in the trace, as a reference to its result."""


@dataclass(frozen=True)
class TracedCall:
    """One recorded call; an input column is a call without a function."""

    function: Any
    args: Any
    options: dict[str, Any]


def list_leaves(value: Any) -> list[Any]:
    """The values in nested tuples, lists and dictionaries, in order."""
    found: list[Any] = []
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, dict):
            stack.extend(reversed(one.values()))
        elif isinstance(one, (tuple, list)):
            stack.extend(reversed(one))
        else:
            found.append(one)
    return found


def list_refs(values: Any) -> list[Ref]:
    """The references to results among some values."""
    return [x for x in list_leaves(values) if isinstance(x, Ref)]


class TraceOutput(NamedTuple):
    """Values that all walks from `first` to `last` give under a label."""

    label: Any
    values: tuple[Any, ...]
    first: int
    last: int


def merge_outputs(
    walk_outputs: Sequence[Sequence[tuple[Any, tuple[Any, ...]]]], per_walk_refs: Container[Ref]
) -> list[TraceOutput]:
    """Labels and values of the walks. Neighbouring walks with the same output share one entry, unless a value
    must be computed for each walk (`per_walk_refs`).

    Entries are in order of their first walks. An output that a walk gives twice has two entries.
    """
    found: list[TraceOutput] = []
    running: dict[Any, int] = {}
    for walk, own in enumerate(walk_outputs):
        before, running = running, {}
        for label, values in own:
            repetition = 0
            while (key := (label, repetition, *((type(v), v) for v in values))) in running:
                repetition += 1
            shared = not any(ref in per_walk_refs for ref in list_refs(values))
            running[key] = number = before.get(key, len(found)) if shared else len(found)
            if number == len(found):
                found.append(TraceOutput(label, values, walk, walk))
            else:
                found[number] = found[number]._replace(last=walk)
    return found


class EmptyMask(NamedTuple):
    """A mask over the rows of walks from `first_walk` on; it must be False in all rows of `walks`."""

    first_walk: int
    walks: tuple[int, ...]

    def find_set_walks(self, mask: Any, bounds: Sequence[int]) -> Iterator[int]:
        """The walks with a row in which the mask is True."""
        before = bounds[self.first_walk]
        for walk in self.walks:
            if mask[bounds[walk] - before : bounds[walk + 1] - before].any():
                yield walk


@dataclass(frozen=True)
class TraceStatement:
    """One statement of the function: `target = text`; `reads` are the variables in the text."""

    target: str
    text: str
    reads: tuple[str, ...]


@dataclass
class TraceCompiler:
    """Compiles one function that computes the results of all walks."""

    calls: Sequence[TracedCall]
    input_count: int
    """Number of input columns; these are the first calls."""
    per_walk_refs: Container[Ref]
    """Results that are computed for each walk separately."""
    constants: dict[str, Any] = field(default_factory=dict)
    statements: list[TraceStatement] = field(default_factory=list)
    spans: dict[Ref, list[Span]] = field(default_factory=dict)
    """Spans of walks for which each call runs once."""
    slice_names: set[str] = field(default_factory=set)
    slice_texts: dict[str, str] = field(default_factory=dict)

    def compile_function(
        self,
        output_parts: Sequence[TraceOutput],
        branches: Sequence[Sequence[Ref]],
        masks: Sequence[Sequence[Ref]],
    ) -> tuple[Callable[..., Any], int, tuple[EmptyMask, ...]]:
        """A function of the bounds of the walks and of the columns, its number of calls, and the walks of its
        masks.

        The function returns the values of each part, the outcomes of the branches of each walk, and the
        masks, one for each span of walks.
        """
        self._assign_spans(output_parts, branches, masks)
        for number in range(self.input_count, len(self.calls)):
            for span in self.spans.get(Ref(number), ()):
                self._emit_call(Ref(number), span)
        length = sum(line.target not in self.slice_names for line in self.statements)
        returned: list[str] = []
        outputs = [self._format_value(p.values, (p.first, p.last), returned) for p in output_parts]
        walks = enumerate(branches)
        outcomes = [self._format_value(tuple(own), (walk, walk), returned) for walk, own in walks]
        mask_names, empty_masks = self._list_masks(masks)
        returned += mask_names
        head = f"def trace(bounds, {', '.join(f'v{i}_0' for i in range(self.input_count))}):"
        prelude = (f"{name} = {text}" for name, text in self.slice_texts.items())
        result = f"return {_format_tuple(outputs)}, {_format_tuple(outcomes)}, {_format_tuple(mask_names)}"
        body = [*prelude, *_format_statements(self.statements, returned), result]
        exec(compile("\n    ".join([head, *body]), "<trace>", "exec"), self.constants)
        return self.constants["trace"], length, empty_masks

    def _list_masks(self, masks: Sequence[Sequence[Ref]]) -> tuple[list[str], tuple[EmptyMask, ...]]:
        """Variables of the masks, and the walks of each."""
        mask_walks: dict[str, EmptyMask] = {}
        for ref in dict.fromkeys(ref for own in masks for ref in own):
            for low, high in self.spans[ref]:
                walks = tuple(walk for walk in range(low, high + 1) if ref in masks[walk])
                if walks:
                    mask_walks[f"v{ref}_{low}"] = EmptyMask(low, walks)
        return list(mask_walks), tuple(mask_walks.values())

    def _assign_spans(
        self,
        output_parts: Sequence[TraceOutput],
        branches: Sequence[Sequence[Ref]],
        masks: Sequence[Sequence[Ref]],
    ) -> None:
        walks: dict[Ref, set[int]] = {}
        for part in output_parts:
            for ref in list_refs(part.values):
                walks.setdefault(ref, set()).update(range(part.first, part.last + 1))
        for walk, own in enumerate(zip(branches, masks, strict=True)):
            for ref in list_refs(own):
                walks.setdefault(ref, set()).add(walk)
        for number in range(len(self.calls) - 1, self.input_count - 1, -1):
            for ref in list_refs((self.calls[number].args, self.calls[number].options)):
                if Ref(number) in walks:
                    walks.setdefault(ref, set()).update(walks[Ref(number)])
        all_walks = [(0, len(branches) - 1)]
        for ref, found in walks.items():
            self.spans[ref] = (
                all_walks if ref < self.input_count else _merge_spans(found, ref in self.per_walk_refs)
            )

    def _emit_call(self, ref: Ref, span: Span) -> None:
        call = self.calls[ref]
        reads: list[str] = []
        args = map(_to_array, call.args) if isinstance(call.function, np.ufunc) else call.args
        parts = [self._format_value(a, span, reads) for a in args]
        parts += [f"{k}={self._format_value(v, span, reads)}" for k, v in call.options.items()]
        text = f"{self._name_constant(call.function)}({', '.join(parts)})"
        self.statements.append(TraceStatement(f"v{ref}_{span[0]}", text, tuple(reads)))

    def _format_value(self, value: Any, span: Span, reads: list[str]) -> str:
        if isinstance(value, Ref):
            reads.append(self._format_variable(value, span))
            return reads[-1]
        if isinstance(value, (tuple, list)):
            inside = _format_tuple(self._format_value(one, span, reads) for one in value)
            return inside if isinstance(value, tuple) else f"[*{inside}]"
        return repr(value) if type(value) in (bool, int) else self._name_constant(value)

    def _format_variable(self, ref: Ref, span: Span) -> str:
        """The variable of a result for the rows of a span: the whole result, or a slice of it."""
        low, high = next(s for s in self.spans[ref] if s[0] <= span[0] <= s[1])
        variable = f"v{ref}_{low}"
        if (low, high) == span:
            return variable
        part = f"{variable}_{span[0]}_{span[1]}"
        if part not in self.slice_names:
            self.slice_names.add(part)
            cut, end = f"z{low}_{span[0]}_{span[1]}", f"bounds[{span[1] + 1}] - bounds[{low}]"
            self.slice_texts[cut] = f"slice(bounds[{span[0]}] - bounds[{low}], {end})"
            self.statements.append(TraceStatement(part, f"{variable}[..., {cut}]", (variable,)))
        return part

    def _name_constant(self, value: Any) -> str:
        """A name for a constant that is not written as text."""
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name


def _to_array(value: Any) -> Any:
    """A number as an array: converting a Python number costs NumPy more than the work on a short vector."""
    return np.array(value) if type(value) in (bool, int, float) else value


def _format_tuple(texts: Iterable[str]) -> str:
    return f"({''.join(f'{text}, ' for text in texts)})"


def _merge_spans(walks: Iterable[int], is_per_walk: bool) -> list[Span]:
    """Spans of walks: walks at most `_MAX_WALK_GAP` from each other share a span, unless `is_per_walk`."""
    found: list[Span] = []
    for walk in sorted(walks):
        if found and not is_per_walk and walk - found[-1][1] <= _MAX_WALK_GAP:
            found[-1] = (found[-1][0], walk)
        else:
            found.append((walk, walk))
    return found


def _format_statements(lines: Sequence[TraceStatement], returned: Iterable[str]) -> list[str]:
    """Text of the statements, with a `del` of each variable after its last use."""
    alive, out = set(returned), []
    for line in reversed(lines):
        dropped = sorted({name for name in line.reads if name not in alive})
        alive.update(dropped)
        if dropped:
            out.append(f"del {', '.join(dropped)}")
        out.append(f"{line.target} = {line.text}")
    return out[::-1]


_NEUTRAL_OPERANDS = {
    np.add: (0, "fi"),
    np.subtract: (0, "fi"),
    np.multiply: (1, "fi"),
    np.divide: (1, "f"),
    np.floor_divide: (1, "i"),
    np.bitwise_or: (0, "ib"),
    np.bitwise_and: (1, "b"),
}
"""(neutral operand, dtype kinds of the result) by function; the sign of a zero may change."""
_ABSORBING_OPERANDS = {
    np.multiply: (0, 0, "i"),
    np.bitwise_and: (0, 0, "ib"),
    np.bitwise_or: (1, 1, "b"),
    np.remainder: (1, 0, "i"),
}
"""(absorbing operand, result, dtype kinds of the result) by function."""
_NON_COMMUTATIVE = {np.subtract, np.divide, np.floor_divide, np.remainder}
"""Functions whose neutral or absorbing operand must be on the right."""
_COMMUTATIVE = {np.add, np.multiply, np.minimum, np.maximum, np.equal, np.not_equal}
_COMMUTATIVE |= {np.bitwise_and, np.bitwise_or}
_IDEMPOTENT = {np.minimum, np.maximum, np.bitwise_and, np.bitwise_or}
"""Functions that return the operand when both operands are the same."""

_PLAIN_DTYPES = (np.bool_, np.int64, np.float64)
"""Types that NumPy gives a Python number again; not the int8 of a remainder of booleans."""
_MAX_EXACT_INTEGER = 1 << 53
"""Integers below this are exact in float64."""


def to_python_number(value: Any) -> Any:
    """A Python number for a NumPy number of a plain type; other values are returned unchanged."""
    plain = isinstance(value, np.generic) or (type(value) is np.ndarray and not value.ndim)
    return value.item() if plain and value.dtype in _PLAIN_DTYPES else value


def promote_integers(function: Any, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Operands, integers as floats beside a float vector: NumPy would convert them in each call."""
    floats = any(isinstance(x, np.ndarray) and x.dtype == np.float64 for x in operands)
    if not floats or not isinstance(function, np.ufunc):
        return operands
    return tuple(float(x) if type(x) is int and abs(x) < _MAX_EXACT_INTEGER else x for x in operands)


def order_operands(function: Any, operands: tuple[Any, ...], refs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Operands of a commutative function in a canonical order, numbers last; other operands unchanged."""
    if function not in _COMMUTATIVE or _is_number(operands[1]):
        return operands
    return operands[::-1] if _is_number(operands[0]) or refs[1] < refs[0] else operands


def fold_call(function: Any, operands: tuple[Any, ...], sample_result: Any) -> Any:
    """Result of a call for any rows, if it is one of the operands or a number; None where it depends on the
    rows.

    `sample_result` is the result for some rows, for its type and shape.
    """
    if function is np.where and len(operands) == 3:
        is_first = operands[0] is True or operands[1] is operands[2]
        return _match_operand(operands[1], sample_result) if is_first else None
    if len(operands) != 2:
        return None
    a, b = operands
    if a is b and function in _IDEMPOTENT:
        return a
    for constant, other in ((b, a),) if function in _NON_COMMUTATIVE else ((b, a), (a, b)):
        if _is_number(constant):
            neutral, kinds = _NEUTRAL_OPERANDS.get(function, (None, ""))
            if constant == neutral and sample_result.dtype.kind in kinds:
                return _match_operand(other, sample_result)
            absorbing, absorbed, kinds = _ABSORBING_OPERANDS.get(function, (None, None, ""))
            is_plain = sample_result.dtype.kind in kinds and sample_result.dtype in _PLAIN_DTYPES
            if constant == absorbing and is_plain:
                return sample_result.dtype.type(absorbed).item()
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


def _match_operand(operand: Any, sample_result: Any) -> Any:
    """The operand, if type and shape of the result are its own."""
    kind = sample_result.dtype, sample_result.shape
    is_same = isinstance(operand, np.ndarray) and (operand.dtype, operand.shape) == kind
    return operand if is_same else None
