"""`ekc run`: execute a kernel on random inputs and compare it with the float64 reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ekc.cli.arguments import OperatorCommand
from ekc.cli.output import describe_execution, json_option, print_json, print_text
from ekc.cli.schedule_source import ScheduleSource, schedule_source

if TYPE_CHECKING:
    from ekc.runtime.verify import DeviceVerdict, Verdict


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
    import ekc
    from ekc import devices
    from ekc.devices.device import ExecutionDevice, check_device_memory
    from ekc.ir.comparison.compare import describe_input_policy
    from ekc.ir.comparison.tolerance import ReferenceEvaluator
    from ekc.runtime.verify import verify, verify_if_executable

    found, device = source.find_schedule(), devices.open(source.target)
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
    if as_json:
        print_json(facts)
    else:
        title = f"{str(schedule.op).splitlines()[0]}: {found.origin}, compiled for {kernel.arch}"
        inputs = describe_input_policy(schedule.op)
        report = _format_report(verdict, on_device, inputs, seed, kernel.executed_by)
        print_text(f"{title}\n{report}")
    return 0 if ok else 1


def _format_report(
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
