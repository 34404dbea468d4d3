"""Predictions of the analysis beside counts of the PTX machine, for the same schedules.

The analysis reads a tree and knows two habits of the compiler (`ekc.ir.analysis.issued_accesses`). The
machine executes the PTX that NVRTC made, and does not know the tree. Where the schedule alone decides, the
two agree exactly. Where the compiler decides (which accesses it joins, keeps or drops, and whether it
computes guarded code anyway), the test bounds the measured distance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import ekc.ir.expr as ex
import ekc.ir.operators as o
from ekc.codegen.cache import compile_cached
from ekc.codegen.generate import generate
from ekc.ir.schedule.schedule import Schedule
from tests.codegen import samples
from tests.drawn.features import breed_schedule, breed_schedules, step_schedules
from tests.emulator.generated import Ran, run
from tests.emulator.predicted import (
    QUANTITIES,
    check_traffic,
    count_traffic,
    multiplies_and_adds,
    predict_traffic,
)
from tests.ir.tilings import TILES, bind_loops

MANY = 80
"""Schedules of each kind in the slow test."""
FEW: dict[str, Callable[[], list[Schedule]]] = {
    "bred": lambda: [breed_schedule(name, seed) for name in ("matvec", "matmul 64") for seed in range(5)],
    "stepped": lambda: step_schedules(10),
}
"""Schedules of the fast test, some of them with shuffles and barriers."""
DECIDED = {
    "bred": ("barriers", "shuffles", "shared_store_requests"),
    "stepped": ("barriers", "shared_store_requests"),
}
"""The schedule alone decides these. None of the stepped schedules has a shuffle."""


def kept_ptx(source: str, arch: str) -> str:
    return compile_cached(source, arch).ptx


def compute_ratios(schedules: list[Schedule]) -> dict[str, np.ndarray]:
    """Predicted over counted, by quantity, where either is not 0."""
    found: dict[str, list[float]] = {name: [] for name in QUANTITIES}
    for schedule in schedules:
        ran = run(schedule, ptx=kept_ptx)
        expected, counted = predict_traffic(schedule), count_traffic(ran)
        for name in QUANTITIES:
            # Where a sum has one term, the compiler leaves a product and no fma.
            if name == "fma" and not (multiplies_and_adds(schedule.op) and counted["fma"]):
                continue
            if expected[name] or counted[name]:
                found[name].append(expected[name] / counted[name] if counted[name] else np.inf)
    return {name: np.array(values) for name, values in found.items()}


MEASURED: dict[str, dict[str, tuple[float, float, float]]] = {
    # (share of schedules with an exact prediction, and the range of ratios of 8 in 10), with NVRTC 13:
    # 240 bred schedules, and the 80 stepped ones that the test draws.
    "bred": {
        # Sums that are not stored are dropped; a guarded sum may be computed and thrown away.
        "fma": (0.91, 1.0, 1.0),
        # Neighbours beyond one vector are joined 4 and 2 (a run of 6 is predicted as 3 times 2), and constant
        # iterations that a guard rules out are not written.
        "shared_load_requests": (0.77, 1.0, 1.34),
        "shared_load_wavefronts": (0.77, 1.0, 1.34),
        "shared_store_wavefronts": (0.98, 1.0, 1.0),
        "global_load_requests": (0.57, 1.0, 1.13),
        "global_store_requests": (0.97, 1.0, 1.0),
        # Lanes that a guard stops are taken off every sector alike; really whole rows of them go.
        "global_load_sectors": (0.33, 0.90, 1.08),
        "global_store_sectors": (0.57, 0.88, 1.0),
    },
    "stepped": {
        # Whole loops of these small kernels are unrolled, dropped and folded.
        "fma": (0.84, 1.0, 1.35),
        "shared_load_requests": (0.82, 1.0, 1.0),
        "shared_load_wavefronts": (0.82, 1.0, 1.0),
        "shared_store_wavefronts": (1.0, 1.0, 1.0),
        "global_load_requests": (0.29, 0.70, 1.69),
        "global_store_requests": (0.90, 1.0, 1.0),
        "global_load_sectors": (0.19, 0.71, 1.65),
        "global_store_sectors": (0.76, 0.95, 1.01),
    },
}


ERRORS = 2.5
"""Standard errors by which a share may differ: any change of the search draws other schedules."""
BEYOND = 0.1
"""Share beyond either end."""


@pytest.mark.parametrize("half", ["bred", "stepped"])
def test_predictions_of_what_the_schedule_decides_are_exact(half: str) -> None:
    check_exact(half, compute_ratios(FEW[half]()))


@pytest.mark.slow
@pytest.mark.parametrize("half", ["bred", "stepped"])
def test_predictions_are_exact_or_within_measured_distance(half: str) -> None:
    """One test for both, because the kernels take long to draw and to run."""
    ratios = compute_ratios({"bred": breed_schedules, "stepped": step_schedules}[half](MANY))
    check_exact(half, ratios)
    bounds = MEASURED[half].items()
    problems = [problem for name, limits in bounds for problem in _list_problems(name, ratios[name], *limits)]
    assert not problems, "\n".join(problems)


def check_exact(half: str, ratios: dict[str, np.ndarray]) -> None:
    for name in DECIDED[half]:
        assert ratios[name].size
        np.testing.assert_allclose(ratios[name], 1.0, rtol=1e-9, err_msg=name)


def _list_problems(name: str, found: np.ndarray, exact: float, low: float, high: float) -> Iterator[str]:
    """Problems with the ratios of a quantity."""

    def most_off(share: float) -> float:
        return ERRORS * float(np.sqrt(share * (1 - share) / len(found)))

    equal = np.isclose(found, 1.0, rtol=1e-9)
    if not equal.mean() >= exact - most_off(exact):
        yield f"{name}: {equal.mean()} of them are exact, of {exact}"
    for beyond in (found < low, found > high):
        share = (beyond & ~equal).mean()
        if not share <= BEYOND + most_off(BEYOND):
            yield f"{name}: {share} of them are beyond one of {low} and {high}"


@pytest.mark.parametrize("pad", [0, 1, 4])
def test_wavefronts_of_a_transpose_are_predicted_exactly(pad: int) -> None:
    """Bank conflicts of a transposing copy: predicted from steps, counted from addresses."""
    op = o.compute(
        "turned", axes={"i": 64, "j": 64}, inputs={"X": (64, 64)}, body=lambda X, i, j: X[j, i], output="Y"
    )
    s = Schedule(op).split("i", (32,)).split("j", (32,)).reorder("i.0", "j.0", "i.1", "j.1")
    schedule = bind_loops(s, TILES).cache_read("X", "shared", order=(1, 0), pad=pad)
    all_equal(run(schedule, ptx=kept_ptx))


@pytest.mark.parametrize("pipeline", [False, True])
def test_tiled_matmul_is_predicted_exactly(pipeline: bool) -> None:
    all_equal(run(samples.matmul(128, 128, 32, pipeline=pipeline), ptx=kept_ptx))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_epilogue_reads_are_predicted_exactly(dtype: str) -> None:
    """A bias by vectors, once for all rows; a scale of each row, once for all columns; a residual."""
    op = o.matmul(128, 128, 32, dtype=dtype).epilogue(
        lambda c, bias, scale, before: ex.relu(c + bias) * scale + before,
        bias=(128,),
        scale=(128, 1),
        before=(128, 128),
    )
    schedule = samples.tiled(op).compute_inline("C")
    assert "reinterpret_cast<const" in generate(schedule).source.partition("bias_vector[0]")[2]
    all_equal(run(schedule, ptx=kept_ptx))


def test_copy_moved_out_of_a_pipeline_leaves_no_barrier() -> None:
    schedule = (
        Schedule(o.matmul(8, 8, 16))
        .split("k", (2, 4))
        .reorder("i", "k.0", "k.1", "k.2", "j")
        .cache_write("C")
        .cache_read("A", "shared", at="k.0")
        .pipeline("k.0")
        .compute_at("A.shared", "k.1")
    )
    ran = run(schedule, ptx=kept_ptx)
    ran.check()
    # Two waits in each of the 8 * 2 * 2 turns of k.1, none for the loop that copies nothing any more.
    assert count_traffic(ran)["barriers"] == predict_traffic(schedule)["barriers"] == 64


def all_equal(ran: Ran) -> None:
    fma = multiplies_and_adds(ran.schedule.op)
    check_traffic(ran, [name for name in QUANTITIES if name != "fma" or fma])
