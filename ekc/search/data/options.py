"""The arguments of `ekc.tune`: what is refused, in one line each.

How much a run may spend: `effort="quick"`, "standard" or "full".

What the search minimises.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ekc.arguments import check_choice, check_path, format_value, is_number
from ekc.errors import InvalidInput
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.ir.validate import check_int


@dataclass(frozen=True)
class Effort:
    """Trials (rounds and populations follow from them) and what a round must earn its cost in."""

    trials: int
    """Schedules to compile and time, at most."""
    expected_calls: float | None
    """How often the kernel is expected to be called in its life: savings count so many times. None: nobody
    asks what a round earns."""


EFFORTS = {
    "quick": Effort(trials=64, expected_calls=1e7),
    "standard": Effort(trials=256, expected_calls=1e8),
    "full": Effort(trials=1024, expected_calls=1e9),
}
"""By name, each for a kernel that is called ten times as often as the one before."""
DEFAULT_EFFORT = Effort(trials=256, expected_calls=None)


def parse_effort(name: str | None) -> Effort:
    """The effort of that name. Raises InvalidInput."""
    if name is None:
        return DEFAULT_EFFORT
    return EFFORTS[check_choice("effort", name, EFFORTS)]


_LAZY_FUNCTION_TESTS = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
"""Tests for functions of which a call runs nothing yet."""
CLOCK_MODES = ("fixed", "search")
"""What may be done about the clocks."""


@dataclass(frozen=True)
class TuneOptions:
    """What a run is asked for, checked."""

    trials: int
    objective: str
    max_slowdown: float
    search_clocks: bool
    seed: int
    time_budget_s: float | None
    expected_calls: float | None = None
    """How often the kernel is expected to be called: a round must pay for itself in so many calls.
    None: all trials are used, whatever they bring."""
    requested_at_s: float = field(default_factory=time.monotonic, compare=False)
    """When: the seconds of the run and its time budget count from here, what is prepared included."""


def check_operator(op: object) -> None:
    """Refuse what is no operator."""
    if not isinstance(op, Operator):
        raise InvalidInput(f"op: {format_value(op)} is not an operator; ekc.matmul(64, 64, 64) makes one")


def check_start(op: Operator, start: Sequence[Schedule]) -> None:
    """Refuse what is no operator, and schedules to start from that are not of it."""
    check_operator(op)
    if isinstance(start, Schedule) or not isinstance(start, Sequence):
        raise InvalidInput(
            f"start: {type(start).__name__} is not a list of schedules; write start=[schedule]"
        )
    for s in start:
        if not isinstance(s, Schedule):
            raise InvalidInput(f"start: {format_value(s)} is not a schedule; give a list of ekc.Schedule")
        if s.op != op:
            raise InvalidInput(f"start: a schedule of {s.op.name} cannot start the tuning of {op.name}")


def check_executor_and_callback(executor: object, callback: object) -> None:
    """Refuse what cannot compile, what cannot be called, and what would do nothing when it is called."""
    if isinstance(executor, type):
        name = executor.__name__
        raise InvalidInput(f"executor: {name} is a class; make one of it, executor={name}()")
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise InvalidInput(
            f"executor: {format_value(executor)} has no submit(); give a concurrent.futures.Executor, or leave it out"
        )
    if callback is not None and not callable(callback):
        raise InvalidInput(
            f"callback: {format_value(callback)} cannot be called; give a function of one TuningEvent"
        )
    # An object that is called is known by its method; a function has one too, which is plain.
    for called in (callback, getattr(callback, "__call__", None)):  # noqa: B004 - inspected, not called
        if any(is_lazy(called) for is_lazy in _LAZY_FUNCTION_TESTS):
            raise InvalidInput(
                f"callback: {format_value(callback)} is async or a generator, so that a call of it runs nothing; "
                "give a plain function of one TuningEvent"
            )


def check_options(
    trials: int | None,
    effort: str | None,
    max_slowdown: float,
    clocks: str,
    seed: int,
    time_budget_s: float | None,
) -> None:
    """Refuse what `tune` would refuse; the command line asks before it writes anything."""
    if effort is not None and trials is not None:
        raise InvalidInput("effort and trials: give one; an effort sets the trials")
    parse_effort(effort)
    if trials is not None:
        check_int("trials", trials, 1_000_000)
    check_int("seed", seed, 2**63 - 1, minimum=0)
    check_slowdown(max_slowdown)
    check_choice("clocks", clocks, CLOCK_MODES)
    if time_budget_s is not None and not (is_number(time_budget_s) and time_budget_s > 0):
        raise InvalidInput(
            f"time_budget_s: {format_value(time_budget_s)} is not above 0; leave it out for no limit"
        )


def check_slowdown(max_slowdown: float) -> None:
    """Refuse what says nothing of how much slower than the fastest the best may be."""
    if not is_number(max_slowdown) or not 0 <= max_slowdown <= 10:
        raise InvalidInput(
            f"max_slowdown: {format_value(max_slowdown)} is outside 0 to 10; 0.05 means at most 5 % slower"
        )


def check_paths(**paths: object) -> None:
    """Refuse what is no path, of options that may be left out."""
    for name, file in paths.items():
        if file is not None:
            check_path(name, file)


OBJECTIVES = ("energy", "latency", "edp")


def parse_objective(name: str) -> str:
    """The name, if it is one of the objectives."""
    return check_choice("objective", name, OBJECTIVES)


def compute_objective(objective: str, latency_s: Any, energy_j: Any) -> Any:
    """The figure to make small: joules, seconds, or joule-seconds."""
    if objective == "latency":
        return latency_s
    return energy_j if objective == "energy" else energy_j * latency_s
