"""A kernel made ready in the worker's context: module, functions, inputs, room for what it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ekc.codegen.compiled import Launch
from ekc.devices.base import Sampled, Wanted
from ekc.devices.cuda.driver import Driver, Shape
from ekc.devices.cuda.messages import Work
from ekc.devices.cuda.sampling import Look, upload
from ekc.ir.evaluation.agreement import DATA_SEED
from ekc.ir.evaluation.drawn import Tensor, draw_tensors
from ekc.ir.operator import TensorSpec


@dataclass(frozen=True)
class _Start:
    """One launch with its addresses."""

    function: int
    grid: Shape
    block: Shape
    shared_bytes: int
    pointers: tuple[int, ...]


class Stage:
    """Holds one kernel and the inputs of one operator at a time, filled once for all kernels of it."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.stream = driver.stream()
        self._inputs: tuple[TensorSpec, ...] = ()
        self._room: dict[str, tuple[int, int]] = {}
        """By tensor: address and size."""
        self._cubin = b""
        self._module: int | None = None
        self._starts: tuple[_Start, ...] = ()
        self._events: list[int] = []

    def events(self, number: int) -> list[int]:
        """So many events; made once, used again and again."""
        while len(self._events) < number:
            self._events.append(self.driver.event())
        return self._events[:number]

    def load(self, work: Work) -> None:
        """Make a kernel ready on the random inputs of its operator."""
        if work.inputs != self._inputs:
            self._clear()
            self._put(work.inputs, draw_tensors(work.inputs, DATA_SEED))
            self._inputs = work.inputs
        self._prepare(work)

    def execute(
        self, work: Work, arrays: Sequence[NDArray[Any]], blanks: Sequence[NDArray[Any]]
    ) -> tuple[NDArray[Any], ...]:
        """One call on inputs of the caller's; what each launch left, where its output began as its blank."""
        self._clear()
        self._put(work.inputs, arrays)
        self._prepare(work)
        outputs = [one.arguments[-1] for one in work.launches]
        for name, blank in zip(outputs, blanks, strict=True):
            self.driver.upload(self._room[name][0], blank)
        self.call()
        found = tuple(blank.copy() for blank in blanks)
        for name, array in zip(outputs, found, strict=True):
            self.driver.download(array, self._room[name][0])
        return found

    def sample(self, work: Work, inputs: Sequence[Tensor], wanted: Sequence[Wanted]) -> tuple[Sampled, ...]:
        """Calls on inputs of the caller's, a run for each blank; some elements of what each launch left."""
        self._clear()
        self._put(work.inputs, inputs)
        self._prepare(work)
        looks = [
            Look(self.driver, self._room[one.arguments[-1]][0], asked)
            for one, asked in zip(work.launches, wanted, strict=True)
        ]
        for turn in range(max(len(asked.words) for asked in wanted)):
            for look in looks:
                look.blank(turn)
            self.call()
            for look in looks:
                look.look(turn)
        return tuple(look.answer() for look in looks)

    def call(self) -> None:
        """Queue all launches of the kernel once."""
        for start in self._starts:
            self.driver.launch(
                start.function, start.grid, start.block, start.shared_bytes, self.stream, start.pointers
            )

    @contextmanager
    def captured(self, calls: int) -> Iterator[Callable[[], None]]:
        """So many calls as a graph, for as long as the block: what queues it."""
        self.driver.begin_capture(self.stream)
        for _ in range(calls):
            self.call()
        graph = self.driver.end_capture(self.stream)
        yield lambda: self.driver.replay(graph, self.stream)
        self.driver.drop(graph)

    def _put(self, specs: Sequence[TensorSpec], tensors: Sequence[Tensor]) -> None:
        for spec, tensor in zip(specs, tensors, strict=True):
            upload(self.driver, self._space(spec.name, spec.bytes), spec, tensor)

    def _space(self, tensor: str, size: int) -> int:
        """Room for a tensor: what it had, if that is of this size."""
        held = self._room.get(tensor)
        if held is not None and held[1] == size:
            return held[0]
        if held is not None:
            self.driver.free(self._room.pop(tensor)[0])
        address = self.driver.allocate(size)
        self._room[tensor] = address, size
        return address

    def _prepare(self, work: Work) -> None:
        if self._module is None or work.cubin != self._cubin:
            if self._module is not None:
                self.driver.unload(self._module)
            self._module = self.driver.load(work.cubin)
            self._cubin = work.cubin
        module = self._module
        self._starts = tuple(self._start(module, one) for one in work.launches)

    def _clear(self) -> None:
        """Let go of all memory: another operator may need it."""
        for address, _ in self._room.values():
            self.driver.free(address)
        self._room, self._inputs = {}, ()

    def _start(self, module: int, one: Launch) -> _Start:
        pointers = tuple(
            self._space(name, size) for name, size in zip(one.arguments, one.argument_bytes, strict=True)
        )
        function = self.driver.function(module, one.name, one.shared_bytes)
        return _Start(function, one.grid, one.block, one.shared_bytes, pointers)
