"""Made-up kernels over clocks, with exact figures of a simple law, and plans of them."""

from __future__ import annotations

from ekc.search.clocks.choose import KernelFront, LayerFront, ModelFronts, make_plan
from ekc.search.clocks.plan import ClockPlan, Estimate

CLOCKS = (900, 1000, 1100, 1200)


def make_kernel(
    digest: str,
    fixed_s: float,
    core_s_ghz: float,
    joules: float,
    role: str = "front",
    clocks: tuple[int, ...] = CLOCKS,
) -> KernelFront:
    """Latency a + b / f, and an energy that grows with the square of the clock: `joules` at 1000 MHz."""
    latency = tuple(make_value(fixed_s + core_s_ghz * 1e3 / mhz) for mhz in clocks)
    energy = tuple(make_value(joules * (mhz / 1e3) ** 2) for mhz in clocks)
    return KernelFront(digest, role, latency, energy, (True,) * len(clocks))


def make_value(value: float, error: float = 0.01) -> Estimate:
    return Estimate(value, value * (1 - error), value * (1 + error))


def make_fronts() -> ModelFronts:
    """Two layers: one waits for memory, the other computes. The second has a fast and a frugal kernel."""
    copy = LayerFront(
        "copy", "c0", {"prefill": 1, "decode": 9}, (make_kernel("k0", 1.0, 0.0, 1.0, "fastest"),)
    )
    fast = make_kernel("k1", 0.0, 1.0, 3.0, "fastest")
    frugal = make_kernel("k2", 0.0, 1.1, 2.5, "best")
    product = LayerFront("product", "p0", {"prefill": 4}, (fast, frugal))
    return ModelFronts("a100", True, CLOCKS, 1200, (copy, product))


def make_small_plan() -> ClockPlan:
    return make_plan(make_fronts(), 0.05)
