"""The report in a real browser: all pictures, no network, light and dark, print; names in it are harmless."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page

from ekc.errors import InvalidInput
from ekc.report.page import make_overview, make_report
from ekc.report.pictures import PICTURES
from ekc.report.run_data import RunData
from ekc.search.data.trial import Trials
from ekc.search.run_data.from_result import collect_run
from ekc.search.tuning_result import TuningResult
from tests.browser import PageOpener

EVIL = '<script>document.title = "stolen"</script><img src=x onerror=\'document.title="stolen"\'>'
INKS = {False: "rgb(58, 63, 71)", True: "rgb(213, 218, 224)"}
"""Color of text in pictures on a light and on a dark page."""
DONE = '.run[data-filled="done"]'


def open_report(opener: PageOpener, file: Path, *, width: int = 1280, dark: bool = False) -> Page:
    page = opener(width=width, dark=dark)
    page.goto(file.as_uri())
    page.wait_for_selector(DONE, state="attached")
    return page


def count_pictures(page: Page) -> int:
    """Pictures that Plotly drew."""
    found: int = page.evaluate("document.querySelectorAll('.picture .svg-container').length")
    return found


def test_all_pictures_and_code_are_there_in_both_sizes_and_colors(
    report_file: Path, run_data: RunData, open_page: PageOpener
) -> None:
    page = open_report(open_page, report_file, width=800, dark=True)
    assert count_pictures(page) == len(PICTURES) == 8
    assert page.locator(".picture .svg-container").first.locator("svg.main-svg").count() >= 1
    titles = page.locator(".picture .gtitle").all_text_contents()
    assert len(titles) == 8
    assert all(title.endswith("(simulated)") for title in titles)
    (kernel,) = run_data.kernels
    assert page.locator(".program pre").text_content() == kernel.program
    assert page.locator(".cuda .code div").count() == len(kernel.cuda.split("\n"))
    numbered = page.locator(".cuda .code div[data-step] i").all_text_contents()
    assert numbered == [str(step) for step in kernel.step_by_line if step]
    assert page.locator(".machine pre").text_content() == kernel.machine_code != ""
    assert page.locator(".drawing svg").count() == 1
    fill = page.locator(".picture .gtitle").first.evaluate("e => getComputedStyle(e).fill")
    assert fill == INKS[True]
    for width in (800, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        fits = page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert fits, f"no sideways scrolling at {width} pixels"
    check_colors(page)


def check_colors(page: Page) -> None:
    """Colors follow the scheme; on paper they are dark on white."""
    color = "getComputedStyle(document.querySelector('.gtitle')).fill"
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"{color} === '{INKS[False]}'")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"{color} === '{INKS[True]}'")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function(f"{color} === '{INKS[False]}'")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def spoil_texts(run: RunData) -> RunData:
    """The run with markup in every name and text that comes from a user."""
    trials = Trials(replace(t, structure=EVIL, status=EVIL) for t in run.data.trials)
    (kernel,) = run.kernels
    return replace(
        run,
        title=EVIL,
        operator=EVIL,
        layer=EVIL,
        data=replace(run.data, trials=trials),
        kernels=(replace(kernel, python=f"Schedule\n{EVIL}", program=EVIL, cuda=EVIL, step_by_line=(1,)),),
        notes=((EVIL, EVIL),),
        conditions=((EVIL, EVIL),),
        missing={EVIL: EVIL},
        importances=tuple(
            replace(i, names=(EVIL, *i.names[1:]), dependences=(replace(i.dependences[0], name=EVIL),))
            for i in run.importances
        ),
    )


def test_sections_of_several_runs_are_drawn_when_opened_and_names_are_harmless(
    run_data: RunData, tmp_path: Path, open_page: PageOpener
) -> None:
    runs = [replace(run_data, layer="long" * 50, calls=2), replace(spoil_texts(run_data), calls=3)]
    page_file = make_report(runs, EVIL, [f"six: {EVIL}"]).write(tmp_path / "layers.html")
    page = open_page()
    page.goto(page_file.as_uri())
    assert page.locator("#overview tbody tr").count() == 2
    assert "All 5 calls" in page.locator("#overview .note").inner_text()
    assert count_pictures(page) == 0
    page.locator("#overview a").nth(1).click()
    page.wait_for_selector(f"#run-1{DONE}")
    assert count_pictures(page) == 8
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "no sideways scrolling"
    page.locator("#run-1 .picture").first.hover()
    assert EVIL in page.locator("#run-1 > summary").inner_text()
    assert page.locator("#run-1 .program pre").text_content() == EVIL
    assert page.locator("h1").inner_text() == EVIL
    assert page.title() == f"{EVIL} (simulated)"
    assert page.locator("img").count() == 0


def test_overview_has_four_digits_and_sums_with_units(run_data: RunData) -> None:
    best = replace(run_data.named["best"], latency_s=2.4e-6, energy_j=133e-6)
    small = replace(run_data, named=run_data.named | {"best": best}, calls=3)
    large = replace(small, named={"best": replace(best, latency_s=0.0123456, energy_j=2.0)})
    table = make_overview([small, small, large])
    assert [row[2] for row in table.rows] == ["2.400", "2.400", "12,346"]
    assert [row[3] for row in table.rows] == ["133.0", "133.0", "2,000,000"]
    assert table.note.endswith("All 9 calls: 37.05 ms, 6.001 J.")
    assert table.headers[-1] == "calls"
    assert make_overview([replace(small, calls=0)]).headers[-1] == "speed-up"


def test_parts_add_up_to_the_page(run_data: RunData) -> None:
    page = make_report([run_data])
    assert sum(page.bytes_by_part.values()) == len(page.html.encode())
    assert page.bytes_by_part["plotly"] < 2.1e6
    assert sum(page.bytes_by_part.values()) - page.bytes_by_part["plotly"] < 0.3e6
    size = sum(page.bytes_by_part.values()) / 1e6
    assert page.format_size().startswith(f"{size:.2f} MB (plotly {page.bytes_by_part['plotly'] / 1e6:.2f}, ")


def test_report_of_a_result_is_a_file(result: TuningResult, tmp_path: Path) -> None:
    assert result.report(tmp_path / "r.html") == tmp_path / "r.html"
    with pytest.raises(InvalidInput, match=r"report: .* cannot be written"):
        result.report(tmp_path / "absent" / "r.html")
    (tmp_path / "r.db").write_bytes(b"SQLite format 3")
    with pytest.raises(InvalidInput, match="exists and is no HTML page"):
        result.report(tmp_path / "r.db")
    assert result.report(tmp_path / "r.html").stat().st_size > 1e6


def test_page_without_nvdisasm_says_what_to_install(
    result: TuningResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ekc.codegen.nvrtc.find_nvdisasm", lambda: None)
    (kernel,) = collect_run(result, ("kernels",)).kernels
    assert kernel.machine_code == ""
    assert kernel.missing_machine_code == "machine code needs nvdisasm: pip install nvidia-cuda-nvdisasm"


def test_part_that_is_missing_is_named(run_data: RunData) -> None:
    html = make_report([replace(run_data, missing={"predicted": "too few"})]).html
    assert "Left out" in html
    assert "too few" in html
    assert 'data-picture="predicted"' not in html
