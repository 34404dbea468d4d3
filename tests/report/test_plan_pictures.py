"""The clock plan in a report: its figures, its picture in a real browser, and long names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ekc.report.page import make_report
from ekc.report.pictures import MAX_LAYERS, draw_plan
from ekc.report.run_data import PlanData, RunData
from ekc.search.run_data.from_result import collect_plan
from tests.browser import PageOpener
from tests.search.clocks.plans import make_small_plan


@pytest.fixture(scope="module")
def plan() -> PlanData:
    return collect_plan(make_small_plan())


def test_figures_are_those_of_the_plan(plan: PlanData) -> None:
    given = make_small_plan()
    assert plan.saving[-1] == given.savings.together.value
    assert (plan.saving_low <= plan.saving).all()
    assert (plan.saving <= plan.saving_high).all()
    # The savings of the layers add up to that of the plan.
    assert plan.layer_saving.sum() == pytest.approx(given.savings.together.value, abs=1e-9)
    assert (np.diff(plan.layer_saving) <= 0).all()
    assert [row[0] for row in plan.layers.rows] == list(plan.layer_names)


def test_page_shows_it(plan: PlanData, run_data: RunData, open_page: PageOpener, tmp_path: Path) -> None:
    page = open_page(width=800, dark=True)
    page.goto(make_report([run_data], plan=plan).write(tmp_path / "r.html").as_uri())
    page.wait_for_selector('#plan[data-filled="done"]')
    section = page.locator("#plan")
    assert section.locator(".gtitle").text_content() == f"Energy saved at {plan.clock_mhz} MHz (simulated)"
    assert section.locator("tbody tr").count() == len(plan.layer_names)
    assert plan.choice in section.inner_text()
    assert all(line in section.inner_text() for line in plan.advice)


def test_layers_with_equal_or_long_names_have_a_bar_each(plan: PlanData) -> None:
    names = ("encoder.layer.attention.self.query",) * 2 + tuple(f"layer {n}" for n in range(MAX_LAYERS))
    figure = draw_plan(replace(plan, layer_names=names, layer_saving=np.linspace(0.02, 0, len(names))))
    (bars,) = (trace for trace in figure.data if trace.xaxis == "x3")
    assert list(bars.y) == list(range(MAX_LAYERS))
    assert bars.text[:2] == names[:2]


def test_one_layer_has_no_picture_of_layers(plan: PlanData) -> None:
    one = replace(plan, layer_names=plan.layer_names[:1], layer_saving=plan.layer_saving[:1])
    assert {trace.xaxis for trace in draw_plan(one).data} == {"x", "x2"}
