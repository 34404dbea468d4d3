"""One line for each object, and HTML that fits a light and a dark page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

import ekc
from ekc.display import MAX_LINE_CHARS, format_html_table, format_html_text, format_line, shorten

TEXTS = st.text(max_size=300)


class Reader(HTMLParser):
    """Reads the texts of the elements, and refuses tags that are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.tags: set[str] = set()
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag == "br":
            self.cells[-1] += "\n"
            return
        self.open.append(tag)
        self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.cells[-1] += data


@given(TEXTS)
def test_line_is_short_and_names_the_class(text: str) -> None:
    line = format_line(Reader("<p></p>"), text)
    assert len(line) <= MAX_LINE_CHARS
    assert len(line.splitlines()) == 1
    assert line.startswith("<Reader ")
    assert line.endswith(">")


@given(TEXTS, st.integers(3, 400))
def test_text_is_cut_only_where_it_is_too_long(text: str, limit: int) -> None:
    one_line = " ".join(text.split())
    short = shorten(text, limit)
    assert short == one_line if len(one_line) <= limit else short == f"{one_line[: limit - 3]}..."


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=3), TEXTS, TEXTS)
def test_table_keeps_every_text_and_nothing_of_it_becomes_markup(
    rows: list[tuple[str, str]], title: str, note: str
) -> None:
    reader = Reader(format_html_table(("a", "b"), rows, title, note))
    assert reader.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "div", "br"}
    shown = "".join(reader.cells)
    for text in (*(cell for row in rows for cell in row), title, note):
        assert text.replace("\r", "") in shown.replace("\r", "")


def test_text_is_shown_as_it_is() -> None:
    reader = Reader(format_html_text("if (a < b)\n  c &= d;", "<title>"))
    assert reader.cells == ["<title>", "if (a < b)\n  c &= d;"]


def test_html_sets_no_color_that_a_dark_page_would_hide() -> None:
    html = format_html_table(("a",), [("b",)], "title", "note") + format_html_text("text", "title")
    colors = re.findall(r"(?:color|background|fill):([^;\"]+)", html)
    assert set(colors) == {"inherit", "none"}


def test_picture_of_a_schedule_is_text_that_a_notebook_shows() -> None:
    picture = ekc.Schedule(ekc.matmul(8, 8, 8)).draw("loops")
    assert picture.startswith("<svg")
    assert isinstance(picture, str)
    assert picture._repr_svg_() == str(picture)
    assert repr(picture) == f"<SvgText, {len(picture):,} characters>"
