import pytest

from ekc.devices.simulated.launch_counts import compute_occupancy
from ekc.devices.simulated.specs import SM_75, SM_80, SM_86, SM_89, SM_90, Capability

KIB = 1024


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "blocks", "limited_by"),
    [
        # Answers of NVIDIA's occupancy calculator.
        (SM_80, 256, 32, 0, 8, "registers"),
        (SM_80, 256, 128, 0, 2, "registers"),
        (SM_80, 256, 129, 0, 1, "registers"),
        (SM_80, 1024, 64, 0, 1, "registers"),
        (SM_80, 1024, 65, 0, 0, "registers"),
        (SM_80, 256, 32, 48 * KIB, 3, "shared memory"),
        (SM_80, 128, 24, 163 * KIB, 1, "shared memory"),
        (SM_80, 128, 24, 164 * KIB, 0, "shared memory"),
        (SM_80, 32, 16, 0, 32, "blocks"),
        (SM_80, 96, 16, 0, 21, "warps"),
        (SM_86, 256, 40, 0, 6, "registers"),
        (SM_86, 512, 16, 0, 3, "warps"),
        (SM_86, 32, 16, 0, 16, "blocks"),
        (SM_89, 32, 16, 0, 24, "blocks"),
        (SM_75, 256, 32, 0, 4, "warps"),
        (SM_90, 128, 32, 100 * KIB, 2, "shared memory"),
    ],
)
def test_occupancy_matches_the_calculator(
    capability: Capability, threads: int, registers: int, shared: int, blocks: int, limited_by: str
) -> None:
    found = compute_occupancy(capability, threads, registers, shared)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)


def test_partial_warp_counts_as_a_whole_one() -> None:
    assert compute_occupancy(SM_80, 33, 32, 0).warps_per_block == 2
