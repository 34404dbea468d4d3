"""`tune` and `summary` in a real IPython kernel: the text is returned, and nothing is put on the page."""

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


@pytest.fixture(scope="module")
def notebook() -> Iterator[Any]:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(cwd=str(ROOT), env=os.environ | {"PYTHONPATH": _path()})
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def _path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def _run(client: Any, cell: str, expression: str) -> tuple[list[tuple[str, str]], str]:
    """(what the page shows, by kind; the value of an expression afterwards)."""
    shown: list[tuple[str, str]] = []

    def keep(message: dict[str, Any]) -> None:
        content = message["content"]
        if message["header"]["msg_type"] in ("display_data", "execute_result", "error"):
            shown.append((message["header"]["msg_type"], str(content)))
        elif message["header"]["msg_type"] == "stream":
            shown.append((content["name"], content["text"]))

    reply = client.execute_interactive(
        cell, timeout=120, output_hook=keep, user_expressions={"value": expression}
    )
    return shown, reply["content"]["user_expressions"]["value"]["data"]["text/plain"]


def test_notebook_shows_plain_progress_and_returns_summary(notebook: Any) -> None:
    shown, text = _run(notebook, CELL, "text")
    assert "latency [us]" in text
    assert "fastest" in text
    assert "rank   time rank" in text, "the second table"
    assert {kind for kind, _ in shown} == {"stderr"}
    err = "".join(line for _, line in shown)
    assert "2 trials in 1 round" in err
    assert "matvec on a100 (simulated): 2/2 trials" in err
    assert "ipywidgets" not in err


def test_notebook_returns_tables(notebook: Any) -> None:
    cell = "from ekc.tables import format_table\ntable = format_table(('a', 'b'), [('1', '2')], 'title')"
    shown, text = _run(notebook, cell, "table")
    assert text == repr("title\na   b\n-----\n1   2")
    assert shown == []
