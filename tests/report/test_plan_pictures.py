"""The clock plan in a report: its figures, its picture in a real browser, and long names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ekc.report.page import make_layer_table, make_report
from ekc.report.pictures import MAX_LAYERS, draw_plan
from ekc.report.run_data import RunData
from ekc.search.clocks.plan import ClockPlan
from tests.browser import PageOpener
from tests.search.clocks.plans import make_small_plan


@pytest.fixture(scope="module")
def plan() -> ClockPlan:
    return make_small_plan()


def test_figures_are_those_of_the_plan(plan: ClockPlan) -> None:
    (bars,) = (trace for trace in draw_plan(plan).data if trace.xaxis == "x")
    assert bars.x[-1] == pytest.approx(100 * plan.savings.together.value, rel=1e-4)
    assert min(bars.error_x.array) >= 0
    assert min(bars.error_x.arrayminus) >= 0
    # The savings of the layers add up to that of the plan.
    names, shares = zip(*((layer.name, x) for layer, x in plan.list_layers_by_saving()), strict=True)
    assert sum(shares) == pytest.approx(plan.savings.together.value, abs=1e-9)
    assert (np.diff(shares) <= 0).all()
    assert [row[0] for row in make_layer_table(plan).rows] == list(names)


def test_page_shows_it(plan: ClockPlan, run_data: RunData, open_page: PageOpener, tmp_path: Path) -> None:
    page = open_page(width=800, dark=True)
    page.goto(make_report([run_data], plan=plan).write(tmp_path / "r.html").as_uri())
    page.wait_for_selector('#plan[data-filled="done"]')
    section = page.locator("#plan")
    assert section.locator(".gtitle").text_content() == f"Energy saved at {plan.clock_mhz} MHz (simulated)"
    assert section.locator("tbody tr").count() == len(plan.layers)
    assert plan.describe_choice() in section.inner_text()
    assert all(line in section.inner_text() for line in plan.list_advice())


def test_layers_with_equal_or_long_names_have_a_bar_each(plan: ClockPlan) -> None:
    names = ("encoder.layer.attention.self.query",) * 2 + tuple(f"layer {n}" for n in range(MAX_LAYERS))
    savings = np.linspace(0.02, 0, len(names)).tolist()
    pairs = zip(names, savings, strict=True)
    layers = tuple(replace(plan.layers[0], name=name, saved_j=joules) for name, joules in pairs)
    figure = draw_plan(replace(plan, layers=layers))
    (bars,) = (trace for trace in figure.data if trace.xaxis == "x3")
    assert list(bars.y) == list(range(MAX_LAYERS))
    assert bars.text[:2] == names[:2]


def test_one_layer_has_no_picture_of_layers(plan: ClockPlan) -> None:
    one = replace(plan, layers=plan.layers[:1])
    assert {trace.xaxis for trace in draw_plan(one).data} == {"x", "x2"}
