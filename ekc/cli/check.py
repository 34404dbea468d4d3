"""`ekc check`: static facts of a kernel and counts of its execution on the CPU, without a GPU."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ekc.cli.arguments import OperatorCommand
from ekc.cli.output import (
    describe_execution,
    format_accesses,
    format_counts,
    json_option,
    print_json,
    print_text,
)
from ekc.cli.schedule_source import ScheduleSource, schedule_source
from ekc.tables import TABLE_WIDTH, format_rounded, format_table

if TYPE_CHECKING:
    from ekc.codegen.compiled import CompiledKernel, Launch, Resources
    from ekc.devices.device import Device
    from ekc.errors import Refusal
    from ekc.ir.schedule.schedule import Schedule
    from ekc.machine_code.executed import MachineAccess
    from ekc.runtime.verify import LaunchCheck


_VECTOR_ACCESS = re.compile(r"\b((?:ld|st)\.(?:global|shared))(?:\.\w+)*?\.(v[248])\.[a-z]\d+")


@click.command(cls=OperatorCommand)
@schedule_source
@click.option("--arch", help="Architecture to compile for, such as sm_90. [default: by --target]")
@json_option
def check(source: ScheduleSource, arch: str | None, as_json: bool) -> int:
    """Compile a schedule, execute its PTX on the CPU, and print what can be known without a GPU.

    Static facts: registers, spills, shared memory, occupancy, accesses. From the execution: findings of the
    sanitizer, counts of sectors, wavefronts, barriers and instructions, and how many accesses of the machine
    code a warp executes, spilled registers (LDL, STL) among them. Of a large grid some blocks are executed.
    Without --records or --schedule the naive schedule is checked.

    The exit status is 1 if a rule or limit refuses the schedule, the sanitizer finds something, or the result
    is wrong.
    """
    import ekc
    from ekc import devices
    from ekc.ir.comparison.compare import DATA_SEED
    from ekc.ir.comparison.tolerance import ReferenceEvaluator
    from ekc.runtime.verify import verify

    found, device = source.find_schedule(), devices.open(source.target)
    arch = arch or device.arch
    refusals = _find_refusals(found.schedule, device, arch)
    op, ok = found.schedule.op, not refusals
    facts = {
        "operator": op.to_json(),
        "digest": found.schedule.digest,
        "origin": found.origin,
        "device": {"name": device.name, "simulated": device.simulated},
        "arch": arch,
        "refusals": [asdict(r) for r in refusals],
        "launches": [],
    }
    if not refusals:
        kernel = ekc.compile(found.schedule, arch=arch, limits=device.limits)
        verdict = verify(found.schedule, kernel.compiled, ReferenceEvaluator.from_seed(op, DATA_SEED))
        ok = verdict.ok
        facts["executed_by"] = kernel.executed_by
        launches = zip(kernel.compiled.launches, kernel.compiled.resources, verdict.launches, strict=True)
        facts["launches"] = [_describe_launch(kernel.compiled, device, *each) for each in launches]
    if as_json:
        print_json(facts)
    else:
        print_text(_format_report(found.schedule, found.origin, device, facts))
    return 0 if ok else 1


def _find_refusals(schedule: Schedule, device: Device, arch: str) -> list[Refusal]:
    """All refusals of the schedule on this device, compiled for `arch`."""
    from ekc.ir.hardware.target import restrict_to_arch
    from ekc.ir.rules.launch import iterate_checks

    limits = restrict_to_arch(device.limits, arch)
    return [r for c in iterate_checks(schedule.program, limits) if (r := c.explain()) is not None]


def _describe_launch(
    compiled: CompiledKernel, device: Device, launch: Launch, resources: Resources, checked: LaunchCheck
) -> dict[str, Any]:
    return {
        "name": launch.name,
        "grid": launch.grid,
        "block": launch.block,
        **asdict(resources),
        "shared_bytes": resources.shared_bytes + launch.shared_bytes,
        "occupancy": _compute_occupancy(launch, resources, device),
        "vector_accesses": _count_vector_accesses(compiled.ptx, launch.name),
        "machine_accesses": [asdict(one) for one in _list_machine_accesses(compiled, launch, checked)],
        "executed": describe_execution(checked),
    }


def _list_machine_accesses(
    compiled: CompiledKernel, launch: Launch, checked: LaunchCheck
) -> tuple[MachineAccess, ...]:
    """Accesses of the machine code, executed as often as the blocks that ran executed the PTX."""
    from math import ceil, prod

    from ekc.machine_code.decode import decode_functions
    from ekc.machine_code.executed import count_runs, list_machine_accesses
    from ekc.ptx.constants import WARP_SIZE
    from ekc.ptx.parser import parse_module

    warps = checked.report.blocks_run * ceil(prod(launch.block) / WARP_SIZE)
    executed = checked.report.counters.instructions.values()
    code = decode_functions(compiled.cubin, compiled.arch)[launch.name]
    kernel = parse_module(compiled.ptx).find_kernel(launch.name)
    return list_machine_accesses(
        code, count_runs(code, kernel, {one.line: one.warps / warps for one in executed})
    )


def _compute_occupancy(launch: Launch, resources: Resources, device: Device) -> dict[str, Any]:
    from math import prod

    from ekc.devices.simulated.launch_counts import compute_occupancy
    from ekc.devices.simulated.specs import find_spec

    spec = find_spec(device.name)
    if spec is None:
        return {}
    shared = resources.shared_bytes + launch.shared_bytes
    found = compute_occupancy(spec.capability, prod(launch.block), resources.registers, shared)
    limit = spec.capability.warps_per_sm
    return {"blocks": found.blocks, "warps": found.warps, "of_warps": limit, "limited_by": found.limited_by}


def _count_vector_accesses(ptx: str, name: str) -> dict[str, int]:
    """Number of vector loads and stores in the PTX of one kernel: {"ld.shared.v4": 8, ...}."""
    text = ptx[re.search(rf"\.entry\s+{re.escape(name)}\b", ptx).start() :]  # type: ignore[union-attr]
    text = text.split(".entry", 2)[1]
    return dict(sorted(Counter(f"{op}.{width}" for op, width in _VECTOR_ACCESS.findall(text)).items()))


def _format_report(schedule: Schedule, origin: str, device: Device, facts: dict[str, Any]) -> str:

    title = f"{str(schedule.op).splitlines()[0]}: {origin}\n"
    title += f"compiled for {facts['arch']}, limits of {device.label}"
    if facts["refusals"]:
        headers = ("rule", "needs", "limit", "nearest legal choice")
        rows = [tuple(refusal.values()) for refusal in facts["refusals"]]
        return format_table(headers, rows, f"{title}\n\nRefused:", label_count=4)
    return "\n\n".join([title, *(_format_launch(launch) for launch in facts["launches"])])


def _format_launch(launch: dict[str, Any]) -> str:

    occupancy, vectors = launch["occupancy"], launch["vector_accesses"]
    facts = {
        "grid": " x ".join(map(str, launch["grid"])),
        "block": " x ".join(map(str, launch["block"])),
        "registers": f"{launch['registers']} per thread",
        "spills": f"{launch['spill_store_bytes']} bytes stored, {launch['spill_load_bytes']} bytes loaded",
        "shared": f"{launch['shared_bytes']} bytes per block",
        "occupancy": _format_occupancy(occupancy) if occupancy else "not known for this device",
        "vectors": ", ".join(f"{access} x{count}" for access, count in vectors.items()) or "none in the PTX",
        "machine": _format_machine_accesses(launch["machine_accesses"]),
    }
    lines = [launch["name"]]
    for name, fact in (facts | format_counts(launch["executed"])).items():
        lines += textwrap.wrap(fact, TABLE_WIDTH, initial_indent=f"  {name:11}", subsequent_indent=" " * 13)
    lines += [f"  {finding['text']}" for finding in launch["executed"]["findings"]]
    return "\n".join([*lines, "", format_accesses(launch["executed"])])


def _format_machine_accesses(accesses: list[dict[str, Any]]) -> str:
    """Accesses of the machine code: how many a warp executes, and how many there are in the code."""

    listed = [
        f"{format_rounded(one['per_warp'], 4)} {one['name']} ({one['in_code']} in the code)"
        for one in accesses
    ]
    return f"a warp executes {', '.join(listed)}"


def _format_occupancy(occupancy: dict[str, Any]) -> str:
    share = 100 * occupancy["warps"] / occupancy["of_warps"]
    warps = f"{occupancy['warps']} of {occupancy['of_warps']} warps per SM ({share:.0f}%)"
    return f"{warps}, {occupancy['blocks']} blocks, limited by {occupancy['limited_by']}"
