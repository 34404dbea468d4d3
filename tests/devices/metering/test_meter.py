import numpy as np
import pytest

from ekc.devices.metering.meter import MeteringWindow, meter_kernel
from ekc.devices.simulated.device import TICK_S, EnergyCounter, VirtualBoard
from ekc.devices.simulated.operating_point import SteadyState
from ekc.devices.simulated.residual import make_generator
from ekc.devices.simulated.specs import A100
from ekc.devices.statistics import student_t
from tests.devices import samples


class OpenBoard(VirtualBoard):
    """Records the true power, which the meter cannot read."""

    def __init__(self, state: SteadyState, seed: int) -> None:
        super().__init__(A100, 1275.0, state, make_generator("test", seed))
        self.log: list[tuple[float, float]] = []
        self.true_energy_j = 0.0

    def _advance(self, seconds: float) -> None:
        self.true_energy_j += self._compute_power_w() * seconds
        super()._advance(seconds)

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        self.log.append((self.now_s(), self.true_energy_j))

    def true_power(self, window: MeteringWindow) -> float:
        # The last entry is the call that `stop` finished.
        times, joules = np.transpose(self.log[:-1])
        ends = np.interp([times[-1] - window.seconds, times[-1]], times, joules)
        return float(ends[1] - ends[0]) / window.seconds


def metered(call_s: float, seconds: float, seed: int) -> tuple[MeteringWindow, float]:
    board = OpenBoard(SteadyState(call_s, 1275.0, 150.0, ()), seed)
    window = meter_kernel(board, samples.copy(1024), call_s, seconds)
    return window, board.true_power(window)


@pytest.mark.parametrize("seconds", [1.0, 3.0])
def test_power_is_right_within_a_percent(seconds: float) -> None:
    errors = [window.power_w / true - 1 for window, true in (metered(1e-4, seconds, s) for s in range(40))]
    assert np.max(np.abs(errors)) < 0.012
    assert np.sqrt(np.mean(np.square(errors))) < 0.005
    assert abs(np.mean(errors)) < 0.003


@pytest.mark.parametrize("call_s", [1e-5, 9e-3])
def test_interval_contains_the_true_power_95_percent_of_the_time(call_s: float) -> None:
    draws = [metered(call_s, 1.0, seed) for seed in range(200)]
    held = [window.power_interval_w.low <= true <= window.power_interval_w.high for window, true in draws]
    assert 0.90 <= np.mean(held) <= 0.99


def test_estimators_agree() -> None:
    window, _ = metered(1e-4, 2.0, 7)
    assert window.sampled_power_w == pytest.approx(window.power_w, rel=0.02)


def test_window_has_time_per_call_and_idle_power() -> None:
    window, _ = metered(1e-4, 1.0, 3)
    assert window.call_s == pytest.approx(1e-4)
    # Recorded idle power of an A100: 44 W at its lowest clock, 67 W at its highest.
    assert 44 < window.idle_power_w < 67


def test_window_is_made_of_whole_ticks() -> None:
    window, _ = metered(1e-4, 1.0, 5)
    assert window.seconds == pytest.approx(len(window.samples_w) * TICK_S, abs=0.003)
    assert 1.0 <= window.seconds < 1.2


def test_slow_kernel_gets_a_longer_window() -> None:
    window, true = metered(0.8, 1.0, 1)
    assert window.seconds >= 4.0
    assert window.call_s == pytest.approx(0.8)
    assert window.power_w == pytest.approx(true, rel=0.01)


def test_counter_moves_on_ticks_only() -> None:
    counter = EnergyCounter(np.random.default_rng(0))
    seen = []
    for _ in range(1000):
        counter.advance(100.0, 0.001)
        seen.append(counter.displayed_mj)
    steps = np.diff(seen)
    assert np.count_nonzero(steps) == pytest.approx(10, abs=1)
    assert steps[steps > 0][1:] == pytest.approx(10_000, rel=0.05)


QUANTILES = {
    1: 12.7062,
    2: 4.30265,
    3: 3.18245,
    4: 2.77645,
    5: 2.57058,
    7: 2.36462,
    19: 2.09302,
    100: 1.98397,
}


@pytest.mark.parametrize("freedom", QUANTILES)
def test_student_t_matches_the_table(freedom: int) -> None:
    assert student_t(freedom) == pytest.approx(QUANTILES[freedom], rel=0.0015 if freedom == 3 else 0.0004)
