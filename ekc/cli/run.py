"""`ekc run`: is a kernel right? Its compiled PTX on random inputs, against the float64 reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ekc.cli.executed import execution_facts
from ekc.cli.operators import NEGATIVES
from ekc.cli.output import json_option, say, say_json
from ekc.cli.sources import Source, schedule_source

if TYPE_CHECKING:
    from ekc.devices.verify import Verdict


@click.command(context_settings=NEGATIVES)
@schedule_source
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the inputs.")
@json_option
def run(source: Source, seed: int, as_json: bool) -> int:
    """Compile a schedule, execute its PTX on random inputs and compare with a float64 reference.

    It runs on the CPU, under a sanitizer; of a large grid some blocks run. Status 1 when the result is wrong
    or the sanitizer finds something.
    """
    import ekc
    from ekc import devices
    from ekc.devices.verify import verify
    from ekc.ir.agreement import input_policy, random_inputs
    from ekc.ir.expected import Expected

    found, device = source.find(), devices.open(source.target)
    schedule = found.schedule
    kernel = ekc.compile(schedule, arch=device.arch, limits=device.limits)
    verdict = verify(schedule, kernel.compiled, Expected(schedule.op, random_inputs(schedule.op, seed)), seed)
    facts = {
        "operator": schedule.op.to_json(),
        "digest": schedule.digest,
        "origin": found.origin,
        "arch": kernel.arch,
        "executed_by": kernel.executed_by,
        "seed": seed,
        "max_error": verdict.worst.max_error,
        "tolerance": verdict.worst.tolerance,
        "complete": all(x.agreement.complete for x in verdict.launches),
        "strays": sum(x.agreement.strays for x in verdict.launches),
        "blocks": sum(x.agreement.blocks for x in verdict.launches),
        "total_blocks": sum(x.agreement.total_blocks for x in verdict.launches),
        "launches": [execution_facts(x) for x in verdict.launches],
        "ok": verdict.ok,
    }
    if as_json:
        say_json(facts)
    else:
        origin = f"{str(schedule.op).splitlines()[0]}: {found.origin}, compiled for {kernel.arch}"
        say(f"{origin}\n{_text(verdict, input_policy(schedule.op), seed, kernel.executed_by)}")
    return 0 if verdict.ok else 1


def _text(verdict: Verdict, inputs: str, seed: int, executed_by: str) -> str:
    complete = all(x.agreement.complete for x in verdict.launches)
    strays = sum(x.agreement.strays for x in verdict.launches)
    written = "every element that these blocks own" if complete else "NOT every element"
    lines = {
        "inputs": f"{inputs}, seed {seed}",
        "run by": executed_by,
        "blocks": verdict.share,
        "max error": f"{verdict.worst.max_error:.3g}",
        "tolerance": f"{verdict.worst.tolerance:.3g}",
        "written": written + (f", and {strays} that other blocks own" if strays else ""),
        "sanitizer": "\n           ".join(map(str, verdict.findings)) or "found nothing",
    }
    told = [f"{name:11}{text}" for name, text in lines.items()]
    ends = {"": "agrees with the reference", "wrong result": "DOES NOT AGREE with the reference"}
    return "\n".join([*told, ends.get(verdict.fault, "NOT SAFE: see what the sanitizer found")])
