"""CLBlast configurations as kernels of ekc: right results, and the accesses that the formulas say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.common import clblast, estimated
from ekc.devices.simulated.launch_counts import AccessGroup, profile_kernel
from ekc.ir.comparison.compare import make_random_input_arrays
from ekc.runtime.execute import execute

SIDE = 128
PLAIN = clblast.Xgemm(32, 64, 32, 8, 16, 0, 0, 2, 2, 1, 0, 0, 0, 0)
CONFIGURATIONS = {
    "from global": PLAIN,
    "A shared": replace(PLAIN, sa=1, mdima=8),
    "B shared": replace(PLAIN, sb=1, ndimb=32),
    "scalars": replace(PLAIN, sa=1, sb=1, mdima=16, ndimb=16, vwm=1, vwn=1),
    "strided": replace(PLAIN, sa=1, sb=1, mdima=8, ndimb=16, strm=1, strn=1, vwn=2),
    "wide": replace(PLAIN, mwg=64, nwg=128, sa=1, sb=1, mdima=8, ndimb=16, vwm=8, vwn=4),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_kernel_matches_the_product(name: str) -> None:
    one = CONFIGURATIONS[name]
    op = clblast.build_schedule(one, SIDE).op
    a, b = make_random_input_arrays(op)
    (run,) = execute(op, clblast.compile_kernel(one, SIDE, "sm_80"), (a, b))
    assert not run.report.findings
    assert run.is_written.all()
    np.testing.assert_allclose(run.output, a.T.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_estimate_matches_the_compiled_kernel(name: str) -> None:
    one = CONFIGURATIONS[name]
    kernel = clblast.compile_kernel(one, SIDE, "sm_80")
    launch, resources, guessed = estimated.estimate_work(one, SIDE)
    (ran,) = profile_kernel(kernel)
    assert launch.grid == kernel.launches[0].grid
    assert resources.shared_bytes == kernel.resources[0].shared_bytes
    assert guessed.counts.fma32 == ran.counts.fma32
    assert guessed.counts.barrier == ran.counts.barrier
    for space in ("global", "shared"):
        for kind in ("load", "store"):
            for figure in ("wavefronts", "sectors"):
                assert _total(guessed.accesses, space, kind, figure) == pytest.approx(
                    _total(ran.accesses, space, kind, figure)
                ), (space, kind, figure)


def _total(accesses: tuple[AccessGroup, ...], space: str, kind: str, figure: str) -> float:
    chosen = (one for one in accesses if (one.space, one.kind) == (space, kind))
    return sum(one.requests * getattr(one, figure) for one in chosen)


def test_copy_by_neighbours_has_bank_conflicts() -> None:
    one = replace(PLAIN, sb=1, ndimb=8, vwn=1)
    few, many = (
        _total(
            profile_kernel(clblast.compile_kernel(kind, SIDE, "sm_80"))[0].accesses,
            "shared",
            "store",
            "wavefronts",
        )
        for kind in (replace(one, strn=1), one)
    )
    # Eight lanes a row: next to each other in eight banks, or at a distance of eight words in four.
    assert many == 2 * few


def test_scalar_loads_are_not_joined() -> None:
    ptx = clblast.compile_kernel(CONFIGURATIONS["scalars"], SIDE, "sm_80").ptx
    assert "ld.shared.f32" in ptx or "ld.shared.b32" in ptx
    assert "ld.shared.v" not in ptx


def test_threads_of_a_missing_copy_are_ignored() -> None:
    row = {"MWG": 32, "NWG": 64, "KWG": 32, "MDIMC": 8, "NDIMC": 16, "MDIMA": 8, "NDIMB": 32, "KWI": 2}
    row |= {"VWM": 2, "VWN": 1, "STRM": 0, "STRN": 0, "SA": 0, "SB": 1}
    assert clblast.parse_configuration({k: str(v) for k, v in row.items()}) == replace(PLAIN, sb=1, ndimb=32)
