"""A walk over vectors, recorded once and replayed: broadcasting analysis without its Python.

For the members of a population the walk takes the same array operations every time; only numbers differ.
`record` runs it once, on arrays that note what is done to them, and gives a `Tape`: straight-line NumPy
calls, each distinct one once, none whose result nobody needs or `tape_folding` knows. Where the walk does
look at values ("does any member..."), the tape holds for columns that answer the same, and says when they
do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ekc.errors import EkcError
from ekc.ir.tape.code import Call, Ref, Writer, leaves, parts, refs
from ekc.ir.tape.folding import alike, folded, in_order, number
from ekc.ir.tape.replay import Tape

ROWS = 97
"""Rows to record with: a number that no array has for another reason."""
_LOST = (
    "a vector left the tape: np.asarray and friends must be np.asanyarray, and new vectors made by np.where"
)


class _Taped(np.ndarray):
    """A vector that writes down what is done to it."""

    recorder: _Recorder | None = None
    ref: Ref | None = None

    def __array_finalize__(self, source: Any) -> None:
        # np.asanyarray(x, dtype) asks nobody: the same numbers in another type.
        if isinstance(source, _Taped) and source.recorder is not None and self.shape == source.shape:
            self.recorder, self.ref = source.recorder, source.recorder.cast(source, self.dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        options.pop("out", None)
        recorder = next((x.recorder for x in inputs if isinstance(x, _Taped)), None) or _recorder(inputs)
        if method == "__call__" and not options:
            return recorder.simple(ufunc, inputs)
        return recorder.call(getattr(ufunc, method), inputs, options)

    def __array_function__(self, function: Any, _types: Any, args: Any, options: Any) -> Any:
        if function is np.ndim:
            return args[0].view(np.ndarray).ndim
        if function is np.where and not options:
            return _recorder(args).simple(function, args)
        return _recorder((args, options)).call(function, args, options)

    def __getitem__(self, key: Any) -> Any:
        return _recorder(self).call(_item, (self, key), {})

    def __len__(self) -> int:
        raise EkcError(_LOST)

    def __bool__(self) -> bool:
        return _recorder(self).assume(self)


class _Section(NamedTuple):
    """One sequence that a walk yields."""

    given: list[tuple[Any, tuple[Any, ...]]]
    assumed: dict[Ref, bool]
    """How its branches went so far."""
    nowhere: tuple[Ref, ...]
    """Masks of which it took no row to be set."""


class _Recorder:
    """Calls in order, each distinct one once."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.known: dict[Any, int] = {}
        self.assumed: dict[Ref, bool] = {}
        self.nowhere: dict[Ref, None] = {}
        """Masks, in order, of which the walk took no row to be set."""
        self.results: dict[Ref, Any] = {}
        self.simply: dict[Any, Any] = {}
        """What calls of vectors and numbers gave: of seven such calls, walks made six before."""
        self.alone: set[Ref] = set()

    def column(self, value: NDArray[np.int64]) -> _Taped:
        """A column of input."""
        self.calls.append(Call(None, (), {}))
        return self._taped(value, Ref(len(self.calls) - 1))

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

    def simple(self, function: Any, operands: Any) -> Any:
        """A call of vectors and numbers; noted only where what it gives is not known without it."""
        key = (function, *[x.ref if type(x) is _Taped else (type(x), x) for x in operands])
        try:
            return self.simply[key]
        except KeyError:
            found = self.simply[key] = self._new(function, operands)
            return found
        except TypeError:
            # Of an array without a number on the tape.
            return self._new(function, operands)

    def _new(self, function: Any, operands: Any) -> Any:
        operands = alike(function, tuple(number(x) for x in operands))
        operands = in_order(function, operands, tuple(self.operand(x) for x in operands))
        found = self.call(function, operands, {})
        known = folded(function, operands, found)
        return found if known is None else known

    def take(self, walk: Walk, columns: Mapping[str, Any]) -> Iterator[_Section]:
        """What a walk yields, and what it took for granted until then; others may go on between."""
        assumed: dict[Ref, bool] = {}
        nowhere: dict[Ref, None] = {}
        self.assumed, self.nowhere = assumed, nowhere
        for outputs in walk(columns):
            given = [(label, tuple(self.operand(_alone(v)) for v in values)) for label, values in outputs]
            yield _Section(given, dict(assumed), tuple(nowhere))
            self.assumed, self.nowhere = assumed, nowhere

    def cast(self, source: _Taped, dtype: Any) -> Ref | None:
        """A conversion to another type."""
        if source.ref is None or source.dtype == dtype:
            return source.ref
        return self._kept(source.shape, self._note(_cast, (source.ref, dtype), {}))

    def assume(self, value: _Taped) -> bool:
        """A branch on a value: taken as it is here, and noted."""
        ref, outcome = self.operand(value), bool(_plain(value))
        mask = self.calls[ref].args[0] if self.calls[ref].function is np.any else None
        if isinstance(mask, Ref) and mask not in self.alone and not outcome:
            self.nowhere[mask] = None
        else:
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
            value = value.flat[0]
        return number(value)

    def _note(self, function: Any, args: Any, options: dict[str, Any]) -> Ref:
        key = _key((function, args, tuple(sorted(options.items()))))
        if key not in self.known:
            self.known[key] = len(self.calls)
            self.calls.append(Call(function, args, options))
        return Ref(self.known[key])

    def _taped(self, value: Any, ref: Ref) -> _Taped:
        taped = np.asarray(value).view(_Taped)
        taped.recorder, taped.ref = self, self._kept(np.shape(value), ref)
        return taped

    def _kept(self, shape: tuple[int, ...], ref: Ref) -> Ref:
        """Note a result without rows: it says something of all rows at once. What keeps them is taken to work
        row by row: sums over part of the rows, sorting and the like must not be on a walk."""
        call = self.calls[ref]
        if shape[-1:] != (ROWS,) or any(r in self.alone for r in refs((call.args, call.options))):
            self.alone.add(ref)
        return ref


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that goes onto the tape as one call, whatever it does inside."""

    @wraps(function)
    def call(*args: Any) -> Any:
        on_tape = any(isinstance(x, _Taped) for x in leaves(args))
        return _recorder(args).call(function, args, {}) if on_tape else function(*args)

    return call


def some(mask: Any) -> bool:
    """Whether a mask holds for any member. On a tape: yes, it may; what follows must be right for both."""
    return isinstance(mask, _Taped) or bool(np.any(mask))


def _recorder(values: Any) -> _Recorder:
    for one in leaves(values):
        if isinstance(one, _Taped) and one.recorder is not None:
            return one.recorder
    raise EkcError(_LOST)


def _item(array: Any, key: Any) -> Any:
    return array[key]


def _cast(array: Any, dtype: Any) -> Any:
    return array.astype(dtype)


def _alone(value: Any) -> Any:
    """A number for a vector of one: a count of nothing that differs between rows, the same for all."""
    return value[0] if type(value) is np.ndarray and value.shape == (1,) else value


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, _Taped) else value


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


Walk = Callable[[Mapping[str, Any]], Iterator[Sequence[tuple[Any, tuple[Any, ...]]]]]
"""Yields sequences of labels and of values under these."""


def record(walks: Sequence[Walk], columns: Mapping[str, NDArray[np.int64]]) -> Iterator[Tape]:
    """Record walks on columns of ROWS rows: a tape for each sequence that they yield, when it is asked for.

    All walks yield equally many sequences. Raises `EkcError` where a vector leaves the tape.
    """
    recorder = _Recorder()
    taped = {name: recorder.column(column) for name, column in columns.items()}
    taken = zip(*(recorder.take(walk, taped) for walk in walks), strict=True)
    while True:
        with np.errstate(all="ignore"):
            sections = next(taken, None)
        if sections is None:
            return
        yield _tape(recorder, tuple(columns), sections)


def _tape(recorder: _Recorder, columns: tuple[str, ...], sections: Sequence[_Section]) -> Tape:
    given = parts([s.given for s in sections], recorder.alone)
    writer = Writer(recorder.calls, len(columns), recorder.alone)
    answers, masks = [tuple(s.assumed) for s in sections], [s.nowhere for s in sections]
    function, length, nowhere = writer.function(given, answers, masks)
    assumed = tuple(tuple(s.assumed.values()) for s in sections)
    return Tape(columns, function, tuple(given), assumed, nowhere, length)
