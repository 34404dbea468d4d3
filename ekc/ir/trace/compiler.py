"""From recorded calls to one Python function: what several walks share is done once, over the rows of all.

Rows are sorted by walk. A call that a few neighbouring walks need runs once over their rows, and each reads
its own part of the result; a call that says something of all rows at once (a sum, an "any") runs for each
walk alone.

Calls that a tape need not make: what they give is known from an operand that is the same for all rows.

Walks multiply by the 1 and add to the 0 that their products and sums begin with, everywhere. Without that,
more of what different walks do is the same, too.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

Span = tuple[int, int]
"""Walks from the first to the last, both inside."""
_MAX_WALK_GAP = 4
"""Walks this near to each other share a call, though one between them may not need it."""


class Ref(int):
    """The number of a call on the tape, for its result."""


@dataclass(frozen=True)
class TracedCall:
    """One call: inputs have no function."""

    function: Any
    args: Any
    options: dict[str, Any]


def list_leaves(value: Any) -> list[Any]:
    """What stands in nested tuples, lists and dictionaries."""
    found: list[Any] = []
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left.extend(reversed(one.values()))
        elif isinstance(one, (tuple, list)):
            left.extend(reversed(one))
        else:
            found.append(one)
    return found


def list_refs(values: Any) -> list[Ref]:
    """The results among some values."""
    return [x for x in list_leaves(values) if isinstance(x, Ref)]


class TraceOutput(NamedTuple):
    """Values that the walks from `first` to `last` give alike, under a label."""

    label: Any
    values: tuple[Any, ...]
    first: int
    last: int


def merge_outputs(
    walk_outputs: Sequence[Sequence[tuple[Any, tuple[Any, ...]]]], per_walk_refs: Container[Ref]
) -> list[TraceOutput]:
    """What walks give, labels and values, told once for neighbours that give the same, but for results that
    each must have `alone`; in order of the first of them. What a walk gives twice is told twice."""
    found: list[TraceOutput] = []
    running: dict[Any, int] = {}
    for walk, own in enumerate(walk_outputs):
        before, running = running, {}
        for label, values in own:
            times = 0
            while (key := (label, times, *((type(v), v) for v in values))) in running:
                times += 1
            shared = not any(ref in per_walk_refs for ref in list_refs(values))
            running[key] = number = before.get(key, len(found)) if shared else len(found)
            if number == len(found):
                found.append(TraceOutput(label, values, walk, walk))
            else:
                found[number] = found[number]._replace(last=walk)
    return found


class EmptyMask(NamedTuple):
    """A mask over the rows of some walks from `first` on that none of the rows of `walks` may set."""

    first_walk: int
    walks: tuple[int, ...]

    def find_set_walks(self, mask: Any, bounds: Sequence[int]) -> Iterator[int]:
        """The walks that have rows which set it."""
        before = bounds[self.first_walk]
        for walk in self.walks:
            if mask[bounds[walk] - before : bounds[walk + 1] - before].any():
                yield walk


@dataclass(frozen=True)
class TraceStatement:
    """One statement: `target = text`."""

    target: str
    text: str
    reads: tuple[str, ...]


@dataclass
class TraceCompiler:
    """Writes one function for the results that each walk asks for."""

    calls: Sequence[TracedCall]
    input_count: int
    """The first so many calls are columns of input."""
    per_walk_refs: Container[Ref]
    """Results that every walk must have of its own rows."""
    constants: dict[str, Any] = field(default_factory=dict)
    statements: list[TraceStatement] = field(default_factory=list)
    spans: dict[Ref, list[Span]] = field(default_factory=dict)
    """For which walks together each call runs."""
    slice_names: set[str] = field(default_factory=set)
    slice_texts: dict[str, str] = field(default_factory=dict)

    def compile_function(
        self,
        output_parts: Sequence[TraceOutput],
        answers: Sequence[Sequence[Ref]],
        masks: Sequence[Sequence[Ref]],
    ) -> tuple[Callable[..., Any], int, tuple[EmptyMask, ...]]:
        """A function of the bounds of the walks and of the columns, its number of calls, and what its masks
        are of.

        It gives the values of each part; the `answers` of each walk; and the `masks` of the walks, each once
        for walks that stand together.
        """
        self._assign_spans(output_parts, answers, masks)
        for number in range(self.input_count, len(self.calls)):
            for span in self.spans.get(Ref(number), ()):
                self._emit_call(Ref(number), span)
        length = sum(line.target not in self.slice_names for line in self.statements)
        kept: list[str] = []
        outputs = [self._format_value(p.values, (p.first, p.last), kept) for p in output_parts]
        told = [self._format_value(tuple(own), (walk, walk), kept) for walk, own in enumerate(answers)]
        held, nowhere = self._list_masks(masks)
        kept += held
        head = f"def tape(bounds, {', '.join(f'v{i}_0' for i in range(self.input_count))}):"
        prelude = (f"{name} = {text}" for name, text in self.slice_texts.items())
        result = f"return {_format_tuple(outputs)}, {_format_tuple(told)}, {_format_tuple(held)}"
        body = [*prelude, *_format_statements(self.statements, kept), result]
        exec(compile("\n    ".join([head, *body]), "<tape>", "exec"), self.constants)
        return self.constants["tape"], length, nowhere

    def _list_masks(self, masks: Sequence[Sequence[Ref]]) -> tuple[list[str], tuple[EmptyMask, ...]]:
        """The variables of masks, and which walks they are of."""
        held: dict[str, EmptyMask] = {}
        for ref in dict.fromkeys(ref for own in masks for ref in own):
            for low, high in self.spans[ref]:
                walks = tuple(walk for walk in range(low, high + 1) if ref in masks[walk])
                if walks:
                    held[f"v{ref}_{low}"] = EmptyMask(low, walks)
        return list(held), tuple(held.values())

    def _assign_spans(
        self,
        output_parts: Sequence[TraceOutput],
        answers: Sequence[Sequence[Ref]],
        masks: Sequence[Sequence[Ref]],
    ) -> None:
        walks: dict[Ref, set[int]] = {}
        for part in output_parts:
            for ref in list_refs(part.values):
                walks.setdefault(ref, set()).update(range(part.first, part.last + 1))
        for walk, own in enumerate(zip(answers, masks, strict=True)):
            for ref in list_refs(own):
                walks.setdefault(ref, set()).add(walk)
        for number in range(len(self.calls) - 1, self.input_count - 1, -1):
            for ref in list_refs((self.calls[number].args, self.calls[number].options)):
                if Ref(number) in walks:
                    walks.setdefault(ref, set()).update(walks[Ref(number)])
        everyone = [(0, len(answers) - 1)]
        for ref, found in walks.items():
            self.spans[ref] = (
                everyone if ref < self.input_count else _merge_spans(found, ref in self.per_walk_refs)
            )

    def _emit_call(self, ref: Ref, span: Span) -> None:
        call = self.calls[ref]
        reads: list[str] = []
        args = map(_to_array, call.args) if isinstance(call.function, np.ufunc) else call.args
        parts = [self._format_value(a, span, reads) for a in args]
        parts += [f"{k}={self._format_value(v, span, reads)}" for k, v in call.options.items()]
        self.statements.append(
            TraceStatement(
                f"v{ref}_{span[0]}", f"{self._name_constant(call.function)}({', '.join(parts)})", tuple(reads)
            )
        )

    def _format_value(self, value: Any, span: Span, reads: list[str]) -> str:
        if isinstance(value, Ref):
            reads.append(self._format_variable(value, span))
            return reads[-1]
        if isinstance(value, (tuple, list)):
            inside = _format_tuple(self._format_value(one, span, reads) for one in value)
            return inside if isinstance(value, tuple) else f"[*{inside}]"
        return repr(value) if type(value) in (bool, int) else self._name_constant(value)

    def _format_variable(self, ref: Ref, span: Span) -> str:
        """The variable that holds a result for the rows of a span: all of it, or a part cut out of it."""
        low, high = next(s for s in self.spans[ref] if s[0] <= span[0] <= s[1])
        whole = f"v{ref}_{low}"
        if (low, high) == span:
            return whole
        part = f"{whole}_{span[0]}_{span[1]}"
        if part not in self.slice_names:
            self.slice_names.add(part)
            cut = self._define_slice(
                f"z{low}_{span[0]}_{span[1]}",
                f"slice(bounds[{span[0]}] - bounds[{low}], bounds[{span[1] + 1}] - bounds[{low}])",
            )
            self.statements.append(TraceStatement(part, f"{whole}[..., {cut}]", (whole,)))
        return part

    def _define_slice(self, name: str, text: str) -> str:
        self.slice_texts[name] = text
        return name

    def _name_constant(self, value: Any) -> str:
        """A name for anything that has no text of its own."""
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name


def _to_array(value: Any) -> Any:
    """An array for a number: NumPy takes longer to look at a Python number than to work on a short vector."""
    return np.array(value) if type(value) in (bool, int, float) else value


def _format_tuple(texts: Iterable[str]) -> str:
    return f"({''.join(f'{text}, ' for text in texts)})"


def _merge_spans(walks: Iterable[int], is_per_walk: bool) -> list[Span]:
    """Walks that stand near to each other, together."""
    found: list[Span] = []
    for walk in sorted(walks):
        if found and not is_per_walk and walk - found[-1][1] <= _MAX_WALK_GAP:
            found[-1] = (found[-1][0], walk)
        else:
            found.append((walk, walk))
    return found


def _format_statements(lines: Sequence[TraceStatement], kept: Iterable[str]) -> list[str]:
    """The statements, each variable dropped after its last use."""
    alive, out = set(kept), []
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
"""The operand that changes nothing (but the sign of a zero), and for which kinds of result."""
_ABSORBING_OPERANDS = {
    np.multiply: (0, 0, "i"),
    np.bitwise_and: (0, 0, "ib"),
    np.bitwise_or: (1, 1, "b"),
    np.remainder: (1, 0, "i"),
}
"""The operand that leaves nothing of the other, what is left instead, and for which kinds of result."""
_NON_COMMUTATIVE = {np.subtract, np.divide, np.floor_divide, np.remainder}
"""Of these, what must have that operand on the right."""
_COMMUTATIVE = {np.add, np.multiply, np.minimum, np.maximum, np.equal, np.not_equal}
_COMMUTATIVE |= {np.bitwise_and, np.bitwise_or}
_IDEMPOTENT = {np.minimum, np.maximum, np.bitwise_and, np.bitwise_or}
"""What gives an operand that stands on both sides."""

_PLAIN_DTYPES = (np.bool_, np.int64, np.float64)
"""Types that a Python number becomes again: not the int8 of a remainder of booleans."""
_MAX_EXACT_INTEGER = 1 << 53
"""Integers up to here are floats, too."""


def to_python_number(value: Any) -> Any:
    """A Python number for a plain NumPy one; anything else as it is."""
    plain = isinstance(value, np.generic) or (type(value) is np.ndarray and not value.ndim)
    return value.item() if plain and value.dtype in _PLAIN_DTYPES else value


def promote_integers(function: Any, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Operands with integers beside vectors of floats as floats, which NumPy would make of them each time."""
    floats = any(isinstance(x, np.ndarray) and x.dtype == np.float64 for x in operands)
    if not floats or not isinstance(function, np.ufunc):
        return operands
    return tuple(float(x) if type(x) is int and abs(x) < _MAX_EXACT_INTEGER else x for x in operands)


def order_operands(function: Any, operands: tuple[Any, ...], refs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Operands that may change places in one order, whatever the walk's: numbers last."""
    if function not in _COMMUTATIVE or _is_number(operands[1]):
        return operands
    return operands[::-1] if _is_number(operands[0]) or refs[1] < refs[0] else operands


def fold_call(function: Any, operands: tuple[Any, ...], sample_result: Any) -> Any:
    """What a call gives of any rows: one of its operands, or a number; None where that depends on the rows.

    `found`: what it gave of some, for its type and shape.
    """
    if function is np.where and len(operands) == 3:
        return (
            _match_operand(operands[1], sample_result)
            if operands[0] is True or operands[1] is operands[2]
            else None
        )
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
            swallowing, left, kinds = _ABSORBING_OPERANDS.get(function, (None, None, ""))
            if (
                constant == swallowing
                and sample_result.dtype.kind in kinds
                and sample_result.dtype in _PLAIN_DTYPES
            ):
                return sample_result.dtype.type(left).item()
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


def _match_operand(operand: Any, sample_result: Any) -> Any:
    """An operand, if the call leaves it as it is."""
    same = isinstance(operand, np.ndarray) and (operand.dtype, operand.shape) == (
        sample_result.dtype,
        sample_result.shape,
    )
    return operand if same else None
