"""A table is returned as text, and its text does not depend on where it is made."""

import builtins
from pathlib import Path

import pytest

from ekc.tables import count_nouns, format_rounded, format_table

ROOT = Path(__file__).parents[2]
ROWS = [("best", "134.9 +/-0.2%", "[bold]x[/bold] :smile:"), ("naive", "4325", "https://example.org/a_b")]
PLAIN = """\
A title
        latency [us]                      source
------------------------------------------------
best   134.9 +/-0.2%    [bold]x[/bold] :smile:
naive           4325   https://example.org/a_b"""


def _table() -> str:
    return format_table(("", "latency [us]", "source"), ROWS, "A title")


class ZMQInteractiveShell:
    """Named as the shell of a Jupyter kernel, which is how rich knows one."""


class TerminalInteractiveShell:
    """Named as IPython's shell in a terminal; rich takes it for a notebook where Databricks is named."""


@pytest.mark.parametrize(
    ("shell", "environment"),
    [
        (ZMQInteractiveShell, {}),
        (TerminalInteractiveShell, {"DATABRICKS_RUNTIME_VERSION": "15.4"}),
        (type("Shell", (), {"__module__": "google.colab._shell"}), {}),
        (ZMQInteractiveShell, {"JUPYTER_COLUMNS": "20", "FORCE_COLOR": "1"}),
        (None, {"FORCE_COLOR": "1", "TERM": "xterm-256color"}),
        (None, {"NO_COLOR": "1"}),
        (None, {"COLUMNS": "20", "LINES": "2"}),
        (None, {"TERM": "dumb", "TTY_COMPATIBLE": "1"}),
    ],
)
def test_a_table_is_the_same_everywhere(monkeypatch, capfd, shell, environment):
    plain = _table()
    assert "134.9 +/-0.2%" in plain
    assert "[bold]x[/bold] :smile:" in plain
    if shell is not None:
        monkeypatch.setattr(builtins, "get_ipython", shell, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert _table() == plain
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (162.3, 2, "160"),
        (16234.5, 2, "16,000"),
        (1.5, 2, "1.5"),
        (2.0, 3, "2"),
        (999.6, 3, "1,000"),
        (-1979.0, 3, "-1,980"),
        (0.0000123, 2, "0.000012"),
        (0.0, 2, "0"),
    ],
)
def test_rounded_figures_have_no_exponent(value: float, digits: int, text: str) -> None:
    assert format_rounded(value, digits) == text


def test_one_of_a_kind_is_singular() -> None:
    assert [count_nouns(n, "finding") for n in (0, 1, 2)] == ["0 findings", "1 finding", "2 findings"]
