"""Clock plans: the choice by hand, each saving, JSON and back, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ekc.errors import InvalidInput
from ekc.search.clocks.choose import LayerFront, ModelFronts, make_plan
from ekc.search.clocks.plan import ClockPlan
from tests.search.clocks.plans import CLOCKS, make_fronts, make_kernel, make_small_plan


def test_plan_of_two_layers_is_the_one_by_hand() -> None:
    """At 1200 MHz the fastest take 10 x 1 + 4 / 1.2 = 13.33 s and 10 x 1.44 + 12 x 1.44 = 31.68 J. The fast
    kernel takes 14.44 s (+8.3 %) at 900 MHz and 14 s (+5.0 %) at 1000 MHz, the frugal 14.4 s (+8 %) there."""
    plan = make_plan(make_fronts(), 0.0505)
    assert (plan.clock_mhz, plan.layers[1].schedule) == (1000, "k1")
    assert plan.slowdown == pytest.approx(14 / (10 + 4 / 1.2) - 1)
    assert plan.savings.together.value == pytest.approx(1 - 22 / 31.68)
    assert plan.savings.together.value == plan.savings.clock.value
    assert plan.savings.fixed.value == pytest.approx(1 - (14.4 + 10 * 1.44) / 31.68)


def test_layer_may_be_slower_than_the_limit() -> None:
    plan = make_plan(make_fronts(), 0.0505)
    assert plan.layers[0].slowdown == 0
    assert plan.layers[1].slowdown == pytest.approx(0.2)
    saved = sum(layer.saved_j for layer in plan.layers)
    assert saved == pytest.approx(31.68 * plan.savings.together.value)


def test_together_saves_at_least_as_much_as_either() -> None:
    for slowdown in (0.0, 0.01, 0.03, 0.05, 0.1, 0.3):
        savings = make_plan(make_fronts(), slowdown).savings
        others = savings.fixed, savings.clock, savings.winners_at_clock
        assert savings.together.value >= max(x.value for x in others) - 1e-12


def test_front_saves_more_with_more_time() -> None:
    front = make_small_plan().front
    assert [point.max_slowdown for point in front] == [0.0, 0.02, 0.05, 0.1, 0.15, 0.2]
    savings = [point.saving for point in front]
    assert savings == sorted(savings)
    assert all(point.slowdown <= point.max_slowdown + 1e-9 for point in front)


def test_phases_have_clocks_of_their_own() -> None:
    """Decoding waits for memory alone, so the lowest clock costs it nothing."""
    phases = {advice.phase: advice for advice in make_small_plan().phases}
    assert set(phases) == {"prefill", "decode"}
    assert (phases["decode"].clock_mhz, phases["decode"].slowdown) == (900, 0)
    assert phases["prefill"].clock_mhz > 900


def test_model_of_one_phase_has_no_advice() -> None:
    fronts = make_fronts()
    layers = tuple(replace(layer, calls={"all": 1}) for layer in fronts.layers)
    assert make_plan(replace(fronts, layers=layers), 0.05).phases == ()


def test_intervals_of_a_saving_hold_both_errors() -> None:
    """Energies have errors of 1 %, so a ratio of two has one of 1.41 %."""
    together = make_plan(make_fronts(), 0.0505).savings.together
    half = (together.high - together.low) / 2
    assert half == pytest.approx(0.0141 * (1 - together.value), rel=0.01)


def test_json_and_back(tmp_path: Path) -> None:
    plan = make_small_plan()
    file = plan.write(tmp_path / "plan.json")
    assert ClockPlan.read(file) == plan
    assert json.loads(file.read_text())["schema"] == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "song"}, '"kind" must be'),
        ({"schema": 2}, "a clock plan of schema 2; this ekc reads 1"),
        ({"device": ""}, "device: '' is no name of a device"),
        ({"clock_mhz": True}, "clock_mhz: True is no clock"),
        ({"clock_mhz": 1275.5}, r"clock_mhz: 1275\.5 is no clock"),
        ({"layers": []}, "layers: there are none"),
        ({"layers": 3}, "a part of another form"),
        ({"energy_j": {"value": 1}}, "a part of another form"),
        ({"max_slowdown": float("nan")}, "max_slowdown: nan is no finite number"),
    ],
)
def test_other_json_is_refused_in_one_line(change: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        ClockPlan.from_json(make_small_plan().to_json() | change)
    assert "\n" not in str(caught.value)


def test_missing_part_is_named() -> None:
    value = make_small_plan().to_json()
    del value["savings"]
    with pytest.raises(InvalidInput, match="lacks 'savings'"):
        ClockPlan.from_json(value)


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        ClockPlan.read(tmp_path / "none.json")
    with pytest.raises(InvalidInput, match="cannot be written"):
        make_small_plan().write(tmp_path / "no" / "folder.json")


def test_text_has_savings_layers_front_and_phases() -> None:
    text = make_small_plan().summary()
    assert text.startswith("Clock plan for a100 (simulated): ")
    for words in (
        "kernels at the default clock",
        "kernels and clock together",
        "; simulated",
        "copy",
        "product",
    ):
        assert words in text
    assert "decode alone: 900 MHz would save" in text
    assert max(map(len, text.splitlines())) <= 100


def test_figures_of_other_lengths_are_refused() -> None:
    short = LayerFront("copy", "c0", {"": 1}, (make_kernel("k0", 1.0, 0.0, 1.0, clocks=CLOCKS[:2]),))
    with pytest.raises(InvalidInput, match="layer copy: kernel k0 needs 4 figures"):
        ModelFronts("a100", True, CLOCKS, 1200, (short,))
    with pytest.raises(InvalidInput, match="a clock plan needs one layer"):
        ModelFronts("a100", True, CLOCKS, 1200, ())
    with pytest.raises(InvalidInput, match="default_mhz: 1300 MHz is not among the clocks"):
        replace(make_fronts(), default_mhz=1300)
