"""`ekc check` and `ekc show`: static facts, counts, refusals, and texts of a schedule."""

from __future__ import annotations

from pathlib import Path

import ekc
from tests.cli.conftest import CommandLine
from tests.ir.warpgroup_examples import half_group_matmul


def test_check_prints_static_facts_and_counts(cli: CommandLine) -> None:
    schedule = (
        ekc.Schedule(ekc.matmul(64, 64, 64))
        .split("i", (16, 4))
        .split("j", (16, 4))
        .split("k", (8,))
        .reorder("i.0", "j.0", "i.1", "j.1", "k.0", "k.1", "i.2", "j.2")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("j.1", "thread.x")
        .cache_write("C", vector=4)
        .cache_read("B", "shared", at="k.0", vector=4)
    )
    Path("s.json").write_text(schedule.to_json())
    out = cli("check --schedule s.json --target a100").out
    words = ("registers", "spills", "occupancy", "ld.global.nc.f32", "st.global.v4.f32", "ld.shared.v4.f32")
    assert all(word in out for word in words), out
    for line in (
        "limits of a100 (simulated)",
        "1 of 1 blocks, on the CPU",
        "agrees with the reference",
        "no findings",
    ):
        assert line in out
    (launch,) = cli.json("check --schedule s.json --arch sm_90")["launches"]
    assert launch["shared_bytes"] == 8 * 64 * 4
    assert launch["vector_accesses"]["st.global.v4"] == 4
    made = {one["name"]: one for one in launch["machine_accesses"]}
    assert made["STG.128"] == {"name": "STG.128", "in_code": 4, "per_warp": 4.0}
    # The tile of B is filled 8 times by 128 of 256 threads, 16 bytes each.
    assert made["STS.128"] == {"name": "STS.128", "in_code": 1, "per_warp": 4.0}
    assert "a warp executes" in out
    assert launch["occupancy"]["warps"] <= launch["occupancy"]["of_warps"]
    counters = launch["executed"]["counters"]
    assert counters["lane_instructions"]["fma.f32"] == 64**3
    assert counters["global_store_sectors"] == 64 * 64 * 4 // 32
    assert launch["executed"]["blocks"] == launch["executed"]["total_blocks"] == 1
    # The shared tile is filled 8 times over; threads wait before and after.
    assert counters["barriers"] == 16


def test_check_lists_every_refusal(cli: CommandLine) -> None:
    schedule = ekc.Schedule(ekc.matmul(4096, 4096, 4096)).bind("i", "thread.x").cache_read("B", "shared")
    Path("s.json").write_text(schedule.to_json())
    out = cli("check --schedule s.json", status=1).out
    assert "threads per block" in out
    assert "shared memory" in out
    refusals = cli.json("check --schedule s.json", status=1)["refusals"]
    assert {"threads per block", "shared memory"} <= {r["rule"] for r in refusals}
    assert all(set(r) == {"rule", "need", "limit", "nearest"} for r in refusals)


def test_check_prints_no_limit_below_0(cli: CommandLine) -> None:
    """With 4096 threads each has 16 registers, fewer than those reserved for addresses."""
    wide = ekc.Schedule(ekc.matmul(4096, 64, 64)).bind("i", "thread.x")
    for schedule, more in ((wide, []), (wide.cache_write("C"), [("registers", "at most 0")])):
        Path("s.json").write_text(schedule.to_json())
        refusals = cli.json("check --schedule s.json", status=1)["refusals"]
        expected = [("threads per block", "at most 1024"), *more]
        assert [(r["rule"], r["limit"]) for r in refusals] == expected


def test_check_uses_the_limits_of_the_arch(cli: CommandLine) -> None:
    Path("s.json").write_text(half_group_matmul().to_json())
    (launch,) = cli.json("check --schedule s.json --arch sm_90a")["launches"]
    assert launch["executed"]["counters"]["warp_instructions"]["wgmma"] == 512
    out = cli("check --schedule s.json --arch sm_90", status=1).out
    assert "only sm_90a has the instruction   use mma.m16n8k16" in out


def test_show_prints_python_program_cuda_and_ptx(cli: CommandLine) -> None:
    out = cli("show matvec 64 32 --cuda").out
    assert all(word in out for word in ("ekc.Schedule(op)", "naive schedule", "block.x", "__global__"))
    assert ".visible .entry ekc_matvec(" in cli("show matvec 64 32 --ptx --target h100").out
    assert ".target sm_90" in cli.json("show matvec 64 32 --ptx --target h100")["ptx"]
    got = cli.json("show matvec 64 32")
    assert set(got) == {"operator", "schedule", "digest", "origin", "python", "program"}


def test_show_uses_the_shared_memory_of_the_target(cli: CommandLine) -> None:
    tile = ekc.Schedule(ekc.matmul(128, 128, 192)).bind("i", "block.x").bind("j", "thread.x")
    Path("s.json").write_text(tile.cache_read("B", "shared").to_json())
    assert "__global__" in cli("show --schedule s.json --cuda --target a100").out, "96 KiB of 163"
    line = cli.refusal("show --schedule s.json --cuda --target rtx2080ti")
    assert "shared memory: 98304 bytes, at most 65536" in line
