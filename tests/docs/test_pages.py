"""Pages of docs/: blocks print what the page says, commands work, names and figures are those of the code."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ekc
from benchmarks.gpu.__main__ import PARTS
from benchmarks.gpu.folder import FILES
from ekc.cli import main
from ekc.codegen import nvrtc
from ekc.search.data.events import EVENTS, STAGES
from ekc.search.explain.by_feature import FEATURE_GROUPS
from ekc.search.explain.schedule_model import FOLDS, MIN_METERED
from tests.docs.blocks import ROOT, blocks, printed, read_commands, with_outputs
from tests.search.helpers import record_law

PAGES = {
    **dict.fromkeys(("tutorial", "schedule-space", "tensor-cores", "metering", "events"), "python"),
    # Its block in "python" needs a GPU.
    "governor": "py",
}
"""Page -> language of the blocks that are run."""
FOLDERS = ("ekc", "benchmarks", "tests", "examples")


def find_page(name: str) -> Path:
    (page,) = (ROOT / "docs").rglob(f"{name}.md")
    return page


def read_page(name: str) -> str:
    return find_page(name).read_text()


def run_blocks(page: str, language: str) -> list[str]:
    """The output of the blocks that have a text block under them."""
    namespace: dict[str, Any] = {}
    outputs = []
    fenced = blocks(page)
    for block, after in zip(fenced, [*fenced[1:], None], strict=True):
        if block.language == language:
            text = printed(block, namespace)
            if after is not None and after.language == "text":
                outputs.append(text)
            else:
                assert text == "", f"the block at line {block.line} prints, and no text block shows it"
    return outputs


@pytest.mark.parametrize("name", PAGES)
def test_page_shows_what_its_blocks_print(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = read_page(name)
    new = with_outputs(page, run_blocks(page, PAGES[name]))
    if request.config.getoption("--update-golden"):
        find_page(name).write_text(new)
        return
    if re.search(r"NVRTC \d", page) and f"NVRTC {nvrtc.version()}" not in page:
        pytest.skip(f"the page's figures are of another NVRTC than {nvrtc.version()}; its blocks ran")
    assert new == page, f"docs/{name}.md shows other output; --update-golden accepts the new"


@pytest.mark.parametrize("name", ["recordings", "kit"])
def test_commands_of_page_work_one_after_the_other(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = read_commands(read_page(name), "sh")
    assert len(lines) >= 3
    for line in lines:
        program, *words = shlex.split(line)
        if program == "python":
            status = subprocess.call([sys.executable, *words], env=os.environ | {"PYTHONPATH": str(ROOT)})
        else:
            assert program == "ekc"
            status = main(words)
        out, err = capfd.readouterr()
        assert status == 0, (line, err)
        assert "Traceback" not in err
        if "t4" not in words and "search" not in words:
            assert "simulated" in out, line


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
