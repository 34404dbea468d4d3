"""`ekc run`: is a schedule right? Its Program on random inputs, against the float64 reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ekc.cli.operators import NEGATIVES
from ekc.cli.output import json_option, say, say_json
from ekc.cli.sources import Source, schedule_source

if TYPE_CHECKING:
    from ekc.ir.agreement import Agreement

_FLOPS_IN_FULL = 2.0**28
"""Up to here every block runs; of a larger problem some do."""
_BLOCKS = 8


@click.command(context_settings=NEGATIVES)
@schedule_source
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the inputs.")
@json_option
def run(source: Source, seed: int, as_json: bool) -> int:
    """Evaluate a schedule in NumPy on random inputs and compare with a float64 reference.

    The CUDA is not executed: this shows what the schedule computes. Status 1 when it is wrong.
    """
    from ekc.devices.kernel import Kernel
    from ekc.ir.agreement import agreement, random_inputs
    from ekc.ir.tree import kernels

    found = source.find()
    schedule = found.schedule
    total = int(kernels(schedule.program)[-1].blocks)
    blocks = total if schedule.op.flops <= _FLOPS_IN_FULL else _BLOCKS
    verdict = agreement(schedule.program, random_inputs(schedule.op, seed), blocks, seed)
    facts = {
        "operator": schedule.op.to_json(),
        "digest": schedule.digest,
        "origin": found.origin,
        "executed_by": Kernel.executed_by,
        "seed": seed,
        "max_error": verdict.max_error,
        "tolerance": verdict.tolerance,
        "complete": verdict.complete,
        "blocks": verdict.blocks,
        "total_blocks": verdict.total_blocks,
        "ok": verdict.ok,
    }
    if as_json:
        say_json(facts)
    else:
        say(f"{str(schedule.op).splitlines()[0]}: {found.origin}\n{_text(verdict, seed)}")
    return 0 if verdict.ok else 1


def _text(verdict: Agreement, seed: int) -> str:
    from ekc.devices.kernel import Kernel

    lines = {
        "inputs": f"normal(0, 1), seed {seed}",
        "run by": Kernel.executed_by,
        "blocks": f"{verdict.blocks} of {verdict.total_blocks}",
        "max error": f"{verdict.max_error:.3g}",
        "tolerance": f"{verdict.tolerance:.3g}",
        "written": "every element that these blocks own" if verdict.complete else "NOT every element",
    }
    told = [f"{name:11}{text}" for name, text in lines.items()]
    return "\n".join(
        [*told, "agrees with the reference" if verdict.ok else "DOES NOT AGREE with the reference"]
    )
