"""The prior of a GPU with a known data sheet: the model of the simulator on counts that nothing compiled."""

from __future__ import annotations

import numpy as np
import pytest

import ekc.ir.operators as o
from ekc import devices
from ekc.codegen.generate import compile_schedule
from ekc.devices import analytic_prior
from ekc.devices.device import Prior, Quantities
from ekc.devices.simulated import data_sheet_prior
from ekc.devices.simulated.launch_counts import profile_kernel
from ekc.devices.simulated.operating_point import compute_work
from ekc.devices.simulated.specs import A100, H100, RTX2080TI, RTX3090, GpuSpec
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.schedule.schedule import Schedule
from ekc.search.space.space import Space
from tests.search.helpers import legal, sample_legal, space

NAMES = ("matmul", "fp16 512", "int8", "conv depthwise", "softmax", "columns", "two computes")
WORK = (
    "total_operations",
    "total_loop_steps",
    "total_conversions",
    "total_shuffles",
    "total_barriers",
    "total_tensor_products",
    "total_global_passes",
    "total_global_load_sectors",
    "total_shared_load_wavefronts",
    "total_one_pass_requests",
    "direct_load_words",
    "tile_load_words",
    "copy_waits",
    "needed_registers",
    "l2_bytes",
    "dram_bytes",
    "launches",
)


FIGURES = ("latency_s", "power_w", "standby_w")


def _predict(quantities: Quantities, spec: GpuSpec = A100) -> Prior:
    return data_sheet_prior.predict_prior(spec, quantities, float(spec.boost_mhz))


def _check_figures(prior: Prior, count: int) -> None:
    for figure in FIGURES:
        values = getattr(prior, figure)
        assert values.shape == (count,)
        assert (np.isfinite(values) & (values > 0)).all()
    assert (prior.power_w > prior.standby_w).all()


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_positive_and_finite(name: str) -> None:
    quantities = space(name).compute_quantities(legal(name, 300))
    count = len(quantities["blocks"])
    for spec in (A100, RTX3090, RTX2080TI):
        _check_figures(_predict(quantities, spec), count)


def test_figures_of_warpgroup_products() -> None:
    op = o.matmul(1024, 1024, 1024, dtype="float16")
    hopper = Space(op, H100.limits())
    population = sample_legal(hopper, 400)
    quantities = hopper.compute_quantities(population)
    assert (quantities["group_waits"] > 0).any()
    prior = _predict(quantities, H100)
    _check_figures(prior, len(population))
    best = {on: prior.latency_s[(quantities["total_group_products"] > 0) == on].min() for on in (True, False)}
    assert best[True] < best[False], "only warpgroup products feed Hopper's tensor cores in full"


@pytest.mark.parametrize("name", ["matmul", "fp16 512"])
def test_one_schedule_has_the_figures_of_its_row_among_many(name: str) -> None:
    quantities = space(name).compute_quantities(legal(name, 40))
    together = _predict(quantities)
    for row in (0, 7, 23):
        alone = _predict({key: values[row : row + 1] for key, values in quantities.items()})
        for figure in FIGURES:
            np.testing.assert_array_equal(
                getattr(alone, figure)[0], getattr(together, figure)[row], err_msg=figure
            )


@pytest.mark.parametrize("name", ["matmul", "fp16 512"])
def test_more_work_takes_no_less_time_and_energy(name: str) -> None:
    quantities = space(name).compute_quantities(legal(name, 200))
    before = _predict(quantities)
    for kind in WORK:
        after = _predict({**quantities, kind: 2.0 * quantities[kind] + 1.0})
        # More sectors of the same bytes hit L1 more often, and the mean load is shorter.
        if not kind.endswith("load_sectors"):
            assert (after.latency_s >= (1 - 1e-9) * before.latency_s).all(), kind
        work_j = [(one.power_w - one.standby_w) * one.latency_s for one in (before, after)]
        assert (work_j[1] >= (1 - 1e-9) * work_j[0]).all(), kind
    slower = data_sheet_prior.predict_prior(A100, quantities, 700.0)
    assert (slower.latency_s >= before.latency_s).all()
    assert (slower.power_w < before.power_w).all()


def _tiled(stages: int = 1, copy: str = "register", tensors: str = "AB") -> Schedule:
    """A float32 matrix product of 64 x 64 tiles; `tensors` come through shared memory."""
    s = Schedule(o.matmul(512, 512, 512)).split("i", (16, 4)).split("j", (16, 4)).split("k", (16,))
    s = s.reorder("i.0", "j.0", "i.1", "j.1", "k.0", "k.1", "i.2", "j.2")
    s = s.bind("i.0", "block.y").bind("j.0", "block.x").bind("i.1", "thread.y").bind("j.1", "thread.x")
    s = s.cache_write("C", "register")
    for tensor in tensors:
        s = s.cache_read(tensor, "shared", at="k.0", vector=1)
    return s.pipeline("k.0", stages, copy=copy) if stages > 1 else s


@pytest.mark.parametrize(
    "schedule",
    [_tiled(), _tiled(tensors="B"), _tiled(tensors=""), _tiled(2), _tiled(2, "async")],
    ids=["staged", "one staged", "direct", "pipelined", "asynchronous"],
)
def test_estimated_counts_are_those_of_the_compiled_kernel(schedule: Schedule) -> None:
    quantities = analyse_program(schedule.program, A100.limits())
    estimated, resident = data_sheet_prior.estimate_events(A100, quantities)
    kernel = compile_schedule(schedule, A100.arch, A100.limits())
    ((counted, known),) = compute_work(A100, kernel, profile_kernel(kernel), has_residual=False).launches
    for name in ("blocks", "warps_per_block", "fma32", "barriers", "tile_waits", "tiles_ahead"):
        assert getattr(estimated, name)[0] == pytest.approx(getattr(counted, name), rel=0.02), name
    for name in ("lsu_cycles", "shared_requests", "shared_wavefronts"):
        assert getattr(estimated, name)[0] == pytest.approx(getattr(counted, name), rel=0.1, abs=1.0), name
    for name in ("requests", "sectors", "l2_bytes"):
        expected = getattr(counted.traffic, name)
        assert getattr(estimated.traffic, name)[0] == pytest.approx(expected, rel=0.1), name
    assert estimated.issued_instructions[0] == pytest.approx(counted.issued_instructions, rel=0.35)
    for guess, found in zip(estimated.path_cycles[0], counted.path_cycles, strict=True):
        assert 0.2 <= guess / found <= 4.0
    assert resident.blocks[0] == pytest.approx(known.blocks, rel=0.5)


def test_tile_that_exceeds_the_registers_is_slow() -> None:
    """Twice the tile halves the loads, but 256 sums do not fit the 255 registers of a thread."""
    seconds = []
    for tile in (8, 16):
        s = Schedule(o.matmul(1024, 1024, 1024)).split("i", (8, tile)).split("j", (8, tile)).split("k", (8,))
        s = s.reorder("i.0", "j.0", "i.1", "j.1", "k.0", "k.1", "i.2", "j.2").unroll("k.1")
        s = s.bind("i.0", "block.y").bind("j.0", "block.x").bind("i.1", "thread.y").bind("j.1", "thread.x")
        s = (
            s.cache_write("C", "register")
            .cache_read("A", "shared", at="k.0")
            .cache_read("B", "shared", at="k.0")
        )
        seconds.append(_predict(analyse_program(s.program, A100.limits())).latency_s[0])
    assert seconds[1] > 2 * seconds[0]


@pytest.mark.parametrize("name", ["a100", "rtx2080ti", "a100@no-residual"])
def test_simulated_device_does_not_use_its_own_model(name: str) -> None:
    device, quantities = devices.open(name), space("matmul").compute_quantities(legal("matmul", 100))
    found, expected = device.prior(quantities), analytic_prior.predict_prior(quantities, device.peaks)
    for figure in FIGURES:
        np.testing.assert_array_equal(getattr(found, figure), getattr(expected, figure))
    assert not np.allclose(found.latency_s, _predict(quantities).latency_s, rtol=0.05)
