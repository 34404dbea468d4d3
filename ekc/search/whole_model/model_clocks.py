"""The search of clocks for all layers of a model together, after their schedules were searched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import Device
from ekc.ir.schedule.schedule import Schedule
from ekc.models.model import ModelLayer
from ekc.search.data.options import TuneOptions
from ekc.search.data.result import MeasurementCost
from ekc.search.database.database import RecordStore
from ekc.search.loop.clock_stage import ClockStage, SearchedLayer
from ekc.search.loop.measure import Measurer
from ekc.search.whole_model.model_data import TunedLayer

KernelSource = Callable[[Schedule], CompiledKernel]


def make_clock_stage(
    layers: Sequence[TunedLayer],
    device: Device,
    store: RecordStore,
    kernel_sources: Mapping[str, KernelSource],
    options: TuneOptions,
    can_continue: Callable[[], bool],
) -> ClockStage:
    """The search of clocks for the layers that have a result, at least one. `kernel_sources` compiles the
    schedules of an operator, by its digest. The phases of the plan are the models of the layers."""
    results = [(x.layer, x.result) for x in layers if x.result is not None]
    costs = [result.spent for _, result in results]
    cost = MeasurementCost(metering_s=sum(c.metering_s for c in costs), idle_w=costs[-1].idle_w)
    return ClockStage(
        [SearchedLayer.from_result(layer.name, count_calls(layer), result) for layer, result in results],
        Measurer(device, store, cost),
        lambda schedule: kernel_sources[schedule.op.digest](schedule),
        options.max_slowdown,
        options.seed,
        can_continue,
    )


def count_calls(layer: ModelLayer) -> dict[str, int]:
    """Calls of a layer by phase: the models of its uses, such as "prefill" and "decode"."""
    calls: dict[str, int] = {}
    for use in layer.uses:
        calls[use.model] = calls.get(use.model, 0) + use.count
    return calls
