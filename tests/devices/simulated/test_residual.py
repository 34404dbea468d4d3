"""Residuals of simulated devices: similar kernels share most of a factor, a small part is the kernel's
own."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.simulated.launch_counts import profile_kernel
from ekc.devices.simulated.operating_point import KernelWork, compute_work
from ekc.devices.simulated.residual import (
    LENGTH_SCALE_OCTAVES,
    OWN_POWER_SIGMA,
    OWN_TIME_SIGMA,
    SHARED_POWER_SIGMA,
    SHARED_TIME_SIGMA,
    compute_traits,
    sample_own_factor,
    sample_shared_factor,
)
from ekc.devices.simulated.specs import A100, RTX3090
from tests.devices import samples

DIMENSIONS = 24
DEVICES = [f"device {n}" for n in range(1500)]
"""Names of many devices, because one device has one path only."""
octaves = arrays(np.float64, DIMENSIONS, elements=st.floats(0.0, 12.0))


def todo(kernel: CompiledKernel) -> KernelWork:
    return compute_work(A100, kernel, profile_kernel(kernel))


def looks(kernel: CompiledKernel) -> NDArray[np.float64]:
    return compute_traits(*todo(kernel).launches[0])


def test_shared_part_has_the_size_it_says() -> None:
    place = looks(samples.sgemm(1024))
    for shared, size in (
        (partial(sample_shared_factor, quantity="time"), SHARED_TIME_SIGMA),
        (partial(sample_shared_factor, quantity="power"), SHARED_POWER_SIGMA),
    ):
        logs = np.log([shared(device, traits=place) for device in DEVICES])
        assert np.std(logs) == pytest.approx(size, rel=0.1)
        assert abs(np.mean(logs)) < 4 * size / np.sqrt(len(DEVICES))


@pytest.mark.parametrize("distance", [0.25, 1.0, 2.0])
def test_shared_part_decorrelates_over_its_length_scale(distance: float) -> None:
    here = looks(samples.sgemm(1024))
    there = here + distance * LENGTH_SCALE_OCTAVES / np.sqrt(DIMENSIONS)
    pairs = np.log(
        [[sample_shared_factor(d, "time", here), sample_shared_factor(d, "time", there)] for d in DEVICES]
    )
    # Four standard errors of a correlation, and what so few cosines add.
    assert np.corrcoef(pairs.T)[0, 1] == pytest.approx(np.exp(-0.5 * distance**2), abs=0.12)


@given(octaves, octaves)
def test_near_traits_have_near_factors(here: NDArray[np.float64], step: NDArray[np.float64]) -> None:
    there = here + 1e-3 * step
    moved = float(np.linalg.norm(there - here))
    # Its slope is normal, of a standard deviation of one size a length, in any direction.
    steepest = 10 * SHARED_TIME_SIGMA / LENGTH_SCALE_OCTAVES
    assert (
        abs(np.log(sample_shared_factor("a100", "time", here) / sample_shared_factor("a100", "time", there)))
        <= steepest * moved + 1e-12
    )


def test_own_parts_have_the_size_they_say_and_differ_by_content() -> None:
    times = np.log([sample_own_factor("a100", "time", str(n)) for n in range(2000)])
    powers = np.log([sample_own_factor("a100", "power", str(n)) for n in range(2000)])
    assert np.std(times) == pytest.approx(OWN_TIME_SIGMA, rel=0.1)
    assert np.std(powers) == pytest.approx(OWN_POWER_SIGMA, rel=0.1)
    assert len(set(times)) == 2000
    assert abs(np.corrcoef(times, powers)[0, 1]) < 0.1


def test_devices_and_figures_have_paths_of_their_own() -> None:
    place = looks(samples.sgemm(1024))
    pairs = np.log(
        [[sample_shared_factor(d, "time", place), sample_shared_factor(d, "power", place)] for d in DEVICES]
    )
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.12
    assert sample_shared_factor("a100", "time", place) == sample_shared_factor("a100", "time", place.copy())
    assert sample_shared_factor("a100", "time", place) != sample_shared_factor("rtx3090", "time", place)


def test_another_text_of_the_same_work_differs_by_its_own_part_only() -> None:
    kernel = samples.sgemm(1024)
    renamed = replace(kernel, cuda_source=kernel.cuda_source + "\n// the same work\n")
    (one,), (other,) = todo(kernel).time_factors, todo(renamed).time_factors
    assert one != other
    assert abs(np.log(one / other)) < 10 * OWN_TIME_SIGMA


def test_traits_separate_kinds_of_kernels_and_not_sizes() -> None:
    small, large = looks(samples.sgemm(2048)), looks(samples.sgemm(4096))
    other = looks(samples.naive(4096))
    assert np.isfinite(other).all()
    assert len(other) == DIMENSIONS
    assert np.linalg.norm(small - large) < LENGTH_SCALE_OCTAVES < np.linalg.norm(large - other)


def test_call_of_several_launches_has_a_factor_for_each() -> None:
    first, second = samples.sgemm(1024), samples.naive(1024)
    both = replace(
        first, launches=first.launches + second.launches, resources=first.resources + second.resources
    )
    found = compute_work(A100, both, (*profile_kernel(first), *profile_kernel(second)))
    assert len(found.time_factors) == 2
    ratio = found.time_factors[0] / found.time_factors[1]
    places = [compute_traits(*launch) for launch in found.launches]
    assert ratio == pytest.approx(
        sample_shared_factor("a100", "time", places[0]) / sample_shared_factor("a100", "time", places[1])
    )


def test_kernel_that_fits_elsewhere_has_other_factors_there() -> None:
    kernel = samples.sgemm(1024)
    there = compute_work(RTX3090, kernel, profile_kernel(kernel))
    assert there.time_factors != todo(kernel).time_factors
