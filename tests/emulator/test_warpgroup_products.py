"""Products of a warpgroup in the PTX machine: right and clean, from every layout of the ISA."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.by_hand_warpgroup import PRODUCTS, Product


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda p: p.name)
def test_a_product_is_right_and_clean(product: Product) -> None:
    report = product.case().check()
    counters = report.counters
    assert counters.warp_instructions["wgmma"] == 2 * 4 * product.groups * product.steps
    factors = 32 * (64 + product.columns)
    assert counters.bytes_by_space["wgmma"] == 2 * product.groups * product.steps * factors
    counts = [one for one in counters.instructions.values() if one.kind == "wgmma"]
    assert sum(one.wavefronts for one in counts) * 128 == counters.bytes_by_space["wgmma"]
    assert sum(one.requests for one in counts) == 2 * product.groups * product.steps
    assert sum(one.conflicts for one in counts) == 0


def test_a_wrong_swizzle_gives_a_wrong_product() -> None:
    """The cases can fail: the same tile, told to be swizzled otherwise."""
    case = Product("f16", 64, steps=4).case()
    found = case.source.replace("1024, 1)", "1024, 2)", 1)
    assert found != case.source
    _, got, expected = case.run(found)
    assert np.abs(got - expected).max() > 1
