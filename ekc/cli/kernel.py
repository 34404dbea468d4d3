"""Commands on one kernel: `ekc show` prints its schedule, program, CUDA or PTX; `ekc explore` shows it step
by step on a page; `ekc run` executes it and compares it with the float64 reference; `ekc check` prints its
static facts and the counts of its execution."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from dataclasses import asdict
from math import ceil, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import ekc
from ekc.cli.arguments import OperatorCommand
from ekc.cli.output import (
    FILE,
    describe_execution,
    format_accesses,
    format_counts,
    json_option,
    log,
    print_result,
    write_text_file,
)
from ekc.cli.sources import ScheduleSource, schedule_source
from ekc.errors import InvalidInput, Refusal
from ekc.tables import TABLE_WIDTH, format_rounded, format_table

if TYPE_CHECKING:
    from ekc.codegen.compiled import CompiledKernel, Launch, Resources
    from ekc.devices.device import Device
    from ekc.ir.schedule.schedule import Schedule
    from ekc.machine_code.executed import MachineAccess
    from ekc.runtime.verify import DeviceVerdict, LaunchCheck, Verdict


@click.command(cls=OperatorCommand)
@schedule_source
@click.option("--cuda", is_flag=True, help="Also print the CUDA source.")
@click.option("--ptx", is_flag=True, help="Also print the PTX that NVRTC compiles.")
@click.option("--svg", type=FILE, help="Also write pictures of the schedule into this SVG file.")
@click.option(
    "--picture",
    help="Picture of --svg: loops, threads, staging, banks, fragments, or overview with all that apply. "
    "[default: overview]",
)
@json_option
def show(
    source: ScheduleSource, cuda: bool, ptx: bool, svg: Path | None, picture: str | None, as_json: bool
) -> None:
    """Print a schedule: the Python that makes it, its program, and with --cuda or --ptx its kernel.

    Without --records or --schedule the naive schedule is printed.
    """
    from ekc.codegen.generate import compile_schedule, generate

    if picture is not None and svg is None:
        raise InvalidInput("--picture: no file to write it into; add --svg FILE")
    found, device = source.find_schedule(), source.open_device()
    schedule = found.schedule
    parts = {"python": schedule.to_python(), "program": str(schedule)}
    if cuda:
        parts["cuda_source"] = generate(schedule, device.limits).source
    if ptx:
        parts["ptx"] = compile_schedule(schedule, device.arch, device.limits).ptx
    if svg is not None:
        write_text_file("--svg", svg, schedule.draw(picture or "overview"))
        parts["svg"] = str(svg)
    if as_json:
        head = {"operator": schedule.op.to_json(), "schedule": [s.to_json() for s in schedule.steps]}
        print_result(head | {"digest": schedule.digest, "origin": found.origin} | parts)
        return
    print_result(f"# {found.origin}, digest {schedule.digest}\n")
    if svg is not None:
        log(f"wrote {parts.pop('svg')}")
    print_result("\n\n".join(parts.values()))


@click.command(cls=OperatorCommand)
@schedule_source
@click.option("--port", type=int, default=0, help="Port of 127.0.0.1. [default: a free one]")
@click.option("--no-browser", is_flag=True, help="Print the address and open no browser.")
def explore(source: ScheduleSource, port: int, no_browser: bool) -> None:
    """Explore schedules step by step, on a page in the browser, until Ctrl-C.

    At every point the page lists the legal next steps with their estimated time and joules. Without --records
    or --schedule it begins at the naive schedule.
    """
    from ekc.explorer.server import explore as serve

    found = source.find_schedule()
    log("ekc explore: Ctrl-C ends it; the address holds the token of this server")
    serve(found.schedule, source.target, port=port, open_browser=not no_browser, announce=print_result)
    log("ekc explore: stopped")


@click.command(cls=OperatorCommand)
@schedule_source
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random inputs."
)
@json_option
def run(source: ScheduleSource, seed: int, as_json: bool) -> int:
    """Compile a schedule, execute its PTX on random inputs and compare with a float64 reference.

    The PTX runs on the CPU under a sanitizer; of a large grid some blocks are executed. With a GPU as
    --target the whole kernel runs there too. Without --records or --schedule the naive schedule runs.

    The exit status is 1 if a result is wrong or the sanitizer finds something.
    """
    from ekc.devices.device import ExecutionDevice, check_device_memory
    from ekc.ir.comparison.compare import describe_input_policy
    from ekc.ir.comparison.tolerance import ReferenceEvaluator
    from ekc.runtime.verify import verify, verify_if_executable

    found, device = source.find_schedule(), source.open_device()
    schedule = found.schedule
    if isinstance(device, ExecutionDevice):
        check_device_memory(schedule.op, device)
    kernel = ekc.compile(schedule, arch=device.arch, limits=device.limits)
    expected = ReferenceEvaluator.from_seed(schedule.op, seed)
    on_device = verify_if_executable(device, schedule, kernel.compiled, expected)
    verdict = verify(schedule, kernel.compiled, expected, seed)
    ok = verdict.ok and (on_device is None or not on_device.fault)
    facts = {
        "operator": schedule.op.to_json(),
        "digest": schedule.digest,
        "origin": found.origin,
        "arch": kernel.arch,
        "executed_by": kernel.executed_by,
        "seed": seed,
        "max_error": verdict.worst_agreement.max_error,
        "tolerance": verdict.worst_agreement.tolerance,
        "complete": all(x.agreement.complete for x in verdict.launches),
        "strays": sum(x.agreement.strays for x in verdict.launches),
        "wrapped": verdict.worst_agreement.wrapped,
        "blocks": sum(x.agreement.blocks for x in verdict.launches),
        "total_blocks": sum(x.agreement.total_blocks for x in verdict.launches),
        "launches": [describe_execution(x) for x in verdict.launches],
        "on_device": None if on_device is None else str(on_device),
        "ok": ok,
    }
    title = f"{str(schedule.op).splitlines()[0]}: {found.origin}, compiled for {kernel.arch}"
    inputs = describe_input_policy(schedule.op)
    report = _format_run(verdict, on_device, inputs, seed, kernel.executed_by)
    print_result(facts if as_json else f"{title}\n{report}")
    return 0 if ok else 1


def _format_run(
    verdict: Verdict, device_verdict: DeviceVerdict | None, inputs: str, seed: int, executed_by: str
) -> str:
    from ekc.ir.comparison.compare import INT32_WRAP_NOTE
    from ekc.runtime.verify import WRONG_RESULT

    complete = all(x.agreement.complete for x in verdict.launches)
    strays = sum(x.agreement.strays for x in verdict.launches)
    written = "every element that these blocks own" if complete else "NOT every element"
    lines = {
        "inputs": f"{inputs}, seed {seed}",
        "run by": executed_by,
        "blocks": verdict.coverage,
        "max error": f"{verdict.worst_agreement.max_error:.3g}",
        "tolerance": f"{verdict.worst_agreement.tolerance:.3g}",
        "written": written + (f", and {strays} that other blocks own" if strays else ""),
        "sanitizer": "\n           ".join(map(str, verdict.findings)) or "found nothing",
    }
    if verdict.worst_agreement.wrapped:
        lines["integers"] = INT32_WRAP_NOTE
    if device_verdict is not None:
        lines["on the GPU"] = str(device_verdict)
    facts = [f"{name:11}{text}" for name, text in lines.items()]
    ends = {"": "agrees with the reference", WRONG_RESULT: "DOES NOT AGREE with the reference"}
    fault = verdict.fault or (device_verdict.fault if device_verdict else "")
    return "\n".join([*facts, ends.get(fault, "NOT SAFE: see what the sanitizer found")])


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
    from ekc.ir.comparison.compare import DATA_SEED
    from ekc.ir.comparison.tolerance import ReferenceEvaluator
    from ekc.runtime.verify import verify

    found, device = source.find_schedule(), source.open_device()
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
    print_result(facts if as_json else _format_check(found.schedule, found.origin, device, facts))
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
    from ekc.devices.simulated.launch_counts import compute_launch_occupancy
    from ekc.devices.simulated.specs import find_spec

    spec = find_spec(device.name)
    if spec is None:
        return {}
    found = compute_launch_occupancy(spec.capability, launch, resources)
    limit = spec.capability.warps_per_sm
    return {"blocks": found.blocks, "warps": found.warps, "of_warps": limit, "limited_by": found.limited_by}


def _count_vector_accesses(ptx: str, name: str) -> dict[str, int]:
    """Number of vector loads and stores in the PTX of one kernel: {"ld.shared.v4": 8, ...}."""
    text = ptx[re.search(rf"\.entry\s+{re.escape(name)}\b", ptx).start() :]  # type: ignore[union-attr]
    text = text.split(".entry", 2)[1]
    return dict(sorted(Counter(f"{op}.{width}" for op, width in _VECTOR_ACCESS.findall(text)).items()))


def _format_check(schedule: Schedule, origin: str, device: Device, facts: dict[str, Any]) -> str:
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
