"""From recorded calls to one Python function: what several walks share is done once, over the rows of all.

Rows are sorted by walk. A call that a few neighbouring walks need runs once over their rows, and each reads
its own part of the result; a call that says something of all rows at once (a sum, an "any") runs for each
walk alone.
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
