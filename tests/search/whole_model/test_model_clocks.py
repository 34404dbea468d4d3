"""`ekc.tune_model(clocks="search")`: one clock for all layers, from one search after the last of them."""

from __future__ import annotations

import pytest

import ekc
from ekc.devices.device import OfferedClocks
from ekc.devices.simulated.device import SimulatedDevice
from ekc.models.model import LayerUse, Model, ModelLayer
from ekc.search.whole_model.model_result import ModelResult
from tests.search.helpers import THREADS

LAYERS = (
    ModelLayer(ekc.matvec(256, 256), (LayerUse("first", "prefill", 2), LayerUse("first", "decode", 8))),
    ModelLayer(ekc.matvec(512, 128), (LayerUse("second", "prefill", 3),)),
)
MODEL = Model("two layers", LAYERS)


def tune_both(**options: object) -> ModelResult:
    return ekc.tune_model(MODEL, "a100", trials=10, progress=False, executor=THREADS, **options)


@pytest.fixture(scope="module")
def searched() -> ModelResult:
    return tune_both(clocks="search")


def test_plan_has_one_clock_and_every_layer(searched: ModelResult) -> None:
    plan = searched.plan
    assert plan is not None
    assert (plan.device, plan.simulated, plan.default_mhz) == ("a100", True, 1275)
    assert [(layer.name, layer.calls) for layer in plan.layers] == [("first", 10), ("second", 3)]
    assert plan.slowdown <= 0.05 + 1e-9
    for layer, tuned in zip(plan.layers, searched.layers, strict=True):
        assert tuned.result is not None
        assert layer.schedule in {t.schedule.digest for t in (*tuned.result.trials, tuned.result.baseline)}
        assert tuned.result.plan is None
    assert {advice.phase for advice in plan.phases} == {"prefill", "decode"}


def test_plan_is_in_summary_and_json(searched: ModelResult) -> None:
    assert "Clock plan for a100 (simulated)" in searched.summary()
    assert searched.plan is not None
    assert searched.to_json()["plan"] == searched.plan.to_json()


def test_search_of_clocks_is_in_the_cost(searched: ModelResult) -> None:
    layers_s = sum(result.spent.metering_s for result in searched.results)
    assert searched.clocks_metering_s <= max(8 * 7.5, layers_s / 2)
    assert searched.spent.metering_s == pytest.approx(layers_s + searched.clocks_metering_s)


@pytest.mark.exhaustive
def test_winners_at_the_default_clock_stay(searched: ModelResult) -> None:
    fixed = tune_both()
    assert fixed.plan is None
    assert [r.best.schedule for r in fixed.results] == [r.best.schedule for r in searched.results]


@pytest.mark.exhaustive
def test_device_without_clocks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedDevice, "clocks", lambda _: OfferedClocks(reason="no permission"))
    result = tune_both(clocks="search")
    assert result.plan is None
    assert result.clocks_note == "not searched: no permission"
    assert "not searched: no permission" in result.summary()
