"""Packed inputs: factors for tensor cores whose last dimension a window moves over."""

from __future__ import annotations

import pytest

import ekc
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.schedule import Pack, Tensorize
from ekc.search.sketches.multi_level_tiling import derive_structures
from ekc.search.space.space import Space
from tests.emulator.generated import run
from tests.search.helpers import sample_legal

CONV = {"out_channels": 64, "kernel": 3, "padding": 1}
IMAGE = Pack("X", (0, 2, 3, 1))
WEIGHTS = Pack("W", (0, 2, 3, 1))
CASES: dict[str, tuple[ekc.Operator, tuple[Pack, ...]]] = {
    "channels first": (ekc.conv2d(1, 32, 14, 14, dtype="float16", **CONV), (IMAGE, WEIGHTS)),
    "bytes": (ekc.conv2d(1, 32, 14, 14, dtype="int8", **CONV), (IMAGE, WEIGHTS)),
    "one dimension": (
        ekc.conv1d(1, 32, 28, out_channels=64, kernel=3, dtype="bfloat16"),
        (Pack("X", (0, 2, 1)), Pack("W", (0, 2, 1))),
    ),
    "a written contraction": (
        ekc.einsum("abk,kbc->ac", (64, 8, 32), (32, 8, 64), dtype="float16"),
        (),
    ),
    "taps last": (
        ekc.einsum("akt,kct->ac", (64, 32, 9), (32, 64, 9), dtype="float16"),
        (Pack("A", (0, 2, 1)), Pack("B", (1, 2, 0))),
    ),
    "fewer channels than taps": (
        ekc.conv2d(1, 3, 14, 14, out_channels=64, kernel=7, padding=3, dtype="float16"),
        (IMAGE, WEIGHTS),
    ),
    "channels last": (ekc.conv2d(1, 32, 14, 14, dtype="float16", layout="NHWC", **CONV), ()),
    "no window": (ekc.conv2d(1, 32, 14, 14, out_channels=64, kernel=1, dtype="float16"), ()),
    "only a row of taps": (
        ekc.conv2d(1, 32, 14, 14, out_channels=64, kernel=(3, 1), dtype="float16"),
        (),
    ),
    "product": (ekc.matmul(64, 64, 64, dtype="float16", transpose_a=True), ()),
    "no tensor cores": (ekc.conv2d(1, 32, 14, 14, **CONV), ()),
    "never stored": (ekc.conv2d(1, 32, 14, 14, dtype="tf32", **CONV), ()),
}


@pytest.mark.parametrize("name", CASES)
def test_packed_inputs_follow_from_the_expression(name: str) -> None:
    op, expected = CASES[name]
    found = [s for s in derive_structures(op, LaunchLimits()) if any(isinstance(x, Pack) for x in s.steps)]
    assert bool(found) == bool(expected)
    for s in found:
        assert tuple(x for x in s.steps if isinstance(x, Pack)) == expected
        assert any(isinstance(x, Tensorize) for x in s.steps)
        assert s.name.startswith("packed ")


def test_target_without_tensor_cores_packs_nothing() -> None:
    op, _ = CASES["channels first"]
    assert not [s for s in derive_structures(op, LaunchLimits(tensor_cores=False)) if "packed" in s.name]


def test_other_sums_are_not_packed() -> None:
    first, _ = CASES["channels first"]
    both = first.then(
        "Z",
        axes={"zo": 64, "zp": 14, "zq": 14},
        reduce={"zc": 64},
        inputs={"V": (64, 64)},
        body=lambda Y, V, zo, zp, zq, zc: Y[0, zc, zp, zq] * V[zo, zc],
        dtype="float16",
    )
    found = [s for s in derive_structures(both, LaunchLimits()) if s.name.startswith("packed ")]
    assert found
    assert all("Y/tensor" in s.name for s in found)


@pytest.mark.parametrize("dtype", ["float16", pytest.param("int8", marks=pytest.mark.exhaustive)])
def test_packed_schedule_matches_reference(dtype: str) -> None:
    op = ekc.conv2d(1, 16, 6, 10, out_channels=24, kernel=3, padding=1, dtype=dtype)
    space = Space(op, LaunchLimits())
    packed = [i for i, s in enumerate(space.structures) if s.name.startswith("packed ")]
    legal = sample_legal(space, 400, among=packed, most=8)
    assert len(legal) >= 4
    for row in range(len(legal)):
        run(space.build_schedule(legal, row)).check()
