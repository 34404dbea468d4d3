"""Options of a tuning run: the arguments of `ekc.tune` and their checks, efforts, the method."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ekc.argument_checks import check_choice, check_path, format_value, is_number
from ekc.errors import InvalidInput
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.ir.validate import check_int
from ekc.search.data.defaults import BREEDING, METERING, PARALLEL_ROUNDS, BreedingSettings, RoundSettings
from ekc.search.data.selection import SelectionRule, check_slowdown


@dataclass(frozen=True)
class Effort:
    """The size of a run. Sizes of rounds and populations follow from the number of trials."""

    trials: int
    """Schedules to compile and time, at most."""
    expected_calls: float | None
    """Calls of the kernel in its life over which a round must save its cost. None: no stopping rule."""


EFFORTS = {
    "quick": Effort(trials=64, expected_calls=1e7),
    "standard": Effort(trials=256, expected_calls=1e8),
    "full": Effort(trials=1024, expected_calls=1e9),
}
"""Efforts by name, each for a kernel that is called ten times as often as with the one before."""
DEFAULT_EFFORT = Effort(trials=256, expected_calls=None)


def parse_effort(name: str | None) -> Effort:
    """Return the effort of that name. Raises InvalidInput."""
    if name is None:
        return DEFAULT_EFFORT
    return EFFORTS[check_choice("effort", name, EFFORTS)]


_LAZY_FUNCTION_TESTS = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
"""Tests for functions whose call does not run their body."""
CONTENDERS = ("library",)
"""Values of the argument `contenders`."""
CLOCK_MODES = ("fixed", "search")
"""Values of the argument `clocks`."""


@dataclass(frozen=True)
class SearchMethod:
    """How a run searches. The defaults are what `ekc.tune` does; others exist to be compared with them."""

    breeding: BreedingSettings = BREEDING
    rounds: RoundSettings = PARALLEL_ROUNDS
    metered_share: float = METERING.share
    """Share of the timed kernels that is metered during the search; 1: all. The finals come on top."""
    power_source: Literal["learned", "constant"] = "learned"
    """Power of kernels not metered: by the power model, or the median of the metered ones."""
    corrects_prior: bool = True
    """Whether the boosted model corrects the prior of the device (`cost_model/boosted_prior.py`)."""

    def __post_init__(self) -> None:
        if not 0 < self.metered_share <= 1:
            raise InvalidInput(f"metered: {self.metered_share} is outside 0 to 1; 1 meters every kernel")


DEFAULT_METHOD = SearchMethod()
RANDOM_SEARCH = SearchMethod(
    breeding=replace(BREEDING, generations=0, elite_count=0),
    rounds=replace(PARALLEL_ROUNDS, first_round_random_share=1.0, random_share=1.0),
)
"""Every trial a legal schedule sampled at random: the baseline of every search."""


@dataclass(frozen=True)
class TuneOptions:
    """The checked options of a run."""

    trials: int
    objective: str
    max_slowdown: float
    search_clocks: bool
    seed: int
    time_budget_s: float | None
    expected_calls: float | None = None
    """Calls of the kernel in its life over which a round must save its cost. None: use all trials."""
    contenders: tuple[str, ...] = ()
    """Names of `CONTENDERS` that are measured beside our kernels."""
    requested_at_s: float = field(default_factory=time.monotonic, compare=False)
    """Time in seconds of `time.monotonic` at which the run was requested. The seconds of the run and its time
    budget count from it, preparation included."""

    @property
    def rule(self) -> SelectionRule:
        """The rule that selects the best schedule."""
        return SelectionRule(self.objective, self.max_slowdown)


def check_operator(op: object) -> None:
    """Raise `InvalidInput` unless the argument is an operator."""
    if not isinstance(op, Operator):
        raise InvalidInput(f"op: {format_value(op)} is not an operator; ekc.matmul(64, 64, 64) makes one")


def check_start(op: Operator, start: Sequence[Schedule]) -> None:
    """Raise `InvalidInput` unless `op` is an operator and `start` a list of its schedules."""
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
    """Raise `InvalidInput` for an executor without `submit`, and for a callback whose call runs nothing."""
    if isinstance(executor, type):
        name = executor.__name__
        raise InvalidInput(f"executor: {name} is a class; make one of it, executor={name}()")
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise InvalidInput(
            f"executor: {format_value(executor)} has no submit(); "
            "give a concurrent.futures.Executor, or leave it out"
        )
    if callback is not None and not callable(callback):
        raise InvalidInput(
            f"callback: {format_value(callback)} cannot be called; give a function of one TuningEvent"
        )
    # An object that is called may have an async __call__; that of a function is plain.
    for called in (callback, getattr(callback, "__call__", None)):  # noqa: B004 - inspected, not called
        if any(is_lazy(called) for is_lazy in _LAZY_FUNCTION_TESTS):
            raise InvalidInput(
                f"callback: {format_value(callback)} is async or a generator, so a call of it runs nothing; "
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
    """Raise `InvalidInput` for options that `tune` refuses. The command line asks before it writes a file."""
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


def parse_contenders(contenders: object) -> tuple[str, ...]:
    """Return the contenders, each once. Raises `InvalidInput` for another name, or what is no list."""
    if isinstance(contenders, str) or not isinstance(contenders, Sequence):
        raise InvalidInput(
            f'contenders: {format_value(contenders)} is not a list of names; write contenders=("library",)'
        )
    return tuple(dict.fromkeys(check_choice("contenders", name, CONTENDERS) for name in contenders))


def check_paths(**paths: object) -> None:
    """Raise `InvalidInput` for options that are given and are no path."""
    for name, file in paths.items():
        if file is not None:
            check_path(name, file)
