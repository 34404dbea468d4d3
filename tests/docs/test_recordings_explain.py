"""docs/recordings.md: the commands of its account by features, on a recording that holds enough."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ekc.cli import main
from ekc.search.explain.by_feature import FEATURE_GROUPS
from ekc.search.explain.schedule_model import FOLDS, MIN_METERED
from tests.docs.blocks import ROOT, blocks
from tests.search.explain.recorded_law import by_global_memory, record

PAGE = (ROOT / "docs" / "recordings.md").read_text()


def test_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gpu-out").mkdir()
    record(Path("gpu-out/recording.jsonl.gz"), by_global_memory, count=14, metered=14)
    lines = [x for block in blocks(PAGE) if block.language == "console" for x in block.text.splitlines()]
    assert len(lines) == 2
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "ekc"
        assert main(words) == 0, (line, capsys.readouterr().err)
        assert "unexplained" in capsys.readouterr().out


def test_what_the_page_says_is_what_is_done() -> None:
    assert all(group in PAGE for group in FEATURE_GROUPS)
    assert f"Fewer than {MIN_METERED} metered schedules" in PAGE
    assert FOLDS == 5
    assert "(five folds), physics alone beside it" in PAGE
