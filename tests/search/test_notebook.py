"""`tune` and its result in a real IPython kernel: the messages that the page of a notebook gets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipykernel", reason="ipykernel is not installed; pip install -e '.[dev]' brings it")

ROOT = Path(__file__).parents[2]
CELL = """
import ekc
result = ekc.tune(ekc.matvec(64, 64), target="a100", trials=2)
text = result.summary()
"""
ENDED_EARLY = """
def stop(event):
    if event.name == "trial":
        {action}
ekc.tune(ekc.matvec(64, 64), target="a100", trials=3, callback=stop).stopped
"""


@pytest.fixture(scope="module")
def notebook() -> Iterator[Any]:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(cwd=str(ROOT), env=os.environ | {"PYTHONPATH": _path()})
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def _path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def _run(client: Any, cell: str, expression: str) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    """(messages that the page gets, by kind; the value of an expression afterwards)."""
    shown: list[tuple[str, dict[str, Any]]] = []

    def keep(message: dict[str, Any]) -> None:
        kind = message["header"]["msg_type"]
        if kind in ("display_data", "update_display_data", "execute_result", "error", "stream"):
            shown.append((kind, message["content"]))

    reply = client.execute_interactive(
        cell, timeout=120, output_hook=keep, user_expressions={"value": expression}
    )
    value = reply["content"].get("user_expressions", {}).get("value", {})
    return shown, value.get("data", {}).get("text/plain", "")


def _read_outputs(shown: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """The texts that stay on the page: an update replaces the output of its identifier."""
    texts: dict[object, str] = {}
    for number, (kind, content) in enumerate(shown):
        assert kind != "stream", content
        key = content.get("transient", {}).get("display_id", number)
        assert (kind == "update_display_data") == (key in texts), "an update of no output"
        texts[key] = content["data"]["text/plain"] if "data" in content else content["ename"]
    return list(texts.values())


def test_progress_is_one_output_that_is_updated_and_stays(notebook: Any) -> None:
    shown, text = _run(notebook, CELL, "text")
    assert "latency [us]" in text
    assert "fastest" in text
    assert "Model card: " in text
    (output,) = _read_outputs(shown)
    assert output.startswith("matvec on a100 (simulated): 2/2 trials, ")
    assert output.endswith(" s; done")
    kinds = [kind for kind, _ in shown]
    assert kinds[0] == "display_data"
    assert 2 <= len(kinds) < 40
    assert max(len(str(content)) for _, content in shown) < 1000
    html = shown[-1][1]["data"]["text/html"]
    assert 'value="2" max="2"' in html


@pytest.mark.parametrize(
    ("action", "outputs"),
    [
        ("raise KeyboardInterrupt", ["s; done (interrupted)", "'interrupted'"]),
        ("return True", ["s; done (stopped by the callback)", "'stopped by the callback'"]),
        ("raise ValueError", ["; stopped", "ValueError"]),
    ],
)
def test_progress_says_why_the_run_ended_early(notebook: Any, action: str, outputs: list[str]) -> None:
    _run(notebook, "import ekc", "1")
    shown, _ = _run(notebook, ENDED_EARLY.format(action=action), "1")
    found = _read_outputs(shown)
    assert len(found) == len(outputs)
    assert "left" not in found[0]
    for text, end in zip(found, outputs, strict=True):
        assert text.endswith(end), found


def test_refused_operator_ends_progress(notebook: Any) -> None:
    cell = "import ekc; ekc.tune(ekc.matvec(64, 64), target='a100', trials=2, records='.')"
    shown, _ = _run(notebook, cell, "1")
    progress, error = _read_outputs(shown)
    assert "; failed (" in progress
    assert error == "RecordError"


def test_result_is_shown_as_one_small_table(notebook: Any) -> None:
    shown, _ = _run(notebook, f"{CELL}\nresult", "1")
    kind, content = shown[-1]
    assert kind == "execute_result"
    assert len(content["data"]["text/plain"]) < 120
    assert len(content["data"]["text/html"]) < 6000
    assert "a100 (simulated)" in content["data"]["text/html"]


def test_notebook_returns_tables(notebook: Any) -> None:
    cell = "from ekc.tables import format_table\ntable = format_table(('a', 'b'), [('1', '2')], 'title')"
    shown, text = _run(notebook, cell, "table")
    assert text == repr("title\na   b\n-----\n1   2")
    assert shown == []
