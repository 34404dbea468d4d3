"""Kernels in rotation: a kernel does not differ from itself, a true difference is found, verdicts are right.

On the simulated h100, and on a scripted GPU through NVML's sensors, whose power and time of a call are known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ekc
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.contenders import (
    MIN_ROUNDS,
    SLICE_NOISE,
    SLICE_S,
    Contender,
    Group,
    HotDevice,
    Ours,
    Slice,
    compare_slices,
    compute_detection,
    compute_findable_saving,
    estimate_slice_noise,
    read_group,
    rotate,
)
from benchmarks.gpu.equals_report import CONTROL, format_groups, judge_group
from benchmarks.gpu.orders import COUNTED, list_order_variants
from ekc import devices
from ekc.codegen.generate import compile_schedule
from ekc.devices.device import POWER_CAP
from ekc.devices.metering.meter import run_hot
from ekc.errors import InvalidInput
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule
from tests.benchmarks.helpers import ROOT
from tests.devices import samples
from tests.scripted.cuda.node import ScriptedNode
from tests.scripted.nvml.card import Card, ScriptedGpu
from tests.scripted.nvml.library import ScriptedNvml
from tests.scripted.nvml.metering import board_of, scripted

H100 = Card(
    name="Scripted H100",
    idle_w=120.0,
    busy_w=500.0,
    warming_w=25.0,
    share=0.25,
    noise=0.011,
    late_s=0.004,
    cap_mw=700_000,
)
"""Ticks of 0.1 s, a sensor that looks at a quarter of the time; one sample scatters by 1.1 to 1.2 %."""
ROUNDS = 8


@dataclass
class Planted:
    """A kernel of known power and time on a scripted GPU. The time of each run has an error of 0.3 %."""

    name: str
    gpu: ScriptedGpu
    library: ScriptedNvml
    busy_w: float = H100.busy_w
    call_s: float = H100.call_s

    def time(self, turn: int) -> Any:
        raise AssertionError("a rotation times nothing")

    meter: Any = time

    def run(self, turn: int, seconds: float) -> Slice:
        error = 1.0 + 0.003 * float(self.gpu.rng.standard_normal())
        self.gpu.card = replace(self.gpu.card, busy_w=self.busy_w, call_s=self.call_s * error)
        window = run_hot(board_of(self.gpu, self.library), samples.copy(1024), self.call_s, seconds)
        return Slice.from_window(window)


def _rotate_planted(factors: Sequence[float], seed: int, rounds: int = ROUNDS) -> dict[str, list[Slice]]:
    """Kernels of one speed whose power is that of the card times a factor each."""
    gpu, library = scripted(H100, seed)
    contenders = [Planted(str(n), gpu, library, factor * H100.busy_w) for n, factor in enumerate(factors)]
    return rotate(contenders, rounds, SLICE_S, seed)


def _rotate_simulated(copies: int, rounds: int, seed: int) -> list[dict[str, list[Slice]]]:
    """A kernel under several names on the simulated h100, three times; the board stays hot."""
    device = devices.open("h100")
    schedule = make_naive_schedule(ekc.matmul(64, 64, 64))
    kernel = compile_schedule(schedule, device.arch, device.limits)
    contenders: list[Contender] = [Ours(str(n), device, kernel) for n in range(copies)]
    return [rotate(contenders, rounds, SLICE_S, seed + n) for n in range(3)]


def _count_different(slices: dict[str, list[Slice]]) -> tuple[int, int]:
    """Pairs of kernels that are called different in energy or in time, and all comparisons."""
    pairs = list(itertools.combinations(slices.values(), 2))
    figures = ("latency_s", "energy_j")
    different = [compare_slices(*pair, figure).is_significant for pair in pairs for figure in figures]
    return sum(different), len(different)


def test_kernel_seldom_differs_from_itself() -> None:
    """All pairs of a kernel that runs under six names: at most 5 % are called different. The interval is
    that of 99 %."""
    simulated = _rotate_simulated(6, ROUNDS, seed=0)
    planted = [_rotate_planted([1.0] * 6, seed) for seed in range(3)]
    for rotations in (simulated, planted):
        counts = [_count_different(slices) for slices in rotations]
        assert sum(n for n, _ in counts) <= 0.05 * sum(n for _, n in counts)


def test_difference_of_two_percent_is_found() -> None:
    """Found in at least 90 %, with the right sign and within its interval."""
    found = []
    for seed in range(4):
        slices = _rotate_planted([1.0, 1.0, 1.0, 0.98, 0.98, 0.98], 100 + seed)
        for first, second in itertools.product("012", "345"):
            one = compare_slices(slices[second], slices[first], "energy_j")
            found.append(one.interval.high < 1.0)
            assert one.ratio == pytest.approx(0.98, abs=0.015)
    assert np.mean(found) >= 0.9


@pytest.mark.parametrize("rounds", [4, 12])
def test_findable_saving_is_found_as_often_as_computed(rounds: int) -> None:
    """Drawn slices with the noise that was put in; 1000 comparisons."""
    saving = compute_findable_saving(SLICE_NOISE, rounds)
    assert saving is not None
    assert compute_detection(saving, SLICE_NOISE, rounds) == pytest.approx(0.9, abs=1e-3)
    assert compute_findable_saving(SLICE_NOISE, 2 * rounds) < saving  # type: ignore[operator]
    random = np.random.default_rng(rounds)
    found = []
    for _ in range(1000):
        noise = np.exp(SLICE_NOISE * random.standard_normal((2, rounds)))
        one, other = ([_make_slice(joules) for joules in row] for row in noise * [[1 - saving], [1.0]])
        found.append(compare_slices(one, other, "energy_j").interval.high < 1.0)
    assert np.mean(found) == pytest.approx(0.9, abs=0.04)


def _make_slice(energy_j: float, latency_s: float = 1e-3, throttle: tuple[str, ...] = ()) -> Slice:
    return Slice(latency_s, energy_j, energy_j / latency_s, 1980.0, 60.0, throttle)


def _make_group(
    factors: Sequence[float], seed: int, throttle: tuple[str, ...] = (), rounds: int = ROUNDS
) -> Group:
    """A group on the scripted GPU: the reference, kernels of other power, and the control."""
    slices = _rotate_planted([1.0, *factors, 1.0], seed, rounds)
    names = ("fast", *(f"other {n}" for n in range(len(factors))), CONTROL)
    numbered = {
        n: {
            name: replace(one[n], throttle=throttle) for name, one in zip(names, slices.values(), strict=True)
        }
        for n in range(rounds)
    }
    return Group("MM", names[:-1], numbered)


def test_verdicts_on_planted_savings() -> None:
    """A saving of 3 % is found and its interval holds it; where there is none, none is claimed, and what is
    ruled out is as small as the rounds can show."""
    for seed in range(2):
        saved = judge_group(_make_group([1.01, 0.97], seed))
        assert saved.saving_kernel == "other 1"
        interval = saved.energy["other 1"].interval
        assert interval.low <= 0.97 <= interval.high
        assert saved.text.startswith("other 1 saves ")
        assert saved.text.endswith("% time")
        none = judge_group(_make_group([1.0, 1.0], 50 + seed))
        assert none.saving_kernel is None
        assert none.text.startswith("no saving found; more than ")
        assert float(none.text.split()[5]) < 2.5
        assert none.noise == pytest.approx(SLICE_NOISE, rel=0.5)
    more = judge_group(_make_group([1.05], 9, (POWER_CAP,)))
    assert more.text == "no saving: every other kernel takes more; at the power cap, energy follows time"


def test_a_group_whose_control_fails_is_not_believed() -> None:
    group = _make_group([0.97], 3)
    wrong = {
        number: taken | {CONTROL: replace(taken[CONTROL], energy_j=1.04 * taken[CONTROL].energy_j)}
        for number, taken in group.rounds.items()
    }
    verdict = judge_group(replace(group, rounds=wrong))
    assert verdict.text.startswith("not believed: the same kernel twice differs by +4")
    table = format_groups([group, replace(group, name="MV", rounds=wrong)], "Scripted H100")
    assert "MM: other 0 saves" in table
    assert "1 of 2 kernels differ from themselves" in table


def test_what_was_not_measured_is_no_verdict() -> None:
    group = _make_group([0.97], 4)
    few = replace(group, rounds={n: group.rounds[n] for n in range(MIN_ROUNDS - 1)})
    assert judge_group(few).text == "too few rounds"
    blind = {
        n: {name: replace(one, energy_j=math.nan, power_w=math.nan) for name, one in taken.items()}
        for n, taken in group.rounds.items()
    }
    assert judge_group(replace(group, rounds=blind)).text == "too few rounds with energy"
    assert "MM: too few rounds with energy" in format_groups([replace(group, rounds=blind)], "x")
    # A slice that a kill left alone in its round is in no pair.
    alone = replace(group, rounds={**group.rounds, ROUNDS: {"fast": group.rounds[0]["fast"]}})
    assert judge_group(alone).energy == judge_group(group).energy


def test_older_rows_that_say_contender_are_read() -> None:
    taken = _make_slice(1.0)
    row = {"item": "MM, round 0, ekc", "status": "ok", "group": "MM", "round": 0, "contender": "ekc"}
    folder: Any = SimpleNamespace(list_rows=lambda part: [row | taken.to_json()])
    assert read_group(folder, "versus, slices", {"item": "MM"}, ["ekc"]).rounds == {0: {"ekc": taken}}


def test_each_round_has_each_kernel_once_in_a_drawn_order() -> None:
    order: list[str] = []

    class Noted(Planted):
        def run(self, turn: int, seconds: float) -> Slice:
            order.append(self.name)
            if self.name == "c" and turn == 12:
                raise MemoryError("no memory")
            return super().run(turn, seconds)

    gpu, library = scripted(H100)
    contenders = [Noted(name, gpu, library) for name in "abc"]
    kept: list[tuple[str, int]] = []
    failed: list[str] = []
    slices = rotate(
        contenders,
        4,
        0.4,
        0,
        on_slice=lambda name, number, taken: kept.append((name, number)),
        on_problem=lambda name, problem: failed.append(f"{name}: {problem}"),
        first_round=10,
    )
    rounds = [sorted(order[n : n + 3]) for n in (0, 3, 6)]
    assert rounds == [list("abc")] * 3
    assert len({tuple(order[n : n + 3]) for n in (0, 3, 6)}) > 1
    assert {name: len(taken) for name, taken in slices.items()} == {"a": 4, "b": 4, "c": 1}
    assert failed == ["c: no memory"]
    assert sorted(kept) == [("a", n) for n in (10, 11, 12, 13)] + [("b", n) for n in (10, 11, 12, 13)] + [
        ("c", 10)
    ]
    assert rotate(contenders[:2], 4, 0.4, 0, is_over=lambda: len(order) > 13)["a"] == []
    with pytest.raises(MemoryError):
        rotate(contenders, 1, 0.4, 0, first_round=11)
    with pytest.raises(InvalidInput, match="a is the name of two contenders"):
        rotate([contenders[0], contenders[0]], 1, 0.4, 0)


def test_slices_follow_each_other_on_one_hot_board() -> None:
    """The simulated board goes from one temperature to its settled one from slice to slice, without a jump as
    from a board of its own, and other measurements do not depend on it."""
    device = devices.open("h100")
    op = ekc.matmul(256, 256, 256)
    kernel = compile_schedule(make_naive_schedule(op), device.arch, device.limits)
    ours = Ours("ours", device, kernel)
    taken = [ours.run(n, SLICE_S) for n in range(40)]
    steps = np.diff([one.temperature_c for one in taken])
    assert np.all(steps < 0)
    assert np.all(np.diff(np.abs(steps)) < 0.01)
    noise = estimate_slice_noise({"a": taken[20::2], "b": taken[21::2]}, "energy_j")
    assert 0.002 < noise < 0.01  # type: ignore[operator]
    assert device.meter(kernel) == devices.open("h100").meter(kernel)


def test_slices_of_a_real_device_come_from_its_worker_and_sensors() -> None:
    node = ScriptedNode(card=replace(H100, name="Scripted A100"))
    device = node.open(launch_s=1e-3)
    assert isinstance(device, HotDevice)
    kernel = compile_schedule(make_naive_schedule(ekc.matmul(16, 16, 16)), device.arch, device.limits)
    ours = Ours("ours", device, kernel)
    began = node.cards[0].clock.now()
    one = ours.run(0, SLICE_S)
    assert node.cards[0].clock.now() - began < 0.15 + SLICE_S + 3 * H100.tick_s
    assert one.latency_s == pytest.approx(H100.call_s, rel=0.01)
    assert one.power_w == pytest.approx(H100.busy_w, rel=0.04)
    assert one.energy_j == one.power_w * one.latency_s
    node.library.fails.update(nvmlDeviceGetTotalEnergyConsumption=3, nvmlDeviceGetFieldValues=3)
    node.library.fails.update(nvmlDeviceGetPowerUsage=3)
    blind = ours.run(1, SLICE_S)
    assert blind.latency_s == pytest.approx(H100.call_s, rel=0.01)
    assert math.isnan(blind.energy_j)
    assert Slice.from_json(blind.to_json()).latency_s == blind.latency_s
    device.close()


def test_slice_of_a_recorded_device_is_what_was_recorded() -> None:
    recorded = devices.open(f"recorded:{ROOT / 'recordings/h100/recording.jsonl.gz'}")
    rows = recorded.recording.rows  # type: ignore[attr-defined]
    row = next(one for one in rows if one.meterings and one.schedule.op.name == "matvec")
    kernel = compile_schedule(row.schedule, recorded.arch, recorded.limits)
    taken = Ours("recorded", recorded, kernel).run(0, SLICE_S)
    assert taken.latency_s == row.find_timing().latency_s
    assert taken.energy_j == row.find_metering().energy_j


def test_orders_have_the_same_counts() -> None:
    op = ekc.matmul(256, 256, 256)
    schedule = (
        Schedule(op)
        .split("i", (8, 8))
        .split("j", (8, 8))
        .split("k", (16,))
        .reorder("i.0", "j.0", "i.1", "j.1", "k.0", "k.1", "i.2", "j.2")
        .bind("i.0", "block.x")
        .bind("j.0", "block.x")
        .bind("i.1", "thread.x")
        .bind("j.1", "thread.x")
        .cache_write("C")
        .cache_read("A", "shared", at="k.0")
        .cache_read("B", "shared", at="k.0")
    )
    limits = devices.open("h100").limits
    variants = dict(list_order_variants(schedule, limits))
    assert list(variants) == [
        "operands swapped",
        "tiles by columns",
        "k.0 in 2 turns",
        "k.0 in 4 turns",
        "tiles in groups of 4",
    ]
    first = analyse_program(schedule.program, limits)
    for variant in variants.values():
        figures = analyse_program(variant.program, limits)
        for name in COUNTED:
            assert figures[name] == pytest.approx(first[name], rel=0.01)
    strided = variants["k.0 in 2 turns"]
    assert [loop.name for loop in strided.program.nests[0].loops][4:7] == ["k.1", "k.0", "k.2"]
    assert not list(list_order_variants(make_naive_schedule(ekc.matvec(64, 64)), limits))


def test_table_of_what_can_be_found_needs_no_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["equals", "--power"]) == 0
    text = capsys.readouterr().out
    assert "saving that a group of 5 kernels finds in 90% of cases, at 99% confidence" in text
    rows = [line.split() for line in text.splitlines() if line[:1].isdigit()]
    assert [row[0] for row in rows] == ["15", "30", "45", "60", "120", "240"]
