"""Timing on a scripted driver with a virtual clock: calls between two events, and when samples are enough."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ekc
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.cuda.loaded_kernel import LoadedKernel
from ekc.devices.cuda.messages import TimingRules, TimingSamples
from ekc.devices.cuda.timing import KernelTimer, sample_until_narrow
from ekc.devices.cuda.worker import LEAD_IN_S, call_back_to_back
from ekc.devices.statistics import compute_median_interval, compute_relative_width
from ekc.ir.comparison.compare import make_random_input_arrays
from ekc.ir.schedule.naive import make_naive_schedule
from tests.scripted.cuda.driver import ScriptedDriver

OP = ekc.matmul(4, 8, 4)
L2_BYTES = 40 << 20


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompiledKernel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EKC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield ekc.compile(make_naive_schedule(OP)).compiled


class Spy(ScriptedDriver):
    """Records the order of queued work; each launch may last as long as a test needs."""

    def __init__(self, durations: Iterator[float] | None = None, **script: object) -> None:
        super().__init__(**script)  # type: ignore[arg-type]
        self.order: list[str] = []
        self.durations = durations

    def record_event(self, event: int, stream: int) -> None:
        self.order.append("record")
        super().record_event(event, stream)

    def fill(self, address: int, byte: int, size: int, stream: int) -> None:
        self.order.append(f"fill {size}")
        super().fill(address, byte, size, stream)

    def launch_graph(self, graph: int, stream: int) -> None:
        self.order.append("replay")
        super().launch_graph(graph, stream)

    def _run(self, *arguments: object) -> None:
        self.order.append("launch")
        if self.durations is not None:
            self.launch_s = next(self.durations)
        super()._run(*arguments)  # type: ignore[arg-type]


def load(driver: Spy, kernel: CompiledKernel) -> LoadedKernel:
    driver.push_context(0)
    stage = LoadedKernel(driver)
    stage.load_kernel(kernel)
    return stage


def timed(driver: Spy, kernel: CompiledKernel, rules: TimingRules, l2_bytes: int = L2_BYTES) -> TimingSamples:
    return KernelTimer(load(driver, kernel), l2_bytes, lambda: driver.now_s).time(rules)


def test_long_calls_are_timed_one_by_one(kernel: CompiledKernel) -> None:
    driver = Spy(launch_s=4e-3)
    found = timed(driver, kernel, TimingRules())
    assert (found.method, found.calls_per_sample) == ("events", 1)
    assert np.median(found.samples_s) == pytest.approx(4e-3, rel=0.01)
    assert "replay" not in driver.order


def test_short_calls_are_replayed_so_that_the_host_does_not_count(kernel: CompiledKernel) -> None:
    driver = Spy(launch_s=5e-6)
    found = timed(driver, kernel, TimingRules())
    assert found.method == "graph replay"
    assert found.calls_per_sample * 5e-6 == pytest.approx(2e-3, rel=0.1)
    assert np.median(found.samples_s) == pytest.approx(5e-6, rel=0.03)


def test_call_that_the_host_launches_slowly_is_replayed_too(kernel: CompiledKernel) -> None:
    """Three short launches, say: the first measurement of an idle GPU shows the host, not the kernel."""

    class SlowHost(Spy):
        def launch(self, *arguments: object) -> None:
            if self.taping is None:
                self.now_s += 30e-6
            super().launch(*arguments)  # type: ignore[arg-type]

    found = timed(SlowHost(launch_s=5e-6), kernel, TimingRules())
    assert found.method == "graph replay"
    assert np.median(found.samples_s) == pytest.approx(5e-6, rel=0.03)


def test_first_call_that_loads_the_code_does_not_choose_the_method(kernel: CompiledKernel) -> None:
    driver = Spy(durations=itertools.chain([0.2], itertools.repeat(5e-6)))
    found = timed(driver, kernel, TimingRules())
    assert found.method == "graph replay"
    assert np.median(found.samples_s) == pytest.approx(5e-6, rel=0.03)


@pytest.mark.parametrize("launch_s", [5e-6, 1e-3])
def test_cold_calls_are_timed_one_by_one_after_the_l2_is_overwritten(
    launch_s: float, kernel: CompiledKernel
) -> None:
    driver = Spy(launch_s=launch_s)
    found = timed(driver, kernel, TimingRules(is_cold=True))
    assert found.calls_per_sample == 1
    assert np.median(found.samples_s) == pytest.approx(launch_s, rel=0.03), (
        "the time to overwrite is not in it"
    )
    first = driver.order.index(f"fill {2 * L2_BYTES}")
    one = [
        f"fill {2 * L2_BYTES}",
        "record",
        *(["replay", "launch"] if launch_s < 1e-4 else ["launch"]),
        "record",
    ]
    assert driver.order[first : first + 2 * len(one)] == one * 2


def test_small_l2_is_overwritten_for_as_long_as_the_host_needs_to_queue(kernel: CompiledKernel) -> None:
    driver = Spy(launch_s=5e-6)
    timed(driver, kernel, TimingRules(is_cold=True), 6 << 20)
    (size,) = {int(step.split()[1]) for step in driver.order if step.startswith("fill")}
    assert size / 1e12 > 50e-6, "of the fastest boards with an L2 as small"


def test_steady_calls_need_fewer_samples_than_noisy_ones(kernel: CompiledKernel) -> None:
    steady = timed(Spy(launch_s=4e-3), kernel, TimingRules(max_seconds=1e9))
    assert len(steady.samples_s) == TimingRules().first_check_samples
    random = np.random.default_rng(1)
    restless = Spy(iter(lambda: 4e-3 * math.exp(0.3 * random.standard_normal()), None))
    found = timed(restless, kernel, TimingRules(max_seconds=1e9))
    assert len(found.samples_s) == TimingRules().max_samples
    assert compute_relative_width(found.samples_s) > TimingRules().target_width


def test_sampling_ends_after_its_seconds(kernel: CompiledKernel) -> None:
    random = np.random.default_rng(1)
    driver = Spy(iter(lambda: 0.02 * math.exp(0.3 * random.standard_normal()), None))
    found = timed(driver, kernel, TimingRules(max_seconds=0.5))
    assert TimingRules().min_samples < len(found.samples_s) < 60
    slow = timed(Spy(launch_s=3.0), kernel, TimingRules())
    assert len(slow.samples_s) == TimingRules().min_samples


def test_inputs_are_filled_once_for_an_operator(kernel: CompiledKernel) -> None:
    driver = Spy(launch_s=4e-3)
    stage = load(driver, kernel)
    version = {address: memory.version for address, memory in driver.memory.items()}
    stage.load_kernel(kernel)
    assert {address: memory.version for address, memory in driver.memory.items()} == version
    held = [memory.data.view(np.float32) for memory in driver.memory.values()]
    for array in make_random_input_arrays(OP):
        assert any(np.array_equal(one, array.reshape(-1)) for one in held)


def test_kernel_is_loaded_by_its_machine_code_not_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path))
    loaded: list[bytes] = []

    class Loading(ScriptedDriver):
        def load(self, cubin: bytes) -> int:
            loaded.append(cubin)
            return super().load(cubin)

    driver = Loading()
    driver.push_context(0)
    stage = LoadedKernel(driver)
    one, other = (ekc.compile(make_naive_schedule(OP), arch).compiled for arch in ("sm_75", "sm_80"))
    assert one.cuda_source == other.cuda_source
    for kernel in (one, one, other):
        stage.load_kernel(kernel)
    assert loaded == [one.cubin, other.cubin]


@pytest.mark.parametrize("launch_s", [5e-6, 1e-3, 0.02])
def test_back_to_back_calls_are_all_counted_and_end_soon(launch_s: float, kernel: CompiledKernel) -> None:
    driver = Spy(launch_s=launch_s)
    stage = load(driver, kernel)
    with KernelTimer(stage, L2_BYTES).prepare_unit() as unit:
        driver.order.clear()
        answers = iter([False, False, False, True])
        calls = call_back_to_back(stage, unit, partial(next, answers))
    assert calls.count == driver.order.count("launch")
    assert calls.seconds == pytest.approx(calls.count * launch_s, rel=0.03)
    assert calls.seconds == pytest.approx(max(5 * 0.01, 5 * launch_s), rel=0.1)


@pytest.mark.parametrize("launch_s", [1e-3, 0.5])
def test_calls_of_the_lead_in_are_not_counted(launch_s: float, kernel: CompiledKernel) -> None:
    """Calls take twice as long for the first 0.15 s, as while a clock follows the power cap."""
    driver = Spy(launch_s=2 * launch_s)
    stage = load(driver, kernel)
    with KernelTimer(stage, L2_BYTES).prepare_unit() as unit:
        began, stops = driver.now_s, driver.now_s + 0.15 + 20 * max(0.01, launch_s)

        def should_stop() -> bool:
            driver.launch_s = launch_s if driver.now_s - began >= LEAD_IN_S else 2 * launch_s
            return driver.now_s >= stops

        calls = call_back_to_back(stage, unit, should_stop)
    assert calls.count < driver.order.count("launch")
    # The batch behind the lead-in was queued before it ended.
    assert calls.seconds / calls.count == pytest.approx(launch_s, rel=0.12)


@settings(deadline=None)
@given(st.integers(6, 200), st.integers(0, 2**32 - 1))
def test_interval_contains_the_median_of_the_samples(number: int, seed: int) -> None:
    samples = np.random.default_rng(seed).lognormal(size=number).tolist()
    found = compute_median_interval(samples)
    assert min(samples) <= found.low <= np.median(samples) <= found.high <= max(samples)


@pytest.mark.parametrize("number", [6, 8, 16, 32, 128])
def test_interval_of_one_check_covers_the_true_median(number: int) -> None:
    """Coverage over 4000 draws from a skewed distribution; the margin is for earlier checks."""
    draws = np.random.default_rng(number).exponential(size=(4000, number))
    found = [compute_median_interval(row) for row in draws.tolist()]
    held = np.mean([x.low <= math.log(2) <= x.high for x in found])
    assert 0.965 <= held <= 0.998


def test_interval_covers_the_true_median_after_any_number_of_checks() -> None:
    """Samples in one of two clock states by chance, half of them in each: a check that sees one state alone
    finds steady samples and ends the sampling. Share over 4000 such measurements."""
    rules, held, taken = TimingRules(), 0, 0
    for seed in range(4000):
        random = np.random.default_rng(seed)

        def take(number: int, random: np.random.Generator = random) -> list[float]:
            noise = 1 + 0.001 * random.standard_normal(number)
            return list(np.where(random.random(number) < 0.5, 1.00, 1.05) * noise)

        samples = sample_until_narrow(take, rules, lambda: 0.0)
        found = compute_median_interval(samples)
        held += found.low <= 1.025 <= found.high
        taken += len(samples) < rules.max_samples
    assert taken > 40, "there must be some that end too soon, or nothing was tried"
    assert held / 4000 >= 0.95


def test_stopping_rules_keep_the_coverage_of_the_interval() -> None:
    """Exact for any distribution: the number of samples below the true median is binomial. The share of walks
    that were outside the interval at one of the checks, or when time was over."""
    rules = TimingRules()
    looks = [rules.first_check_samples]
    while looks[-1] < rules.max_samples:
        looks.append(min(2 * looks[-1], rules.max_samples))
    for last in range(rules.min_samples, rules.max_samples + 1):
        below, missed = np.array([1.0]), 0.0
        for number in range(1, last + 1):
            below = np.convolve(below, [0.5, 0.5])
            if number in (*looks, last):
                ranks = np.arange(number, dtype=float)
                rank = int(compute_median_interval(ranks.tolist()).low)
                out = np.r_[: rank + 1, number - rank : number + 1]
                missed += float(below[out].sum())
                below[out] = 0.0
        assert missed <= 0.05
