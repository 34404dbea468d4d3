"""Requests to shared memory in the picture, beside the analysis and the counts of the PTX machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ekc.ir.operators as o
from ekc.codegen.cache import compile_cached
from ekc.ir.analysis import traffic
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.analysis.bank_conflicts import count_wavefronts
from ekc.ir.drawing.banks import SharedRequest, list_shared_requests, list_wavefronts
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.schedule.schedule import Schedule
from tests.codegen import samples
from tests.drawn.schedules import draw_any, draw_by
from tests.emulator.generated import run
from tests.ir.async_examples import async_matmul, draw_async
from tests.ir.tensor_examples import draw_tensor, half_matmul, swizzled_matmul
from tests.ir.tilings import TILES, bind_loops

ANY = st.one_of(*(draw_by(draw) for draw in (draw_any, draw_tensor, draw_async)))


def list_requests(schedule: Schedule) -> list[SharedRequest]:
    return [r for kernel in derive_launches(schedule.program) for r in list_shared_requests(kernel)]


@settings(max_examples=40)
@given(ANY)
def test_wavefronts_are_those_of_the_analysis(schedule: Schedule) -> None:
    """In unswizzled tiles, whose counts do not depend on the start, they are equal."""
    counted: dict[tuple[str, str], list[Any]] = {}

    def record(self: Any, request: Any, guards: Any, extents: Any, lane_steps: Any) -> None:
        if request.access.buffer is not None:
            pattern = request.make_pattern(extents, lane_steps)
            counted.setdefault((request.access.buffer.name, request.kind), []).append(pattern)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traffic.TrafficCounter, "_count_request", record)
        analyse_program(schedule.program, LaunchLimits())
    for request in list_requests(schedule):
        waves = list_wavefronts(request)
        assert len(waves) == request.wavefronts >= request.needed_wavefronts
        if not request.buffer.is_swizzled and not request.buffer.panel:
            patterns = counted[request.buffer.name, request.kind]
            expected = {int(np.max(count_wavefronts(p, len(request.address)))) for p in patterns}
            assert request.wavefronts in expected, request.origin


@settings(max_examples=40)
@given(ANY)
def test_every_word_of_a_lane_is_served_once(schedule: Schedule) -> None:
    for request in list_requests(schedule):
        words = {
            (lane, (int(first) + b) // 4)
            for lane, first in enumerate(request.stored_bytes)
            for b in range(0, request.width_bytes, 4)
        }
        served = [lane for wave in list_wavefronts(request) for lanes in wave.values() for lane in lanes]
        assert sorted(served) == sorted(lane for lane, _ in words)


def transposed(pad: int) -> Schedule:
    op = o.compute(
        "turned", axes={"i": 64, "j": 64}, inputs={"X": (64, 64)}, body=lambda X, i, j: X[j, i], output="Y"
    )
    s = Schedule(op).split("i", (32,)).split("j", (32,)).reorder("i.0", "j.0", "i.1", "j.1")
    return bind_loops(s, TILES).cache_read("X", "shared", order=(1, 0), pad=pad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: transposed(0),
        lambda: transposed(1),
        lambda: transposed(4),
        lambda: samples.matmul(128, 128, 32, pipeline=False),
        lambda: async_matmul(32, 64, 32, dtype="float16", vector=8, swizzle=8),
        half_matmul,
        swizzled_matmul,
    ],
)
def test_wavefronts_and_conflicts_are_those_of_the_ptx_machine(make: Callable[[], Schedule]) -> None:
    schedule = make()
    counted: dict[str, set[tuple[float, float]]] = {"load": set(), "store": set()}
    for report in run(schedule, ptx=lambda source, arch: compile_cached(source, arch).ptx).reports:
        for site in report.counters.instructions.values():
            requests = site.landed or site.requests
            if site.wavefronts:
                kind = "load" if site.kind.startswith("load") else "store"
                counted[kind].add((site.wavefronts / requests, site.conflicts / requests))
    drawn: dict[str, set[tuple[float, float]]] = {"load": set(), "store": set()}
    for r in list_requests(schedule):
        drawn[r.kind].add((r.wavefronts, r.wavefronts - r.needed_wavefronts))
    assert drawn == counted


def test_conflicts_of_a_transpose_and_the_cure_by_a_pad() -> None:
    found = {}
    for pad in (0, 1):
        store = next(r for r in list_requests(transposed(pad)) if r.kind == "store")
        found[pad] = store.wavefronts, store.wavefronts - store.needed_wavefronts
        assert f"{count(store.wavefronts)}" in transposed(pad).draw("banks")
    assert found == {0: (32, 31), 1: (1, 0)}


def count(wavefronts: int) -> str:
    return f"{wavefronts} wavefront{'s' * (wavefronts > 1)}, {wavefronts - 1} bank conflicts"
