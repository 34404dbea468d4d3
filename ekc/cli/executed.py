"""What `ekc run` and `ekc check` tell of a launch that was executed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ekc.emulator import Counters
    from ekc.runtime.verify import LaunchCheck


def describe_execution(checked: LaunchCheck) -> dict[str, Any]:
    """As JSON: how much of the grid ran, how right it was, findings, and counts over the blocks that ran."""
    report = checked.report
    counters = asdict(report.counters)
    # One entry for each PTX line is too much to read; they are told by opcode.
    del counters["instructions"]
    return {
        "name": report.kernel,
        "blocks": report.blocks_run,
        "total_blocks": report.total_blocks,
        "max_error": checked.agreement.max_error,
        "tolerance": checked.agreement.tolerance,
        "right": checked.agreement.ok,
        "wrapped": checked.agreement.wrapped,
        "findings": [asdict(f) | {"text": str(f)} for f in report.findings],
        "notes": list(report.notes),
        "counters": counters,
        "accesses": _sum_accesses(report.counters),
    }


def format_counts(facts: dict[str, Any]) -> dict[str, str]:
    """The same in words, a line each; counts are of the blocks that ran."""
    from ekc.ir.interpreter.compare import INT32_WRAP_NOTE

    counters = facts["counters"]
    classes = sorted(counters["warp_instructions"].items(), key=lambda item: -item[1])
    return {
        "executed": f"{facts['blocks']} of {facts['total_blocks']} blocks, on the CPU",
        "result": f"{'agrees' if facts['right'] else 'DOES NOT AGREE'} with the reference: "
        f"max error {facts['max_error']:.3g}, tolerance {facts['tolerance']:.3g}"
        + (f"; {INT32_WRAP_NOTE}" if facts["wrapped"] else ""),
        "sanitizer": f"{len(facts['findings']) or 'no'} findings",
        "sectors": f"{counters['global_sectors']} in {counters['global_requests']} global requests",
        "wavefronts": _format_wavefronts(counters),
        "barriers": f"{counters['barriers']}; {counters['divergent_branches']} branches diverged",
        "issued": ", ".join(f"{kind} {count}" for kind, count in classes if count),
    }


def format_accesses(facts: dict[str, Any]) -> str:
    """One row for each kind of memory access that ran: how often, and how a warp's addresses fit together."""
    from ekc.tables import format_table

    headers = ("memory access", "in the PTX", "requests a block", "sectors", "wavefronts", "conflicts")
    return format_table(
        headers, [_format_access(a, facts["blocks"]) for a in facts["accesses"]], label_count=1
    )


def _format_access(access: dict[str, Any], blocks: int) -> tuple[str, ...]:
    requests, on_chip = access["requests"], not access["sectors"]
    return (
        access["opcode"],
        str(access["places"]),
        f"{requests / blocks:.6g}",
        "" if on_chip else f"{access['sectors'] / requests:.1f}",
        f"{access['wavefronts'] / requests:.1f}" if on_chip else "",
        f"{access['conflicts'] / requests:.1f}" if on_chip else "",
    )


def _sum_accesses(counters: Counters) -> list[dict[str, Any]]:
    """Memory instructions that ran, summed over all places of one opcode, in order of the text."""
    found: dict[str, dict[str, Any]] = {}
    counted = ("requests", "sectors", "wavefronts", "conflicts", "bytes")
    for site in counters.instructions.values():
        if not site.requests:
            continue
        # A guard such as "@%p1" may stand before it.
        opcode = next(word for word in site.instruction.split() if not word.startswith("@"))
        one = found.setdefault(opcode, {"opcode": opcode, "places": 0} | dict.fromkeys(counted, 0))
        one["places"] += 1
        for name in counted:
            one[name] += getattr(site, name)
    return list(found.values())


def _format_wavefronts(counters: dict[str, Any]) -> str:
    if not counters["shared_requests"]:
        return "none: no shared memory"
    passes = f"{counters['shared_wavefronts']} in {counters['shared_requests']} shared requests"
    return f"{passes}, {counters['bank_conflicts']} of them bank conflicts"
