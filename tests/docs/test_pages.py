"""Pages of docs/: names and figures are those of the code. Their blocks are executed with the site."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

import ekc
from benchmarks.gpu.__main__ import PARTS
from benchmarks.gpu.folder import FILES
from ekc.cli import main
from ekc.search.data.events import EVENTS, STAGES
from ekc.search.explain.by_feature import FEATURE_GROUPS
from ekc.search.explain.schedule_model import FOLDS, MIN_METERED
from tests.docs.blocks import ROOT, read_commands
from tests.search.helpers import record_law

FOLDERS = ("ekc", "benchmarks", "tests", "examples")


def find_page(name: str) -> Path:
    (page,) = (ROOT / "docs").rglob(f"{name}.md")
    return page


def read_page(name: str) -> str:
    return find_page(name).read_text()


def test_recordings_page_explains_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of its account by features, on a recording that holds enough."""
    monkeypatch.chdir(tmp_path)
    page = read_page("recordings")
    Path("gpu-out").mkdir()
    record_law(Path("gpu-out/recording.jsonl.gz"), count=14, metered=14)
    lines = read_commands(page, "console")
    assert len(lines) == 2
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "ekc"
        assert main(words) == 0, (line, capsys.readouterr().err)
        assert "unexplained" in capsys.readouterr().out
    assert all(group in page for group in FEATURE_GROUPS)
    assert f"Fewer than {MIN_METERED} metered schedules" in page
    assert FOLDS == 5
    assert "(five folds), physics alone beside it" in page


def test_kit_page_has_a_line_for_every_part() -> None:
    page = read_page("kit")
    for part, module in PARTS.items():
        assert f"| `{part}` | {module.MINUTES:g} |" in page
    assert all(f"| `{file}` |" in page for file in FILES)


def test_progress_page_names_every_event_stage_and_field() -> None:
    page = read_page("events")
    before, after = page.split("## Fields")
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", before, re.MULTILINE)) == EVENTS
    (stages,) = re.findall(r"^The stages are .*", page, re.MULTILINE)
    assert re.findall(r"`(\w+)`", stages) == list(STAGES)
    # The first cell of each row that begins with a name in code.
    cells = re.findall(r"^\| (`.*?) \|", after, re.MULTILINE)
    fields = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert fields - {"event", "time"} == {f.name for f in dataclasses.fields(ekc.TuningEvent)} - {"name"}


def test_paths_in_metering_page_exist() -> None:
    paths = set(re.findall(r"`?((?:devices|tests)/[\w/]+(?:\.py)?)`?", read_page("metering")))
    assert len(paths) >= 5
    assert not [path for path in paths if not ((ROOT / path).exists() or (ROOT / "ekc" / path).exists())]


def test_files_in_pages_exist() -> None:
    files = [f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    files += [f"/{path.name}" for path in ROOT.glob("*.*")]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    pattern = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|j2|toml))`")
    names = [(page.name, name) for page in pages for name in pattern.findall(page.read_text())]
    assert len(names) > 100
    assert not [(page, name) for page, name in names if not any(f.endswith(f"/{name}") for f in files)]
