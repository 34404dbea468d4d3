"""A walk over vectors, recorded once and replayed: broadcasting analysis without its Python.

For the members of a population the walk takes the same array operations every time; only numbers differ.
`record` runs it once, on arrays that note what is done to them, and gives a `Tape`: straight-line NumPy
calls, each distinct one once, none whose result nobody needs. Where the walk does look at values ("does any
member..."), the tape holds for columns that answer the same, and says when they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.errors import EkcError

ROWS = 97
"""Rows to record with: a number that no shape has for another reason."""
_LOST = (
    "a vector left the tape: np.asarray and friends must be np.asanyarray, and new vectors made by np.where"
)


class _Ref(int):
    """The number of a call on the tape, for its result."""


@dataclass(frozen=True)
class _Rows:
    """The number of rows, where a shape holds it."""


class _Taped(np.ndarray):
    """A vector that writes down what is done to it."""

    recorder: _Recorder | None = None
    ref: _Ref | None = None

    def __array_finalize__(self, source: Any) -> None:
        # np.asanyarray(x, dtype) asks nobody: the same numbers in another type.
        if isinstance(source, _Taped) and source.recorder is not None and self.shape == source.shape:
            self.recorder, self.ref = source.recorder, source.recorder.cast(source, self.dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        options.pop("out", None)
        recorder = next((x.recorder for x in inputs if isinstance(x, _Taped)), None)
        return (recorder or _recorder(inputs)).call(getattr(ufunc, method), inputs, options)

    def __array_function__(self, function: Any, _types: Any, args: Any, options: Any) -> Any:
        return _recorder((args, options)).call(function, args, options)

    def __getitem__(self, key: Any) -> Any:
        return _recorder(self).call(_item, (self, key), {})

    def __bool__(self) -> bool:
        return _recorder(self).assume(self)


class _Recorder:
    """Calls in order, each distinct one once."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, dict[str, Any]]] = []
        self.known: dict[Any, int] = {}
        self.assumed: dict[_Ref, bool] = {}
        self.results: dict[_Ref, Any] = {}

    def column(self, value: NDArray[np.int64]) -> _Taped:
        """A column of input."""
        self.calls.append((None, (), {}))
        return self._taped(value, _Ref(len(self.calls) - 1))

    def call(self, function: Any, args: Any, options: dict[str, Any]) -> Any:
        """Do it, and note it."""
        ref = self._note(function, _mapped(tuple(args), self.operand), _mapped(options, self.operand))
        if ref in self.results:
            return self.results[ref]
        found = function(*_mapped(args, _plain), **_mapped(options, _plain))
        if isinstance(found, (tuple, list)):
            parts = [self._note(_item, (ref, i), {}) for i in range(len(found))]
            self.results[ref] = type(found)(map(self._taped, found, parts))
        else:
            self.results[ref] = self._taped(found, ref)
        return self.results[ref]

    def cast(self, source: _Taped, dtype: Any) -> _Ref | None:
        """A conversion to another type."""
        if source.ref is None or source.dtype == dtype:
            return source.ref
        return self._note(_cast, (source.ref, dtype), {})

    def assume(self, value: _Taped) -> bool:
        """A branch on a value: taken as it is here, and noted."""
        ref, outcome = self.operand(value), bool(_plain(value))
        self.assumed[ref] = outcome
        return outcome

    def operand(self, value: Any) -> Any:
        """How a value stands on the tape."""
        if isinstance(value, _Taped):
            if value.ref is None:
                raise EkcError(_LOST)
            return value.ref
        if isinstance(value, np.ndarray) and ROWS in value.shape:
            if not (value == value.flat[0]).all():
                raise EkcError(_LOST)
            return value.flat[0]
        if type(value) is int and value == ROWS:
            return _Rows()
        return value

    def _note(self, function: Any, args: Any, options: dict[str, Any]) -> _Ref:
        key = _key((function, args, tuple(sorted(options.items()))))
        if key not in self.known:
            self.known[key] = len(self.calls)
            self.calls.append((function, args, options))
        return _Ref(self.known[key])

    def _taped(self, value: Any, ref: _Ref) -> _Taped:
        taped = np.asarray(value).view(_Taped)
        taped.recorder, taped.ref = self, ref
        return taped


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that goes onto the tape as one call, whatever it does inside."""

    @wraps(function)
    def call(*args: Any) -> Any:
        on_tape = any(isinstance(x, _Taped) for x in _leaves(args))
        return _recorder(args).call(function, args, {}) if on_tape else function(*args)

    return call


def some(mask: Any) -> bool:
    """Whether a mask holds for any member. On a tape: yes, it may; what follows must be right for both."""
    return isinstance(mask, _Taped) or bool(np.any(mask))


def _recorder(values: Any) -> _Recorder:
    for one in _leaves(values):
        if isinstance(one, _Taped) and one.recorder is not None:
            return one.recorder
    raise EkcError(_LOST)


def _item(array: Any, key: Any) -> Any:
    return array[key]


def _cast(array: Any, dtype: Any) -> Any:
    return array.astype(dtype)


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, _Taped) else value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    kind = type(value)
    if kind is tuple:
        return tuple([_mapped(one, change) for one in value])
    if kind is list:
        return [_mapped(one, change) for one in value]
    if kind is dict:
        return {key: _mapped(one, change) for key, one in value.items()}
    return change(value)


def _key(value: Any) -> Any:
    """A key that is equal for equal values of equal type."""
    kind = type(value)
    if kind is tuple or kind is list:
        return (kind, *map(_key, value))
    if kind is np.ndarray:
        return (value.dtype.str, value.shape, value.tobytes())
    return (kind, value)


@dataclass(frozen=True)
class Tape:
    """A recorded walk: columns in, values out."""

    columns: tuple[str, ...]
    function: Callable[..., tuple[Any, ...]]
    assumed: tuple[bool, ...]
    length: int
    """Calls on the tape."""

    def __call__(self, columns: Mapping[str, NDArray[np.int64]], rows: int) -> tuple[Any, ...] | None:
        """What the walk gives for `rows` rows of columns, vectors or numbers; None where one of its branches
        would go another way."""
        with np.errstate(all="ignore"):
            outputs = self.function(rows, *(columns[name] for name in self.columns))
        found, answers = outputs[: -len(self.assumed) or None], outputs[len(outputs) - len(self.assumed) :]
        same = all(bool(answer) == assumed for answer, assumed in zip(answers, self.assumed, strict=True))
        return found if same else None


def record(
    walk: Callable[[Mapping[str, Any]], Iterator[Sequence[Any]]], columns: Mapping[str, NDArray[np.int64]]
) -> tuple[Tape, ...]:
    """Record a walk on columns of ROWS rows: a tape for each sequence of values that it yields.

    Raises `EkcError` where a vector leaves the tape.
    """
    recorder, tapes = _Recorder(), []
    with np.errstate(all="ignore"):
        for outputs in walk({name: recorder.column(column) for name, column in columns.items()}):
            results = [*map(recorder.operand, outputs), *recorder.assumed]
            function, length = _compiled(recorder.calls, len(columns), results)
            tapes.append(Tape(tuple(columns), function, tuple(recorder.assumed.values()), length))
    return tuple(tapes)


def _compiled(
    calls: Sequence[tuple[Any, Any, dict[str, Any]]], inputs: int, results: Sequence[Any]
) -> tuple[Callable[..., tuple[Any, ...]], int]:
    """The calls that the results need, as one Python function; each value is dropped after its last use."""
    last = dict.fromkeys(_refs(results), len(calls))
    lines: list[str] = []
    names: dict[str, Any] = {}
    for number in range(len(calls) - 1, inputs - 1, -1):
        if number not in last:
            continue
        function, args, options = calls[number]
        dropped = sorted({ref for ref in _refs((args, options)) if last.setdefault(ref, number) == number})
        if dropped:
            lines.append(f"    del {', '.join(f'v{ref}' for ref in dropped)}")
        parts = [_text(a, names) for a in args] + [f"{k}={_text(v, names)}" for k, v in options.items()]
        lines.append(f"    v{number} = {_name(function, names)}({', '.join(parts)})")
    head = f"def tape(rows, {', '.join(f'v{i}' for i in range(inputs))}):"
    tail = f"    return ({''.join(_text(x, names) + ', ' for x in results)})"
    exec(compile("\n".join([head, *reversed(lines), tail]), "<tape>", "exec"), names)
    return names["tape"], sum("=" in line for line in lines)


def _refs(values: Any) -> Iterator[int]:
    return (x for x in _leaves(values) if isinstance(x, _Ref))


def _text(value: Any, names: dict[str, Any]) -> str:
    if isinstance(value, _Ref):
        return f"v{int(value)}"
    if isinstance(value, _Rows):
        return "rows"
    if isinstance(value, (tuple, list)):
        inside = "".join(_text(one, names) + ", " for one in value)
        return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    return repr(value) if type(value) in (bool, int) else _name(value, names)


def _name(value: Any, names: dict[str, Any]) -> str:
    """A name for anything that has no text of its own."""
    name = f"k{len(names)}"
    names[name] = value
    return name
