"""The machine code of the best schedules: instructions of the main loop, as ptxas compiles it.

    python -m benchmarks.codegen.sass_report [--json FILE] [--only TEXT] [--trials N] [--seed N]
        [--records DIR] [--target NAME ...] [--residual] [--schedule FILE ...]

Tunes operators for speed on the simulated a100 and h200 and disassembles the fastest schedule of each, and
one that is written out here; with --schedule, reports on those schedules instead (files as `ekc export`
writes them). Needs nvdisasm (pip install nvidia-cuda-nvdisasm). The machine code is real; only which schedule
is fastest was found on a simulated device. The devices come without their seeded residual: it moves the time
of kernels by 9 %, as real ones lie off any model, but its draws are right of no kernel, and a search finds
what they favour (--residual has them).

"HMMA" is the share of products on tensor cores, an HGMMA (a product of a warpgroup) for as many HMMA as do
the same: one for each 8 columns. Their factors come out of shared memory by LDSM, to an HGMMA by themselves.
LDG, LDGSTS and "in flight" are of the loop that brings the tiles, where that is another one around the main
loop. "in flight" is bytes loaded from global memory before the first of them is used, times the threads
that are resident on an SM. "spare" is what the PTX machine counts in loops beyond what the distinct bytes
of a request fill: passes of 128 bytes through shared memory, and sectors of 32 bytes of global memory, of
the worst instruction; "conflicts" are the passes that distinct words of one bank cost (the other spare ones
go to lanes that read the same: a pass returns 4 bytes a lane). "of peak" is arithmetic over simulated time,
as a share of what the fastest unit that takes the inputs' type could do at the device's clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ekc
from benchmarks.codegen.sass import Account, count_main_loop, disassemble
from benchmarks.common.script import Arguments, Column, format_lines, format_verdict, make_main, select_names
from benchmarks.emulator.memory_efficiency import measure_memory_efficiency
from benchmarks.search.depth import run
from ekc import devices
from ekc.cli.sources import read_schedule
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from ekc.devices.device import Device
from ekc.devices.simulated import specs
from ekc.devices.simulated.launch_counts import compute_occupancy
from ekc.ptx.counting.branch_slice import Threads
from ekc.ptx.counting.counts import list_instruction_runs
from ekc.ptx.parser import parse_module
from ekc.search.data.options import TuneOptions
from ekc.search.database.database import RecordStore
from ekc.search.loop.compile_job import open_worker_pool

TARGETS = ("a100", "h200")
WIDE = 16
"""Bytes of the widest access of a lane: 128 bits."""
Bars = dict[str, tuple[str, float]]
"""By figure: "least" or "most", and the bar."""
FULL: Bars = {"spare_passes": ("most", 0), "spare_sectors": ("most", 0)}
FP32: Bars = {
    "ffma": ("least", 0.85),
    "narrow_shared": ("most", 0),
    "narrow_global": ("most", 0),
    "spills": ("most", 0),
    **FULL,
}
CASES: dict[str, tuple[Callable[[], ekc.Operator | ekc.Schedule], Bars]] = {
    "fp32 MM 4096^3": (lambda: ekc.matmul(4096, 4096, 4096), FP32),
    "fp32 MM 4096^3, written out": (lambda: _make_hand_schedule(), FP32),
    "fp16 MM 4096^3": (
        lambda: ekc.matmul(4096, 4096, 4096, dtype="float16"),
        {
            "hmma": ("least", 0.40),
            "whole_rows": ("least", 1),
            "narrow_shared": ("most", 0),
            "async_wide": ("least", 1),
            "narrow_async": ("most", 0),
            "stages": ("least", 3),
            **FULL,
        },
    ),
    "fp32 MV 8192x8192": (
        lambda: ekc.matvec(8192, 8192),
        {"narrow_global": ("most", 0), "in_flight_bytes": ("least", 32 * 1024), **FULL},
    ),
    "fp16 conv 16x256x14x14 3x3 -> 256": (
        lambda: _make_convolution("NCHW"),
        {"integer_per_multiply_add": ("most", 0.25)},
    ),
    "fp16 conv 16x256x14x14 3x3 -> 256, NHWC": (
        lambda: _make_convolution("NHWC"),
        {"integer_per_multiply_add": ("most", 0.25)},
    ),
}


def _make_convolution(layout: str) -> ekc.Operator:
    """Channels last is how users of tensor cores store images (cuDNN's own layout for them): a tile comes 16
    bytes at a time. In NCHW the edge of the image cuts rows of pixels, and they come one by one, unless image
    and weights are packed first."""
    return ekc.conv2d(16, 256, 14, 14, out_channels=256, kernel=3, padding=1, layout=layout, dtype="float16")


def _make_hand_schedule() -> ekc.Schedule:
    """A member of the same space in which no request has a pass to spare. 16 bytes a lane take two passes
    even where all lanes read the same, so each load must be for more than 128 bytes: of sixteen rows of A,
    two lanes to a row. In the fastest schedules a warp reads one row or a few at a time."""
    return (
        ekc.Schedule(ekc.matmul(4096, 4096, 4096))
        .split("i", (8, 32, 1))
        .split("j", (4, 2, 4))
        .split("k", (32,))
        .reorder("i.0", "j.0", "i.2", "j.2", "k.0", "k.1", "i.1", "j.1", "i.3", "j.3")
        .bind("i.0", "block.x")
        .bind("j.0", "block.x")
        .bind("i.2", "thread.x")
        .bind("j.2", "thread.x")
        .bind("i.1", "vthread")
        .bind("j.1", "vthread")
        .cache_write("C", vector=4)
        .cache_read("A", "shared", at="k.0", vector=4, pad=4)
        .cache_read("B", "register", at="k.1", vector=4)
        .unroll("k.1", factor=16)
    )


def measure_schedule(schedule: ekc.Schedule, device: Device) -> dict[str, Any]:
    """Figures of the launch that multiplies most. Shares are of its main loop's instructions."""
    kernel = compile_schedule(schedule, device.arch, device.limits)
    functions = disassemble(kernel.cubin)
    accounts = [count_main_loop(functions[launch.name]) for launch in kernel.launches]
    number = max(range(len(accounts)), key=lambda i: accounts[i].multiply_adds)
    found = accounts[number]
    latency = device.time(kernel).latency_s
    peak = device.peaks.flops_by_type[schedule.op.inputs[0].dtype.name]
    return {
        "latency_us": latency * 1e6,
        "share_of_peak": schedule.op.flops / latency / peak,
        "instructions": found.instructions,
        "ffma": found.share("FFMA"),
        "hmma": found.tensor_share,
        "shared_loads": dict(found.shared_loads),
        "global_loads": dict(found.global_loads),
        "async_copies": dict(found.async_copies),
        "narrow_shared": _count_narrow(found.shared_loads),
        "narrow_global": _count_narrow(found.global_loads),
        "narrow_async": _count_narrow(found.async_copies),
        "async_wide": found.async_copies[WIDE],
        "ldsm": found.matrix_loads,
        "hgmma": found.group_products,
        "whole_rows": found.matrix_loads + found.group_products,
        "spills": found.spills,
        "integer_per_multiply_add": found.integer_per_multiply_add,
        "in_flight_bytes": _compute_bytes_in_flight(found, kernel, number, device.name),
        "stages": max((int(s.stages) for s in schedule.steps if s.kind == "pipeline"), default=1),
        **_measure_spare(kernel, number),
    }


def _measure_spare(kernel: CompiledKernel, number: int) -> dict[str, float]:
    """Per request of the worst instruction in a loop."""
    launch = kernel.launches[number]
    text = parse_module(kernel.ptx).find_kernel(launch.name)
    threads = Threads(launch.grid, launch.block)
    often = {one.line: times for one, times in list_instruction_runs(text, threads)}
    found = measure_memory_efficiency(
        kernel.ptx,
        launch.name,
        grid=launch.grid,
        block=launch.block,
        sizes=launch.argument_bytes,
        dynamic_shared=launch.shared_bytes,
    )
    inside = [x for x in found if often[x.line] > 1]
    spare = {
        space: max((x.units_taken - x.units_needed for x in inside if x.space == space), default=0.0)
        for space in ("shared", "global")
    }
    return {
        "spare_passes": spare["shared"],
        "spare_sectors": spare["global"],
        "conflicts": max((x.conflicts for x in inside), default=0.0),
    }


def _count_narrow(loads: Counter[int]) -> int:
    """Accesses of less than 128 bits a lane."""
    return sum(count for width, count in loads.items() if width != WIDE)


def _compute_bytes_in_flight(found: Account, kernel: CompiledKernel, number: int, target: str) -> int:
    """Bytes on their way to one SM."""
    launch, resources = kernel.launches[number], kernel.resources[number]
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    shared = max(launch.shared_bytes, resources.shared_bytes)
    spec = specs.SPECS[target]
    fits = compute_occupancy(spec.capability, threads, resources.registers, shared)
    return found.bytes_in_flight * threads * fits.blocks


def judge(figures: dict[str, Any], bars: Bars) -> dict[str, bool]:
    """Which bars hold."""
    return {
        name: figures[name] >= bar if way == "least" else figures[name] <= bar
        for name, (way, bar) in bars.items()
    }


def make_line(name: str, schedule: ekc.Schedule, device: Device, bars: Bars) -> dict[str, Any]:
    """One row of the table."""
    figures = measure_schedule(schedule, device)
    passed = judge(figures, bars)
    return {
        "schedule": name,
        "target": device.name,
        **figures,
        "bar": {n: list(bar) for n, bar in bars.items()},
        "pass": all(passed.values()),
        "missed": [n for n, ok in passed.items() if not ok],
    }


def _format_widths(loads: dict[int, int]) -> str:
    """Such as "32 x 128"."""
    return ", ".join(f"{count} x {8 * width}" for width, count in sorted(loads.items())) or "-"


COLUMNS = (
    Column("schedule", "schedule"),
    Column("target", "target"),
    Column("loop", "instructions"),
    Column("FFMA", "ffma", ".1%"),
    Column("HMMA", "hmma", ".1%"),
    Column("HGMMA", "hgmma"),
    Column("LDSM", "ldsm"),
    Column("LDS", "shared_loads", _format_widths),
    Column("LDG", "global_loads", _format_widths),
    Column("LDGSTS", "async_copies", _format_widths),
    Column("spills", "spills"),
    Column("integer", "integer_per_multiply_add", ".2f"),
    Column("in flight", "kib_in_flight", "{:.0f} KiB".format),
    Column("stages", "stages"),
    Column("spare", "spare"),
    Column("conflicts", "conflicts", ".3g"),
    Column("simulated", "latency_us", "{:.1f} us".format),
    Column("of peak", "share_of_peak", ".0%"),
    Column("", "verdict"),
)


def print_lines(lines: list[dict[str, Any]]) -> None:
    """Print the table."""
    shown = [
        x
        | {
            "kib_in_flight": x["in_flight_bytes"] / 1024,
            "spare": f"{x['spare_passes']:.3g}, {x['spare_sectors']:.3g}",
            "verdict": " ".join([format_verdict(x), ", ".join(x["missed"])]).strip() if x["bar"] else "",
        }
        for x in lines
    ]
    print(format_lines(COLUMNS, shown), flush=True)


def _tune(op: ekc.Operator, device: Device, arguments: Arguments) -> ekc.Schedule:
    """The fastest schedule that the search finds."""
    file = None
    if arguments.records:
        arguments.records.mkdir(parents=True, exist_ok=True)
        file = arguments.records / f"{op.name}-{device.name}.db"
    wish = TuneOptions(arguments.trials, "latency", 0.05, False, arguments.seed, None)
    with RecordStore(file) as store, open_worker_pool(device, arguments.trials) as workers:
        return run(op, device, store, workers, wish)[0].schedule


def measure(arguments: Arguments) -> dict[str, Any]:
    """Disassemble each case, and print the table."""
    names = [] if arguments.schedule else select_names(CASES, arguments.only)
    lines = []
    for target in arguments.target or TARGETS:
        device = devices.open(target if arguments.residual else f"{target}@no-residual")
        for file in arguments.schedule:
            lines.append(make_line(file.stem, read_schedule(file), device, {}))
        for name in names:
            make, bars = CASES[name]
            made = make()
            found = made if isinstance(made, ekc.Schedule) else _tune(made, device, arguments)
            lines.append(make_line(name, found, device, bars))
            print_lines(lines[-1:])
    tuned = (
        f"; fastest of {arguments.trials} trials, seed {arguments.seed}, simulated, except schedules by hand"
    )
    tuned = "" if arguments.schedule else tuned
    tuned += "" if arguments.residual else ", without residual"
    print(f"main loops{tuned}")
    print_lines(lines)
    return {"lines": lines}


BARS = {name: {n: list(bar) for n, bar in bars.items()} for name, (_, bars) in CASES.items()}
OPTIONS = {
    "--only": {"metavar": "TEXT", "default": "", "help": "cases with this in their name"},
    "--residual": {"action": "store_true", "help": "on devices with their seeded residual"},
    "--trials": {"type": int, "default": 256},
    "--records": {"type": Path, "metavar": "DIR", "help": "folder of what was measured"},
    "--target": {"action": "append", "choices": specs.list_names()},
    "--schedule": {"type": Path, "action": "append", "default": []},
}
main = make_main(__doc__, measure, BARS, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
