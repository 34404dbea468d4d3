"""A schedule under test: what is expected of it, what was measured, and its kernel once compiled.

The job that goes to an executor: what is done about a schedule before a device sees it.

It is a pure function of plain values: it may run in another thread, in another process, on another machine,
or not ahead at all. Its answer names the versions that made the kernel, so that a worker with another
compiler is found out before anything of its work is filed.
"""

from __future__ import annotations

import platform
import statistics
import traceback
import warnings
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ekc.arguments import format_value
from ekc.codegen import generate, nvrtc
from ekc.codegen.compiled import CompiledKernel, Resources
from ekc.codegen.generate import compile_schedule
from ekc.devices.device import Device, FactCollector, Metering, Timing
from ekc.devices.statistics import Interval, MeasuredValue, estimate_mean_interval
from ekc.errors import EkcError, ToolchainError
from ekc.ir.hardware.limits import Limits
from ekc.ir.schedule.schedule import Schedule
from ekc.search.data.result import Trial
from ekc.version import __version__


@dataclass(frozen=True)
class ToolchainVersions:
    """The programs that make a kernel of a schedule and count what it executes."""

    nvrtc: str
    """Such as "13.5", or "not installed"."""
    generator: int
    ekc: str

    def __str__(self) -> str:
        return f"NVRTC {self.nvrtc}, generator {self.generator}, ekc {self.ekc}"


@dataclass(frozen=True)
class CompileResult:
    """The answer of a worker; of a worker with other versions nothing but these."""

    versions: ToolchainVersions
    host: str
    """The name of the machine that the worker runs on."""
    kernel: CompiledKernel | None = None
    error: Exception | None = None
    """Raised by the compile."""

    def unwrap(self, local_versions: ToolchainVersions) -> CompiledKernel:
        """The kernel with its facts. Raises what compiling raised, and `ToolchainError` where other versions
        than these made it."""
        if self.versions != local_versions:
            raise ToolchainError(
                f"executor: a worker on {self.host} has {self.versions}, and this process {local_versions}; "
                "install the same versions on both"
            )
        if self.error is not None:
            raise self.error
        assert self.kernel is not None  # what else there is to answer was raised
        return self.kernel


def read_versions() -> ToolchainVersions:
    """The versions of this process."""
    try:
        compiler = nvrtc.version()
    except EkcError:
        compiler = "not installed"
    return ToolchainVersions(compiler, generate.GENERATOR, __version__)


def compile_schedule_json(schedule_json: str, arch: str, limits: Limits) -> CompiledKernel:
    """Compile a schedule given as JSON."""
    return compile_schedule(Schedule.from_json(schedule_json), arch, limits)


def run_compile_job(
    schedule_json: str,
    arch: str,
    limits: Limits,
    collect_facts: FactCollector | None,
    required_versions: ToolchainVersions,
) -> CompileResult:
    """The kernel of a schedule given as JSON, with the facts that its device needs. Where collecting them
    fails, the device does it when it times the kernel, and says why it cannot. Nothing is compiled where this
    process has other versions than are required; the exception of a failed compile is in the result."""
    here, host = read_versions(), platform.node()
    if here != required_versions:
        return CompileResult(here, host)
    try:
        kernel = compile_schedule_json(schedule_json, arch, limits)
        return CompileResult(here, host, _add_facts(kernel, collect_facts))
    except EkcError as problem:
        return CompileResult(here, host, error=problem)
    except Exception as problem:
        # A bug: the parent's traceback would end where the job was sent off.
        problem.add_note(traceback.format_exc())
        return CompileResult(here, host, error=problem)


def _add_facts(kernel: CompiledKernel, collect_facts: FactCollector | None) -> CompiledKernel:
    try:
        return replace(kernel, facts=collect_facts(kernel)) if collect_facts else kernel
    except EkcError:
        return kernel


@dataclass
class Candidate:
    """One schedule on its way through the tuner."""

    schedule: Schedule
    structure: str
    features: NDArray[np.float32]
    expected_latency_s: float
    expected_power_w: float
    round: int
    status: str = "ok"
    predicted_power_w: float = float("nan")
    timings: list[Timing] = field(default_factory=list)
    meterings: list[Metering] = field(default_factory=list)
    checked: str = ""
    in_turn: bool = False
    """Whether its meterings took turns with those of the other finalists."""
    _compile_job: Future[CompileResult] | None = None
    _target: tuple[str, Limits] = ("sm_80", Limits())

    def submit_compile(self, executor: Executor, device: Device) -> None:
        """Start compiling in the background, and collecting the facts that the device needs."""
        self.set_target(device.arch, device.limits)
        what = self.schedule.to_json(), device.arch, device.limits, device.collect_facts
        try:
            job = executor.submit(run_compile_job, *what, read_versions())
        except BrokenExecutor as problem:
            warnings.warn(
                f"executor: {problem}; kernels are compiled in this process", RuntimeWarning, stacklevel=1
            )
            return
        except Exception as problem:
            raise ToolchainError(
                f"executor: it takes no jobs ({_describe_error(problem)}); give one that is open"
            ) from problem
        if not callable(getattr(job, "result", None)):
            raise ToolchainError(
                f"executor: its submit() returned {format_value(job)}, which has no result(); "
                "give a concurrent.futures.Executor"
            )
        self._compile_job = job

    def set_target(self, arch: str, limits: Limits) -> None:
        """Remember the target, to compile only if the kernel is asked for."""
        self._target = (arch, limits)

    @cached_property
    def kernel(self) -> CompiledKernel:
        """The compiled kernel; raises what compiling raised, and `ToolchainError` where a worker cannot do
        what this process would do."""
        answer = self._get_compile_result()
        if answer is None:
            return compile_schedule_json(self.schedule.to_json(), *self._target)
        return answer.unwrap(read_versions())

    def _get_compile_result(self) -> CompileResult | None:
        """The answer of the worker that was asked; None where none was, or where it died or was stopped,
        which says nothing of this kernel."""
        if self._compile_job is None:
            return None
        try:
            answer = self._compile_job.result()
        except (BrokenExecutor, CancelledError):
            self._compile_job = None
            return None
        except Exception as problem:
            # A worker that has this very job answers, whatever compiling raises.
            raise ToolchainError(
                f"executor: a worker did not answer ({_describe_error(problem)}); "
                f"it needs {read_versions()}, as this process has"
            ) from problem
        if not isinstance(answer, CompileResult):
            raise ToolchainError(
                f"executor: a worker answered {format_value(answer)}, which is no kernel; "
                "submit(f, *x) must return a future whose result() is f(*x)"
            )
        return answer

    @property
    def resources(self) -> tuple[Resources, ...]:
        """What ptxas gave it, one per launch; empty where nobody said, as on files of an earlier ekc."""
        return self.timings[0].resources if self.timings else ()

    @property
    def ok(self) -> bool:
        """Whether it has a latency and no fault."""
        return self.status == "ok" and bool(self.timings)

    @property
    def latency_s(self) -> float:
        """Mean of its timings."""
        return statistics.fmean(t.latency_s for t in self.timings)

    @property
    def latency_interval_s(self) -> Interval | None:
        """Where that mean lies; None before it was timed."""
        return estimate_mean_interval([MeasuredValue(t.latency_s, t.interval_s) for t in self.timings])

    @property
    def metered(self) -> bool:
        """Whether its energy was measured."""
        return bool(self.meterings)

    @property
    def power_w(self) -> float:
        """Metered power, else the predicted one."""
        return (
            statistics.fmean(m.power_w for m in self.meterings) if self.meterings else self.predicted_power_w
        )

    @property
    def energy_j(self) -> float:
        """Joules per call: power times latency, both means over all measurements."""
        return self.power_w * self.latency_s

    def to_trial(self) -> Trial:
        """The record of it for the result."""
        last = (
            self.meterings[-1].conditions
            if self.meterings
            else self.timings[-1].conditions
            if self.timings
            else None
        )
        energies = tuple(MeasuredValue(m.energy_j, m.energy_interval_j) for m in self.meterings)
        return Trial(
            schedule=self.schedule,
            structure=self.structure,
            status=self.status,
            latency_s=self.latency_s if self.timings else None,
            latency_interval_s=self.latency_interval_s,
            power_w=_finite(self.power_w),
            energy_j=_finite(self.energy_j) if self.timings else None,
            energy_interval_j=estimate_mean_interval(energies),
            energies_j=energies,
            in_turn=self.in_turn,
            metered=self.metered,
            notes=tuple(dict.fromkeys(note for m in self.meterings for note in m.notes)),
            clock_mhz=_finite(last.clock_mhz) if last else None,
            throttle=last.throttle if last else (),
            round=self.round,
            checked=self.checked,
        )


def _describe_error(problem: Exception) -> str:
    """Its type and its text, on one line."""
    return " ".join(f"{type(problem).__name__}: {problem}".split())


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
