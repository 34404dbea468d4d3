from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ekc.codegen.compiled import Footprint, Launch
from ekc.devices.simulated import memory_traffic
from ekc.devices.simulated.specs import A100

MIB = 2.0**20


def panels(tiles: int) -> tuple[Footprint, ...]:
    """A matrix product of tiles x tiles blocks of 128, block.x over columns."""
    n = 128 * tiles
    panel = 4.0 * 128 * n
    return (
        Footprint("A", "load", 4 * n * n, panel, ((tiles, False), (tiles, True))),
        Footprint("B", "load", 4 * n * n, panel, ((tiles, True), (tiles, False))),
        Footprint("C", "store", 4 * n * n, 4.0 * 128 * 128, ((tiles, True), (tiles, True))),
    )


def test_product_that_fits_is_read_once() -> None:
    footprints = panels(8)
    assert memory_traffic.compute_dram_bytes(footprints, 108, 40 * MIB) == tuple(
        float(f.tensor_bytes) for f in footprints
    )


def test_reused_operand_that_does_not_fit_is_read_once_per_wave() -> None:
    tiles, wave = 64, 128
    a, b, c = memory_traffic.compute_dram_bytes(panels(tiles), wave, 1.0)
    size = 4.0 * (128 * tiles) ** 2
    assert (a, c) == (size, size)
    assert 0.99 * size * tiles * tiles / wave <= b <= size * tiles * tiles / wave


def launch_of(*footprints: Footprint) -> Launch:
    names = tuple(f.tensor for f in footprints)
    sizes = tuple(f.tensor_bytes for f in footprints)
    return Launch("k", (64, 1, 1), (128, 1, 1), 0, names, sizes, footprints)


def stream(size: float) -> Footprint:
    return Footprint("x", "load", int(size), size / 64, ((64, True),))


@given(mib=st.floats(0.1, 500))
def test_share_kept_from_the_call_before_falls_with_the_size_of_a_call(mib: float) -> None:
    """Measured: kernels that stream 16 MiB on an A100 read nothing of DRAM, of 64 MiB they read all."""
    kept = [memory_traffic.compute_kept_share(A100, [launch_of(stream(n * MIB))]) for n in (mib, 1.1 * mib)]
    assert 0.0 <= kept[1] <= kept[0] <= 1.0
    assert (kept[0] == 1.0) == (mib * MIB <= A100.l2_usable_share * A100.l2_bytes)
    if mib >= 64:
        assert kept[0] < 0.02


def test_launches_of_a_call_share_the_l2() -> None:
    """Two launches on one tensor touch it once; on two they need room for both."""
    one, other = stream(15 * MIB), replace(stream(15 * MIB), tensor="y")
    assert memory_traffic.compute_kept_share(A100, [launch_of(one), launch_of(one)]) == 1.0
    assert memory_traffic.compute_kept_share(A100, [launch_of(one), launch_of(other)]) < 0.5


def test_block_alone_reads_its_panel() -> None:
    footprint = Footprint("x", "load", 4096, 4096.0, ((1, False),))
    assert memory_traffic.compute_dram_bytes((footprint,), 100, 40 * MIB) == (4096.0,)


@given(
    tiles=st.integers(1, 128),
    wave=st.integers(1, 2000),
    small=st.floats(1, 1e9),
    more=st.floats(1, 100),
)
def test_larger_l2_never_costs_traffic(tiles: int, wave: int, small: float, more: float) -> None:
    before, after = (
        memory_traffic.compute_dram_bytes(panels(tiles), wave, size) for size in (small, small * more)
    )
    assert all(new <= old for old, new in zip(before, after, strict=True))


@given(tiles=st.integers(1, 128), wave=st.integers(1, 2000), size=st.floats(1, 1e9))
def test_dram_bytes_are_at_least_the_touched_bytes(tiles: int, wave: int, size: float) -> None:
    footprints = panels(tiles)
    for footprint, crossed in zip(
        footprints, memory_traffic.compute_dram_bytes(footprints, wave, size), strict=True
    ):
        assert crossed >= memory_traffic.compute_compulsory_bytes(footprint)


@given(tiles=st.integers(1, 128), wave=st.integers(1, 2000), size=st.floats(1, 1e9))
def test_blocks_that_drift_move_at_least_the_bytes_of_blocks_in_step(
    tiles: int, wave: int, size: float
) -> None:
    in_step, drifting = (
        count(panels(tiles), wave, size)
        for count in (memory_traffic.compute_dram_bytes, memory_traffic.compute_drifting_dram_bytes)
    )
    assert all(b >= a for a, b in zip(in_step, drifting, strict=True))
    # No block reads more than its panels.
    asked = (tiles * tiles * f.block_bytes for f in panels(tiles))
    assert all(b <= max(a, most) * (1 + 1e-9) for a, b, most in zip(in_step, drifting, asked, strict=True))


def test_drift_costs_nothing_where_a_wave_fits_l2() -> None:
    for tiles, wave in ((8, 108), (64, 512)):
        in_step = memory_traffic.compute_dram_bytes(panels(tiles), wave, 2000 * MIB)
        assert memory_traffic.compute_drifting_dram_bytes(panels(tiles), wave, 2000 * MIB) == in_step


@given(
    tiles=st.integers(1, 128),
    wave=st.integers(1, 2000),
    small=st.floats(1, 1e9),
    more=st.floats(1, 100),
)
def test_larger_l2_never_costs_traffic_of_drifting_blocks(
    tiles: int, wave: int, small: float, more: float
) -> None:
    before, after = (
        sum(memory_traffic.compute_drifting_dram_bytes(panels(tiles), wave, size))
        for size in (small, small * more)
    )
    assert after <= before * (1 + 1e-9)


def test_no_panel_survives_in_no_cache() -> None:
    tiles, wave = 64, 128
    a, _, _ = memory_traffic.compute_drifting_dram_bytes(panels(tiles), wave, 1.0)
    share = 1 - wave / tiles**2
    assert a > 0.99 * share * tiles * 4.0 * (128 * tiles) ** 2


def test_first_wave_runs_in_step() -> None:
    for size in (1.0, 20 * MIB):
        in_step = memory_traffic.compute_dram_bytes(panels(8), 64, size)
        assert memory_traffic.compute_drifting_dram_bytes(panels(8), 64, size) == in_step
