"""Quantities that a run measures beside latency and energy, each by an object of a class of its own.

    class HostPower(ekc.Observer):
        name = "host_power_w"

        def before(self, kernel):
            self.start = read_host_joules(), time.monotonic()

        def after(self, kernel, measured):
            joules, seconds = read_host_joules(), time.monotonic()
            return (joules - self.start[0]) / (seconds - self.start[1])

    ekc.tune(op, target="cuda:0", records="tuning.db", observers=[HostPower()])

Its readings are filed with each timing and metering. They are a column of `result.to_dataframe()` and of
`ekc records export --csv`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ekc.argument_checks import format_value, is_number
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import Measurement, MeasurementT
from ekc.errors import EkcError, InvalidInput


class Observer:
    """A quantity that is measured while a kernel is timed or metered.

    A subclass sets `name` and `after`, and where it needs them `before` and `during`. All are called on the
    host, in this process. An exception ends the run and reaches the caller; what was stored before stays.
    """

    name: str = ""
    """Name of the column, with the unit as in `latency_s`: lower-case letters, digits and underscores."""
    interval_s: float = 0.01
    """Seconds between two calls of `during`."""

    def before(self, kernel: CompiledKernel) -> None:
        """Called before the measurement begins, warm-up included."""

    def during(self) -> None:
        """Called again and again while the measurement runs, in a thread of its own."""

    def after(self, kernel: CompiledKernel, measured: Measurement) -> float:
        """The reading, a number; NaN where there is none. `measured`: the `Timing` or `Metering` taken."""
        raise NotImplementedError(f"{type(self).__name__} has no method after(kernel, measured)")


def check_observers(observers: object, taken: Sequence[str]) -> tuple[Observer, ...]:
    """The observers as a tuple. `taken`: names of other columns. Raises `InvalidInput`."""
    if isinstance(observers, (str, Observer)) or not isinstance(observers, Sequence):
        raise InvalidInput(
            f"observers: {format_value(observers)} is not a list; write observers=[MySensor()]"
        )
    names = list(taken)
    for one in observers:
        if isinstance(one, type):
            raise InvalidInput(f"observers: {one.__name__} is a class; write observers=[{one.__name__}()]")
        if not isinstance(one, Observer):
            raise InvalidInput(
                f"observers: {format_value(one)} is no ekc.Observer; derive its class from ekc.Observer"
            )
        if not (isinstance(one.name, str) and one.name.isidentifier() and one.name == one.name.lower()):
            raise InvalidInput(
                f"observers: {type(one).__name__}.name is {one.name!r:.40}; "
                'use lower-case letters, digits and underscores, such as "host_power_w"'
            )
        if not (is_number(one.interval_s) and 0 < one.interval_s < math.inf):
            raise InvalidInput(
                f"observers: {one.name} has interval_s = {format_value(one.interval_s)}; "
                "give a number of seconds above 0, such as 0.01"
            )
        if one.name in names:
            raise InvalidInput(f"observers: there is already a column {one.name}; choose another name")
        names.append(one.name)
    return tuple(observers)


def observe(
    observers: Sequence[Observer], kernel: CompiledKernel, measure: Callable[[], MeasurementT]
) -> MeasurementT:
    """Take a measurement, with the readings of the observers in it. Raises `TypeError` for a reading that is
    no number, and `RuntimeError` in place of an `EkcError` of an observer: it is no failure of the kernel."""
    for one in observers:
        with _told_apart(one):
            one.before(kernel)
    with _call_repeatedly([one for one in observers if type(one).during is not Observer.during]):
        measured = measure()
    readings = {one.name: _read(one, kernel, measured) for one in observers}
    return replace(measured, readings={name: x for name, x in readings.items() if math.isfinite(x)})


def _read(observer: Observer, kernel: CompiledKernel, measured: Measurement) -> float:
    with _told_apart(observer):
        value = observer.after(kernel, measured)
    if not is_number(value):
        raise TypeError(f"observer {observer.name}: its reading is {format_value(value)}; return a number")
    return float(value)


@contextmanager
def _told_apart(observer: Observer) -> Iterator[None]:
    """Raise an `EkcError` of an observer as `RuntimeError`."""
    try:
        yield
    except EkcError as problem:
        raise RuntimeError(f"observer {observer.name}: {problem}") from problem


@contextmanager
def _call_repeatedly(observers: Sequence[Observer]) -> Iterator[None]:
    """Call `during` of each observer while the block runs, at least once. Its first exception is raised
    afterwards."""
    has_ended, problems = threading.Event(), list[Exception]()

    def call(one: Observer) -> None:
        try:
            with _told_apart(one):
                one.during()
                while not has_ended.wait(one.interval_s):
                    one.during()
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=call, args=(one,), daemon=True) for one in observers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        has_ended.set()
        for thread in threads:
            thread.join()
    if problems:
        raise problems[0]


def collect_readings(measured: Sequence[Measurement]) -> Mapping[str, float]:
    """The last reading of each observer, by name."""
    return {name: value for one in measured for name, value in one.readings.items()}
