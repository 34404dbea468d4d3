"""Large reports are small, and open fast: `pytest -m exhaustive -s tests/report/test_large_reports.py`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import ekc
from ekc.report.page import ReportPage, make_report
from ekc.report.run_data import RunData
from ekc.search.run_data.from_result import collect_run
from tests.browser import PageOpener

pytestmark = pytest.mark.exhaustive

MAX_BYTES, MAX_OPEN_S = 6_000_000, 2.0
LAYERS = [
    *(ekc.conv2d(1, c, h, h, out_channels=c, kernel=3, padding=1) for c, h in ((16, 28), (32, 14), (64, 7))),
    *(ekc.conv2d(1, 16, h, h, out_channels=32, kernel=1) for h in (7, 14, 28)),
    *(ekc.matmul(m, 64, 64) for m in (32, 64, 96, 128)),
    *(ekc.matmul(m, 64, 64, dtype="float16") for m in (32, 64, 96, 128)),
    *(ekc.matvec(m, 128) for m in (64, 128, 256)),
    *(ekc.softmax((rows, 128)) for rows in (32, 64, 128)),
]


@pytest.fixture(scope="module")
def large_run() -> RunData:
    return collect_run(ekc.tune(ekc.matmul(512, 512, 512), target="a100", trials=256, progress=False))


WATCH = """
  window.drawn = {};
  new MutationObserver(() => {
    const count = document.querySelectorAll(".picture .gtitle").length;
    for (let n = 1; n <= count; ++n) window.drawn[n] ??= performance.now() / 1000;
  }).observe(document, { subtree: true, childList: true });
"""
"""Keeps the second at which each picture was drawn."""


def measure_opening(file: Path, open_page: PageOpener, pictures: int) -> float:
    """Seconds until the page shows its text, and its pictures if they are drawn at once."""
    page = open_page()
    page.add_init_script(WATCH)
    page.goto(file.as_uri())
    page.wait_for_function(f"Object.keys(window.drawn).length >= {pictures}")
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length === 1")
    text = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000")
    last = page.evaluate("Math.max(0, ...Object.values(window.drawn))")
    print(f"text after {text:.2f} s, {pictures} pictures after {last:.2f} s")
    return float(max(text, last))


def check_page(page: ReportPage, file: Path, open_page: PageOpener) -> None:
    """The page is small and opens fast; the best of five openings counts, as the machine may be busy."""
    print(f"\n{file.name}: {page.format_size()}")
    assert len(page.html.encode()) < MAX_BYTES
    page.write(file)
    sections = page.html.count('data-run="')
    pictures = page.html.count('data-picture="')
    at_once = pictures if sections == 1 else 0
    assert min(measure_opening(file, open_page, at_once) for _ in range(5)) < MAX_OPEN_S
    tab = open_page()
    tab.goto(file.as_uri())
    tab.evaluate("document.querySelectorAll('details.run').forEach((section) => { section.open = true; })")
    tab.wait_for_function(f"document.querySelectorAll('.run[data-filled=done]').length === {sections}")
    assert tab.locator(".picture .svg-container").count() == pictures >= 4 * sections


def test_run_of_256_trials(large_run: RunData, tmp_path: Path, open_page: PageOpener) -> None:
    assert len(large_run.trials) == 256
    assert not large_run.missing
    check_page(make_report([large_run]), tmp_path / "trials.html", open_page)


def test_20_layers_of_256_trials(large_run: RunData) -> None:
    """Each section is compressed alone, so copies are as large as other layers of this size."""
    runs = [replace(large_run, layer=f"layer{n}", calls=1) for n in range(20)]
    page = make_report(runs)
    print(f"\n20 x 256 trials: {page.format_size()}")
    assert len(page.html.encode()) < MAX_BYTES


def test_model_of_20_layers(tmp_path: Path, open_page: PageOpener) -> None:
    assert len(LAYERS) == 20
    results = [ekc.tune(op, target="a100", trials=20, progress=False) for op in LAYERS]
    runs = [replace(collect_run(r), layer=f"layer{n}", calls=n + 1) for n, r in enumerate(results)]
    check_page(make_report(runs, "Model of 20 layers"), tmp_path / "layers.html", open_page)
