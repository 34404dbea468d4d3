"""The page of `ekc govern --plot`: what it draws, where it is refused, and its look in a browser."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from ekc.errors import InvalidInput
from ekc.governor.event_records import Applied, Event, Shifted
from ekc.governor.live.job_plot import check_plot_file, draw_job, plot_log
from ekc.governor.live.job_report import GovernorLog
from ekc.governor.protocols import Settings
from tests.browser import PageOpener

pytest.importorskip("plotly")
START_S = 100.0


def make_log(*events: Event, simulated: bool = True) -> GovernorLog:
    """A job of ten minutes at 300 W."""
    name = "a job (simulated)" if simulated else "a job"
    trace = [(START_S + second, 300.0, 1410.0) for second in range(601)]
    return GovernorLog(name, simulated, list(events), trace)


EVENTS = (
    Applied(START_S + 60, Settings(sm_mhz=1200), "candidate"),
    Applied(START_S + 120, Settings(), "the default again"),
    Applied(START_S + 180, Settings(sm_mhz=1305), "the choice"),
    Shifted(START_S + 300, "large", 0.5),
)


def test_limits_are_drawn_from_each_setting_to_the_next() -> None:
    lines = {trace.name: trace for trace in draw_job(make_log(*EVENTS)).data}
    limits = lines["limit set"]
    assert list(limits.x) == [1, 2, 2, 3, 3, 10]
    assert [*limits.y[:2], *limits.y[4:]] == [1200, 1200, 1305, 1305]
    assert limits.y[2] is None, "no limit is in force"
    assert limits.y[3] is None
    assert set(lines["SM clock"].y) == {1410}
    assert lines["power"].x[-1] == 10
    assert "limit set" not in {trace.name for trace in draw_job(make_log()).data}


def test_changes_of_the_job_are_marked_and_explained() -> None:
    layout = draw_job(make_log(*EVENTS)).layout
    assert {shape.x0 for shape in layout.shapes} == {5}
    assert "A dotted line is a change of the job" in layout.title.subtitle.text
    plain = draw_job(make_log()).layout
    assert not plain.shapes
    assert "dotted" not in plain.title.subtitle.text


@pytest.mark.parametrize("simulated", [True, False])
def test_title_says_simulated_where_it_is(simulated: bool) -> None:
    assert ("simulated" in draw_job(make_log(simulated=simulated)).layout.title.text) == simulated


def test_log_without_samples_is_drawn() -> None:
    figure = draw_job(GovernorLog("a job", False))
    assert [list(np.atleast_1d(trace.y)) for trace in figure.data] == [[None], [None], [None]]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("job.svg", "the plot is a page; name it job.html"),
        ("job", "the plot is a page; name it job.html"),
        ("nowhere/job.html", "there is no folder .*nowhere"),
    ],
)
def test_file_that_cannot_be_a_plot_is_refused(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_plot_file(tmp_path / name)
    check_plot_file(tmp_path / "job.html")
    (tmp_path / "job.html").mkdir()
    with pytest.raises(InvalidInput, match="it is a folder"):
        check_plot_file(tmp_path / "job.html")


def test_missing_plotly_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(InvalidInput, match=r"--plot needs plotly: pip install 'ekc\[plot\]'"):
        check_plot_file(tmp_path / "job.html")


def test_page_opens_without_a_network_and_follows_the_color_scheme(
    tmp_path: Path, open_page: PageOpener
) -> None:
    plot_log(make_log(*EVENTS), tmp_path / "job.html")
    page = open_page(width=800)
    page.goto((tmp_path / "job.html").as_uri())
    page.wait_for_selector("#figure .legend text")
    assert page.title() == "a job (simulated)"
    assert "Clock, power and iterations of the job (simulated)" in page.text_content("#figure .gtitle")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    read_colors = """() => [getComputedStyle(document.body).backgroundColor,
        getComputedStyle(document.querySelector("#figure .gtitle")).fill]"""
    assert page.evaluate(read_colors) == ["rgb(255, 255, 255)", "rgb(58, 63, 71)"]
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"({read_colors})()[1] === 'rgb(213, 218, 224)'", timeout=5000)
    assert page.evaluate(read_colors)[0] == "rgb(22, 25, 29)"
