"""SVG text: elements, the style that all pictures share, and the page around them.

A picture has to read well in three places: as a file of its own, as an image in a page, and inside the text
of an HTML page, beside other pictures. Text and lines have the color of the page (`currentColor`), and areas
are see-through colors that suit a light and a dark page. A file or an image has a background of its own,
which follows `prefers-color-scheme`. Every rule of the style names a class made from the contents of the
picture, so it changes nothing else in the page.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH = 800
"""Width of every picture in pixels, at its natural size; a narrower page scales it down."""
MARGIN = 12
"""Empty pixels around a picture."""
TEXT_HEIGHT = 13
"""Height of ordinary text in pixels."""
CODE_HEIGHT, SMALL_HEIGHT, TINY_HEIGHT = 12, 11, 9
"""Heights of code, remarks, and numbers in cells."""
_SANS = 'system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif'
_MONO = 'ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace'
_CHAR_WIDTHS = {"mono": 0.61, "sans": 0.53, "bold": 0.58}
"""Mean width of a character by font, in parts of the height of the text."""

COLORS = {
    "blue": "#4c86c6",
    "orange": "#e08a1e",
    "green": "#3f9b5b",
    "red": "#d04a5a",
    "purple": "#8f6fc4",
    "teal": "#1f9e9e",
    "pink": "#d1679f",
    "olive": "#9a8f2f",
    "gray": "#86888c",
}
"""Colors of areas; text on them has the color of the page."""
CYCLE = ("blue", "orange", "green", "purple", "red", "teal", "olive", "pink")
"""Colors of numbered things: warps, banks, tiles."""


class SvgText(str):
    """SVG text of a picture. It is a string in every way, and a notebook shows the picture."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"<SvgText, {len(self):,} characters>"


@dataclass(frozen=True)
class Figure:
    """One part of a picture, `WIDTH` pixels wide: its elements, from y = 0 on, and its height in pixels."""

    heading: str
    elements: tuple[str, ...]
    height: float


Drawn = tuple[list[str], float]
"""Elements, from y = 0 on, and their height in pixels."""


def format_number(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def measure_text(text: str, height: float = TEXT_HEIGHT, font: str = "sans") -> float:
    """Width of a text in pixels, about."""
    return len(text) * height * _CHAR_WIDTHS[font]


def shorten_text(text: str, width: float, height: float = TEXT_HEIGHT, font: str = "sans") -> str:
    """The text, cut with an ellipsis where it is wider than `width` pixels."""
    room = int(width / (height * _CHAR_WIDTHS[font]))
    return text if len(text) <= room else f"{text[: max(room - 1, 1)].rstrip()}\N{HORIZONTAL ELLIPSIS}"


def wrap_text(text: str, width: float, height: float = TEXT_HEIGHT) -> list[str]:
    """The text in lines of at most `width` pixels."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and measure_text(longer, height) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def draw_text(x: float, y: float, text: str, style: str = "t", anchor: str = "", tooltip: str = "") -> str:
    """Text whose base line is at y. Styles: t, s (small), y (tiny), m (code), b (bold), h (heading), with d
    for a dimmed one. `anchor` is "c" for centered, "e" for text that ends at x."""
    classes = f"{style} {anchor}".strip()
    inner = escape(text, quote=False)
    hint = f"<title>{escape(tooltip, quote=False)}</title>" if tooltip else ""
    return f'<text class="{classes}" x="{format_number(x)}" y="{format_number(y)}">{hint}{inner}</text>'


def draw_short_text(
    x: float,
    y: float,
    text: str,
    width: float,
    style: str = "s d",
    anchor: str = "",
    height: float = SMALL_HEIGHT,
    font: str = "sans",
) -> str:
    """A text that is cut to a width, with the whole of it as its tooltip."""
    short = shorten_text(text, width, height, font)
    return draw_text(x, y, short, style, anchor, text if short != text else "")


def draw_rectangle(
    x: float, y: float, width: float, height: float, style: str, tooltip: str = "", corner: float = 0
) -> str:
    """A rectangle. The style is a color of `COLORS`, and f (no outline), o (outline only), F (strong fill),
    g (weak fill), D (dashed outline)."""
    box = " ".join(
        f'{name}="{format_number(value)}"'
        for name, value in (("x", x), ("y", y), ("width", width), ("height", height))
    )
    rounding = f' rx="{format_number(corner)}"' if corner else ""
    end = f"><title>{escape(tooltip, quote=False)}</title></rect>" if tooltip else "/>"
    return f'<rect class="{style}" {box}{rounding}{end}'


def draw_path(points: str, style: str) -> str:
    """A path with the given data."""
    return f'<path class="{style}" d="{points}"/>'


def draw_line(x1: float, y1: float, x2: float, y2: float, style: str = "l") -> str:
    """A straight line."""
    start, end = (f"{format_number(x)} {format_number(y)}" for x, y in ((x1, y1), (x2, y2)))
    return draw_path(f"M{start}L{end}", style)


def draw_arrow(x1: float, y1: float, x2: float, y2: float) -> list[str]:
    """A straight arrow along a row or a column."""
    length = max(abs(x2 - x1), abs(y2 - y1), 1)
    along, across = (x2 - x1) / length, (y2 - y1) / length
    wings = [(x2 - 8 * along + 5 * side * across, y2 - 8 * across + 5 * side * along) for side in (-1, 1)]
    corners = "L".join(f"{format_number(x)} {format_number(y)}" for x, y in ((x2, y2), *wings))
    return [draw_line(x1, y1, x2, y2, "l"), draw_path(f"M{corners}Z", "k")]


@dataclass(frozen=True)
class Cell:
    """A rectangle with a short text in its middle."""

    x: float
    y: float
    width: float
    height: float
    style: str
    text: str = ""


def draw_cells(cells: Sequence[Cell], text_style: str = "y c") -> list[str]:
    """Many cells in few elements: a path for each style, a text for each row."""
    boxes: dict[str, list[str]] = {}
    rows: dict[float, list[str]] = {}
    for c in cells:
        x, y, width, height = map(format_number, (c.x, c.y, c.width, c.height))
        boxes.setdefault(c.style, []).append(f"M{x} {y}h{width}v{height}h-{width}z")
        if c.text:
            middle = format_number(c.x + c.width / 2)
            rows.setdefault(c.y + c.height / 2 + 3.5, []).append(f'<tspan x="{middle}">{c.text}</tspan>')
    paths = [draw_path("".join(parts), style) for style, parts in boxes.items()]
    texts = [
        f'<text class="{text_style}" y="{format_number(y)}">{"".join(parts)}</text>'
        for y, parts in rows.items()
    ]
    return paths + texts


def move_elements(elements: Iterable[str], x: float, y: float) -> str:
    """The elements as a group, moved by (x, y)."""
    start = f'<g transform="translate({format_number(x)},{format_number(y)})">'
    return "\n".join([start, *elements, "</g>"])


def draw_legend(entries: Sequence[tuple[str, str]], y: float) -> Drawn:
    """A row of (style of the sample, words), folded where it is too wide; the elements and their height."""
    elements, left, top = [], 0.0, y
    for style, words in entries:
        width = 18 + measure_text(words, SMALL_HEIGHT) + 14
        if left + width > WIDTH and left > 0:
            left, top = 0, top + 18
        elements.append(draw_rectangle(left, top, 12, 12, style, corner=2))
        elements.append(draw_short_text(left + 17, top + 10, words, WIDTH - left - 17, "s"))
        left += width
    return elements, top - y + 20


def draw_note(text: str, y: float) -> Drawn:
    """Small dimmed text in lines; the elements and their height."""
    lines = wrap_text(text, WIDTH, SMALL_HEIGHT)
    elements = [draw_short_text(0, y + 11 + 15 * n, line, WIDTH) for n, line in enumerate(lines)]
    return elements, 15 * len(lines) + 4


@dataclass
class Column:
    """Parts of a picture under each other: each begins where the one before ends."""

    y: float = 0.0
    """Where the next part begins, in pixels."""
    elements: list[str] = field(default_factory=list)

    def add(self, drawn: Drawn, gap: float = 0) -> None:
        """Elements that are drawn from `y` on; `gap` pixels stay empty below them."""
        self.elements += drawn[0]
        self.y += drawn[1] + gap

    def add_moved(self, drawn: Drawn, gap: float = 0) -> None:
        """Elements that are drawn from 0 on."""
        self.add(([move_elements(drawn[0], 0, self.y)], drawn[1]), gap)

    def add_legend(self, entries: Sequence[tuple[str, str]], gap: float = 0) -> None:
        """A legend, as of `draw_legend`."""
        self.add(draw_legend(entries, self.y), gap)

    def add_note(self, text: str, gap: float = 0) -> None:
        """A note, as of `draw_note`."""
        self.add(draw_note(text, self.y), gap)

    def make_figure(self, heading: str) -> Figure:
        """The column as one part of a picture."""
        return Figure(heading, tuple(self.elements), self.y)


MOST_LAUNCHES = 5
"""Most launches of a schedule that one picture shows."""


def stack_launches(column: Column, heads: Sequence[Sequence[str]], draw: Callable[[int], Drawn]) -> None:
    """Add the drawings of launches to a column, each below its lines of code."""
    for number, lines in enumerate(heads[:MOST_LAUNCHES]):
        for line in lines:
            text = draw_short_text(0, column.y + 14, line, WIDTH, "m b", "", CODE_HEIGHT, "mono")
            column.add(([text], 22))
        column.add_moved(draw(number), 10)
    if len(heads) > MOST_LAUNCHES:
        column.add_note(f"Not shown: {len(heads) - MOST_LAUNCHES} more of {len(heads)} launches.")


def compose_picture(
    title: str, subtitle: str, description: str, figures: Sequence[Figure], notes: Sequence[str] = ()
) -> str:
    """The SVG text of figures under each other, with a heading each, below a title and a line of code."""
    head = [
        draw_text(0, 16, shorten_text(title, WIDTH, 15, "bold"), "h", tooltip=title),
        draw_short_text(0, 36, subtitle, WIDTH, "m d", "", CODE_HEIGHT, "mono"),
    ]
    column = Column(48.0, head)
    for figure in figures:
        column.add(([draw_text(0, column.y + 18, figure.heading, "b")], 30))
        column.add_moved((list(figure.elements), figure.height), 16)
    for note in notes:
        column.add_note(note)
    body = move_elements(column.elements, MARGIN, MARGIN)
    width, height = WIDTH + 2 * MARGIN, column.y + MARGIN
    digest = hashlib.sha256((body + title + description).encode()).hexdigest()[:10]
    name = f"ekc-{digest}"
    size = f"{format_number(width)} {format_number(height)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{name}" viewBox="0 0 {size}" '
        f'width="{format_number(width)}" height="{format_number(height)}" role="img" '
        f'aria-labelledby="{name}-t {name}-d" style="max-width:100%;height:auto">'
        f'<title id="{name}-t">{escape(title, quote=False)}</title>'
        f'<desc id="{name}-d">{escape(description, quote=False)}</desc>'
        f"\n<style>{_format_style(name)}</style>\n{body}\n</svg>"
    )


def _format_style(name: str) -> str:
    """The rules of a picture, each under its class."""
    root = f".{name}"
    rules = {
        "text": f"font:{TEXT_HEIGHT}px {_SANS};fill:currentColor",
        ".m": f"font-family:{_MONO};font-size:{CODE_HEIGHT}px;white-space:pre",
        ".s": f"font-size:{SMALL_HEIGHT}px",
        ".y": f"font-size:{TINY_HEIGHT}px",
        ".b": "font-weight:600",
        ".h": "font-weight:600;font-size:15px",
        ".d": "opacity:.72",
        ".e": "text-anchor:end",
        ".c": "text-anchor:middle",
        ".l": "fill:none;stroke:currentColor;stroke-opacity:.55",
        ".L": "fill:none;stroke:currentColor;stroke-width:2",
        ".D": "stroke-dasharray:4 3",
        ".k": "fill:currentColor",
        ".p": "fill:currentColor;fill-opacity:.06",
        ".q": "fill:none;stroke:currentColor;stroke-opacity:.25;stroke-width:.5",
        ".mark": "fill:#d8b200;fill-opacity:.75;stroke:currentColor;stroke-width:1.5",
        ".mark.o": "fill:none;stroke-width:2",
    }
    for color, value in COLORS.items():
        rules |= {
            f".{color}": f"fill:{value};fill-opacity:.3;stroke:{value};stroke-opacity:.9",
            f".{color}.f": "stroke:none",
            f".{color}.o": "fill:none;stroke-width:2",
            f".{color}.F": "fill-opacity:.75",
            f".{color}.g": f"fill-opacity:{'.05' if color == 'gray' else '.09'}",
        }
    own = "".join(f"{root} {selector}{{{text}}}" for selector, text in rules.items())
    page = (
        f"svg:root{root}{{color:#1f2328;background:#fff}}"
        f"@media(prefers-color-scheme:dark){{svg:root{root}{{color:#e6edf3;background:#14181d}}}}"
    )
    return own + page
