"""docs/progress.md names the events and fields that there are, and its example runs."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import ekc
from ekc.search.data.events import EVENTS, STAGES
from tests.docs.blocks import ROOT, blocks, printed

PAGE = (ROOT / "docs" / "progress.md").read_text()


def test_the_page_names_every_event_stage_and_field() -> None:
    events = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.split("## Fields")[0], re.MULTILINE))
    assert events == EVENTS
    (stages,) = re.findall(r"^The stages are .*", PAGE, re.MULTILINE)
    assert re.findall(r"`(\w+)`", stages) == list(STAGES)
    fields = [re.findall(r"`(\w+)`", row) for row in _rows(PAGE.split("## Fields")[1])]
    assert {name for row in fields for name in row} - {"event", "time"} == {
        f.name for f in dataclasses.fields(ekc.TuningEvent)
    } - {"name"}


def test_the_example_runs() -> None:
    namespace: dict[str, Any] = {}
    assert [printed(block, namespace) for block in blocks(PAGE)] == [""]


def _rows(table: str) -> list[str]:
    """The first cell of each row that begins with a name in code."""
    return re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
