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
_GAP = 4
"""Walks this near to each other share a call, though one between them may not need it."""


class Ref(int):
    """The number of a call on the tape, for its result."""


@dataclass(frozen=True)
class Call:
    """One call: inputs have no function."""

    function: Any
    args: Any
    options: dict[str, Any]


def leaves(value: Any) -> list[Any]:
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


def refs(values: Any) -> list[Ref]:
    """The results among some values."""
    return [x for x in leaves(values) if isinstance(x, Ref)]


class Part(NamedTuple):
    """Values that the walks from `first` to `last` give alike, under a label."""

    label: Any
    values: tuple[Any, ...]
    first: int
    last: int


def parts(given: Sequence[Sequence[tuple[Any, tuple[Any, ...]]]], alone: Container[Ref]) -> list[Part]:
    """What walks give, labels and values, told once for neighbours that give the same, but for results that
    each must have `alone`; in order of the first of them. What a walk gives twice is told twice."""
    found: list[Part] = []
    running: dict[Any, int] = {}
    for walk, own in enumerate(given):
        before, running = running, {}
        for label, values in own:
            times = 0
            while (key := (label, times, *((type(v), v) for v in values))) in running:
                times += 1
            shared = not any(ref in alone for ref in refs(values))
            running[key] = number = before.get(key, len(found)) if shared else len(found)
            if number == len(found):
                found.append(Part(label, values, walk, walk))
            else:
                found[number] = found[number]._replace(last=walk)
    return found


class Nowhere(NamedTuple):
    """A mask over the rows of some walks from `first` on that none of the rows of `walks` may set."""

    first: int
    walks: tuple[int, ...]

    def set_in(self, mask: Any, bounds: Sequence[int]) -> Iterator[int]:
        """The walks that have rows which set it."""
        before = bounds[self.first]
        for walk in self.walks:
            if mask[bounds[walk] - before : bounds[walk + 1] - before].any():
                yield walk


@dataclass(frozen=True)
class Line:
    """One statement: `target = text`."""

    target: str
    text: str
    reads: tuple[str, ...]


@dataclass
class Writer:
    """Writes one function for the results that each walk asks for."""

    calls: Sequence[Call]
    inputs: int
    """The first so many calls are columns of input."""
    alone: Container[Ref]
    """Results that every walk must have of its own rows."""
    names: dict[str, Any] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    spans: dict[Ref, list[Span]] = field(default_factory=dict)
    """For which walks together each call runs."""
    cuts: set[str] = field(default_factory=set)
    bounds: dict[str, str] = field(default_factory=dict)

    def function(
        self, given: Sequence[Part], answers: Sequence[Sequence[Ref]], masks: Sequence[Sequence[Ref]]
    ) -> tuple[Callable[..., Any], int, tuple[Nowhere, ...]]:
        """A function of the bounds of the walks and of the columns, its number of calls, and what its masks
        are of.

        It gives the values of each part; the `answers` of each walk; and the `masks` of the walks, each once
        for walks that stand together.
        """
        self._place(given, answers, masks)
        for number in range(self.inputs, len(self.calls)):
            for span in self.spans.get(Ref(number), ()):
                self._call(Ref(number), span)
        length = sum(line.target not in self.cuts for line in self.lines)
        kept: list[str] = []
        outputs = [self._text(p.values, (p.first, p.last), kept) for p in given]
        told = [self._text(tuple(own), (walk, walk), kept) for walk, own in enumerate(answers)]
        held, nowhere = self._masks(masks)
        kept += held
        head = f"def tape(bounds, {', '.join(f'v{i}_0' for i in range(self.inputs))}):"
        prelude = (f"{name} = {text}" for name, text in self.bounds.items())
        result = f"return {_tuple(outputs)}, {_tuple(told)}, {_tuple(held)}"
        body = [*prelude, *_dropping(self.lines, kept), result]
        exec(compile("\n    ".join([head, *body]), "<tape>", "exec"), self.names)
        return self.names["tape"], length, nowhere

    def _masks(self, masks: Sequence[Sequence[Ref]]) -> tuple[list[str], tuple[Nowhere, ...]]:
        """The variables of masks, and which walks they are of."""
        held: dict[str, Nowhere] = {}
        for ref in dict.fromkeys(ref for own in masks for ref in own):
            for low, high in self.spans[ref]:
                walks = tuple(walk for walk in range(low, high + 1) if ref in masks[walk])
                if walks:
                    held[f"v{ref}_{low}"] = Nowhere(low, walks)
        return list(held), tuple(held.values())

    def _place(
        self, given: Sequence[Part], answers: Sequence[Sequence[Ref]], masks: Sequence[Sequence[Ref]]
    ) -> None:
        walks: dict[Ref, set[int]] = {}
        for part in given:
            for ref in refs(part.values):
                walks.setdefault(ref, set()).update(range(part.first, part.last + 1))
        for walk, own in enumerate(zip(answers, masks, strict=True)):
            for ref in refs(own):
                walks.setdefault(ref, set()).add(walk)
        for number in range(len(self.calls) - 1, self.inputs - 1, -1):
            for ref in refs((self.calls[number].args, self.calls[number].options)):
                if Ref(number) in walks:
                    walks.setdefault(ref, set()).update(walks[Ref(number)])
        everyone = [(0, len(answers) - 1)]
        for ref, found in walks.items():
            self.spans[ref] = everyone if ref < self.inputs else _spans(found, ref in self.alone)

    def _call(self, ref: Ref, span: Span) -> None:
        call = self.calls[ref]
        reads: list[str] = []
        args = map(_array, call.args) if isinstance(call.function, np.ufunc) else call.args
        parts = [self._text(a, span, reads) for a in args]
        parts += [f"{k}={self._text(v, span, reads)}" for k, v in call.options.items()]
        self.lines.append(
            Line(f"v{ref}_{span[0]}", f"{self._name(call.function)}({', '.join(parts)})", tuple(reads))
        )

    def _text(self, value: Any, span: Span, reads: list[str]) -> str:
        if isinstance(value, Ref):
            reads.append(self._variable(value, span))
            return reads[-1]
        if isinstance(value, (tuple, list)):
            inside = _tuple(self._text(one, span, reads) for one in value)
            return inside if isinstance(value, tuple) else f"[*{inside}]"
        return repr(value) if type(value) in (bool, int) else self._name(value)

    def _variable(self, ref: Ref, span: Span) -> str:
        """The variable that holds a result for the rows of a span: all of it, or a part cut out of it."""
        low, high = next(s for s in self.spans[ref] if s[0] <= span[0] <= s[1])
        whole = f"v{ref}_{low}"
        if (low, high) == span:
            return whole
        part = f"{whole}_{span[0]}_{span[1]}"
        if part not in self.cuts:
            self.cuts.add(part)
            cut = self._bound(
                f"z{low}_{span[0]}_{span[1]}",
                f"slice(bounds[{span[0]}] - bounds[{low}], bounds[{span[1] + 1}] - bounds[{low}])",
            )
            self.lines.append(Line(part, f"{whole}[..., {cut}]", (whole,)))
        return part

    def _bound(self, name: str, text: str) -> str:
        self.bounds[name] = text
        return name

    def _name(self, value: Any) -> str:
        """A name for anything that has no text of its own."""
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name


def _array(value: Any) -> Any:
    """An array for a number: NumPy takes longer to look at a Python number than to work on a short vector."""
    return np.array(value) if type(value) in (bool, int, float) else value


def _tuple(texts: Iterable[str]) -> str:
    return f"({''.join(f'{text}, ' for text in texts)})"


def _spans(walks: Iterable[int], alone: bool) -> list[Span]:
    """Walks that stand near to each other, together."""
    found: list[Span] = []
    for walk in sorted(walks):
        if found and not alone and walk - found[-1][1] <= _GAP:
            found[-1] = (found[-1][0], walk)
        else:
            found.append((walk, walk))
    return found


def _dropping(lines: Sequence[Line], kept: Iterable[str]) -> list[str]:
    """The statements, each variable dropped after its last use."""
    alive, out = set(kept), []
    for line in reversed(lines):
        dropped = sorted({name for name in line.reads if name not in alive})
        alive.update(dropped)
        if dropped:
            out.append(f"del {', '.join(dropped)}")
        out.append(f"{line.target} = {line.text}")
    return out[::-1]
