"""`ekc.features`: its table, values counted by hand, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

import ekc
from ekc import devices
from ekc.errors import InvalidInput
from ekc.search.cost_model.features import build_features, decode_features
from ekc.search.tuning_result import TuningResult
from tests.search.helpers import EACH, legal, space

OP = ekc.matmul(64, 64, 64)
NAIVE = ekc.Schedule(OP).bind("i", "block.x").bind("j", "thread.x")
TILED = ekc.Schedule(OP).split("i", (16,)).split("j", (16,)).split("k", (8,))
TILED = TILED.reorder("i.0", "j.0", "i.1", "j.1", "k.0", "k.1")
TILED = TILED.bind("i.0", "block.y").bind("j.0", "block.x").bind("i.1", "thread.y").bind("j.1", "thread.x")
SHARED = TILED.cache_write("C").cache_read("A", "shared", at="k.0").cache_read("B", "shared", at="k.0")
PIPELINED = SHARED.pipeline("k.0", stages=2)
UNROLLED = SHARED.unroll("k.1")

WARPS_NAIVE, WARPS_TILED = 64 * 2, 16 * 8
BY_HAND: dict[str, tuple[ekc.Schedule, dict[str, float]]] = {
    # 64 blocks of 64 threads; each of the 64 x 64 threads multiplies 64 pairs, and has no accumulator.
    "naive": (
        NAIVE,
        {
            "operations": WARPS_NAIVE * 64,
            "loop_steps": WARPS_NAIVE * 64,
            "barriers": 0,
            "threads": 64,
            "blocks": 64,
            "shared_bytes": 0,
            "shared_load_requests": 0,
            "lane_use": 1,
            "useful_share": 1,
            "dram_bytes": 3 * 64 * 64 * 4,
            "balance": 64 / 108,
        },
    ),
    # 16 blocks of 256 threads, 8 trips of k.0 with 8 of k.1, a tile of 16 x 8 of A and of 8 x 16 of B a trip.
    "shared": (
        SHARED,
        {
            "operations": WARPS_TILED * 64,
            "loop_steps": WARPS_TILED * (8 + 64),
            "barriers": 16 * 2 * 8,
            # 128 elements of a tile are loaded by 4 warps, in words of 4 bytes: 4 sectors each.
            "global_load_requests": 16 * 8 * 2 * 4,
            "global_load_sectors": 16 * 8 * 2 * 4 * 4,
            "global_store_requests": 16 * 8,
            "global_store_sectors": 16 * 8 * 4,
            "shared_store_requests": 16 * 8 * 2 * 4,
            "shared_load_requests": WARPS_TILED * 64 * 2,
            "global_load_bytes": 16 * 8 * 2 * 128 * 4,
            "shared_load_bytes": WARPS_TILED * 64 * 2 * 32 * 4,
            "shared_bytes": 2 * 128 * 4,
            "block_bytes": 2 * 16 * 64 * 4 + 16 * 16 * 4,
            "threads": 256,
            "blocks": 16,
            "accumulators": 1,
            "pipeline": 1,
            "waves": 1,
            "resident_blocks": 8,
            "occupancy": 1,
            "active_warps": 8,
            "wave_use": 16 / (8 * 108),
            "operations_per_shared_load": 0.5,
            "operations_per_barrier": 32,
            "wavefronts_per_shared_load": 1,
        },
    ),
    "pipelined": (
        PIPELINED,
        {
            "pipeline": 2,
            # Two copies of both tiles; one barrier a trip, and one before the first.
            "shared_bytes": 2 * 2 * 128 * 4,
            "barriers": 16 * (8 + 1),
            "operations": WARPS_TILED * 64,
        },
    ),
    "unrolled": (
        UNROLLED,
        {"loop_steps": WARPS_TILED * 8, "operations": WARPS_TILED * 64, "barriers": 16 * 2 * 8},
    ),
    # Each thread reads A and B from global memory for every product.
    "tiled, no tile in shared memory": (
        TILED.cache_write("C"),
        {
            "operations": WARPS_TILED * 64,
            "global_load_requests": WARPS_TILED * 64 * 2,
            "shared_load_requests": 0,
            "barriers": 0,
            "operations_per_global_load": 0.5,
            # A warp has two rows of i and 16 columns of j: two words of A, 64 bytes of B.
            "global_load_sectors": WARPS_TILED * 64 * (2 + 2),
        },
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_features_equal_a_count_by_hand(name: str) -> None:
    schedule, expected = BY_HAND[name]
    found = ekc.features(schedule, target="a100")
    assert {key: found[key] for key in expected} == pytest.approx(expected)


def test_features_of_many_schedules_are_those_of_each_and_of_the_population() -> None:
    names = [str(one.values[0]) for one in EACH]
    for name in names:
        genomes = legal(name, 200 // len(names) + 5)
        made = space(name)
        schedules = [made.build_schedule(genomes, row) for row in range(len(genomes))]
        found = ekc.features(made.op, schedules, target="a100")
        table = decode_features(build_features(made.compute_quantities(genomes)))
        for key, values in table.items():
            np.testing.assert_allclose(found[key], values, rtol=1e-4, atol=1e-4, err_msg=f"{name}: {key}")
        alone = ekc.features(schedules[3], target="a100")
        assert alone == {key: values[3] for key, values in found.items()}


def test_every_value_is_in_the_table_with_unit_and_meaning() -> None:
    table = ekc.features()
    assert [one.name for one in table] == list(ekc.features(NAIVE, target="a100"))
    assert all(one.unit and one.meaning for one in table)
    assert len({one.meaning for one in table}) == len(table)
    assert ekc.features(NAIVE, target="rtx4090")["device_sms"] == devices.open("rtx4090").limits.sms


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3,), "features: 3 is no ekc.Schedule and no operator"),
        ((OP,), "no schedules of matmul are given"),
        ((OP, [NAIVE, "x"]), "'x' is no schedule"),
        ((OP, [ekc.Schedule(ekc.matmul(8, 8, 8))]), "a schedule of matmul is not of matmul"),
    ],
)
def test_refusals_name_what_is_wrong(arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        ekc.features(*arguments, target="a100")  # type: ignore[call-overload]


def test_data_frame_has_the_features_of_every_trial(plain_run: TuningResult) -> None:
    pytest.importorskip("pandas")
    table, trial = plain_run.to_dataframe(), plain_run.trials[2]
    expected = ekc.features(trial.schedule, target="a100")
    for key in ("dram_bytes", "occupancy", "operations_per_shared_load"):
        assert table.iloc[2][key] == pytest.approx(expected[key], rel=1e-5), key


def test_explanation_adds_up_to_the_prediction(plain_run: TuningResult) -> None:
    found = plain_run.explain_energy()
    assert sum(part.log_part for part in found.parts) == pytest.approx(found.predicted_log_ratio, abs=1e-9)
    shown = found.list_shown()
    assert sum(log for _, log in shown) == pytest.approx(found.predicted_log_ratio, abs=1e-9)
    sizes = [abs(part.log_part) for part in found.parts]
    assert sizes == sorted(sizes, reverse=True)
    assert "predicted by the model before measuring" in found.summary()
