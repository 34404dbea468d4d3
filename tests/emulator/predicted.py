"""Traffic that the analysis predicts for a schedule, beside the counts of the PTX machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

import ekc.ir.expr as ex
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from tests.emulator.generated import Ran

TRAFFIC = (
    "global_load_requests", "global_load_sectors", "global_store_requests", "global_store_sectors",
    "shared_load_requests", "shared_load_wavefronts", "shared_store_requests", "shared_store_wavefronts",
)  # fmt: skip
QUANTITIES = ("fma", "barriers", "shuffles", *TRAFFIC)


def predict_traffic(schedule: Schedule, limits: LaunchLimits | None = None) -> dict[str, float]:
    """Totals over all launches."""
    figures = analyse_program(schedule.program, limits or LaunchLimits())
    return {name: float(figures["total_" + name][0]) for name in QUANTITIES}


def count_traffic(ran: Ran) -> Counter[str]:
    """The counted quantities: fma by lane, accesses by warp request, barriers by block."""
    total: Counter[str] = Counter()
    for report in ran.reports:
        counters = report.counters
        total["barriers"] += counters.barriers
        total["fma"] += counters.lane_instructions.get("fma.f32", 0)
        total["shuffles"] += counters.warp_instructions.get("warp", 0)
        for site in counters.instructions.values():
            if site.kind.startswith("copy"):
                # It reads global memory and writes shared memory, each with requests of its own.
                total["global_load_requests"] += site.requests
                total["global_load_sectors"] += site.sectors
                total["shared_store_requests"] += site.landed
                total["shared_store_wavefronts"] += site.wavefronts
                continue
            if site.kind == "wgmma":
                # It reads its factors without a request of a lane.
                total["shared_load_wavefronts"] += site.wavefronts
                continue
            kind, _, space = site.kind.partition(".")
            total[f"{space}_{kind}_requests"] += site.requests
            total[f"{space}_{kind}_sectors"] += site.sectors
            total[f"{space}_{kind}_wavefronts"] += site.wavefronts
    return total


def check_traffic(
    ran: Ran, names: Iterable[str], limits: LaunchLimits | None = None, rel: float = 1e-9
) -> None:
    """The kernels are right and clean, and these quantities as predicted."""
    ran.check()
    found, expected = count_traffic(ran), predict_traffic(ran.schedule, limits)
    for name in names:
        assert found[name] == pytest.approx(expected[name], rel=rel), f"{name}\n{ran.schedule.to_python()}"


def multiplies_and_adds(op: Operator) -> bool:
    """Whether every statement is one multiply-add, so that the fmas of the PTX are its iterations."""
    return all(
        c.reduction_axes and c.combine == "sum" and isinstance(c.body, ex.Binary) and c.body.op == "*"
        and all(isinstance(part, ex.Load) for part in ex.list_factors(c.body))
        and len(ex.list_factors(c.body)) == 2
        for c in op.computes
    )  # fmt: skip
