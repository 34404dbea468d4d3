"""The landscape of a space as a picture: estimated latency and energy of schedules, colored by structure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ekc.ir.drawing import svg
from ekc.ir.drawing.svg import Column, SvgText
from ekc.tables import choose_unit, format_rounded

LEFT, TOP, WIDTH, HEIGHT = 56.0, 20.0, 730.0, 400.0
"""Place and size of the plot in pixels."""
RADIUS = 2.5
Array = NDArray[np.float64]


def draw_landscape(
    title: str,
    subtitle: str,
    names: Sequence[str],
    structure: NDArray[np.int64],
    latency_s: Array,
    energy_j: Array,
) -> SvgText:
    """SVG text: a point for each schedule, with its estimated seconds and joules on logarithmic axes.

    `structure[n]`: index of the name of each schedule. The structures with the fastest schedules have a color
    each, and the others share one.
    """
    fastest = sorted(set(structure.tolist()), key=lambda s: float(latency_s[structure == s].min()))
    colors = dict(zip(fastest, svg.CYCLE, strict=False))
    column = Column()
    axes = [_Axis(latency_s, "s", LEFT, WIDTH), _Axis(energy_j, "J", TOP + HEIGHT, -HEIGHT)]
    elements = _draw_axes(*axes)
    for number in reversed(fastest):
        rows = structure == number
        x, y = axes[0].place(latency_s[rows]), axes[1].place(energy_j[rows])
        elements.append(svg.draw_path(_make_dots(x, y), f"{colors.get(number, 'gray')} F f"))
    column.add((elements, TOP + HEIGHT + 48))
    legend = [(f"{colors[n]} F f", f"{names[n]} ({(structure == n).sum()})") for n in fastest if n in colors]
    rest = int(np.isin(structure, fastest[len(colors) :]).sum())
    others = f"{len(fastest) - len(colors)} other structures ({rest})"
    column.add_legend([*legend, *([("gray F f", others)] if rest else [])], 6)
    column.add_note(
        "Estimates from the loops alone, by the analytic model that a search begins with. Nothing was "
        "compiled, run or measured. In brackets: schedules drawn of the structure."
    )
    figure = column.make_figure("Estimated time and energy of one call")
    description = f"{len(structure)} schedules of {len(fastest)} structures, estimated"
    return SvgText(svg.compose_picture(title, subtitle, description, [figure]))


class _Axis:
    """A logarithmic axis from the smallest to the largest value."""

    def __init__(self, values: Array, unit: str, start: float, length: float) -> None:
        self.scale, self.unit = choose_unit([float(values.min())], unit)
        self._start, self._length = start, length
        self._low = math.log10(float(values.min())) - 0.02
        self._span = math.log10(float(values.max())) + 0.02 - self._low

    def place(self, values: Array) -> Array:
        """Coordinates of values, in pixels."""
        return self._start + self._length * (np.log10(values) - self._low) / self._span

    def list_ticks(self) -> list[tuple[float, str]]:
        """(coordinate, label) of the ticks: 1, 2 and 5 times powers of ten, over a wide range powers alone,
        and over a short one multiples of one of them."""
        low, high = 10.0**self._low, 10.0 ** (self._low + self._span)
        powers = 10.0 ** np.arange(math.floor(self._low) - 3, math.ceil(self._low + self._span) + 1)
        values = np.outer(powers, (1, 2, 5)).ravel() if self._span < 2.5 else powers
        if self._span < 0.6:
            step = values[np.argmax(values >= (high - low) / 6)]
            values = step * np.arange(1, high / step)
        shown = values[(values >= low) & (values <= high)]
        labels = [format_rounded(value / self.scale, 3) for value in shown.tolist()]
        return list(zip(self.place(shown).tolist(), labels, strict=True))


def _draw_axes(across: _Axis, up: _Axis) -> list[str]:
    """Grid lines, labels and titles of both axes."""
    bottom, right = TOP + HEIGHT, LEFT + WIDTH
    elements = []
    for x, label in across.list_ticks():
        elements += [svg.draw_line(x, TOP, x, bottom, "q"), svg.draw_text(x, bottom + 16, label, "s", "c")]
    for y, label in up.list_ticks():
        elements += [svg.draw_line(LEFT, y, right, y, "q"), svg.draw_text(LEFT - 6, y + 4, label, "s", "e")]
    elements.append(svg.draw_rectangle(LEFT, TOP, WIDTH, HEIGHT, "l"))
    elements.append(svg.draw_text(LEFT + WIDTH / 2, bottom + 36, f"time [{across.unit}]", "s", "c"))
    elements.append(svg.draw_text(0, TOP - 10, f"energy [{up.unit}]", "s"))
    return elements


def _make_dots(x: Array, y: Array) -> str:
    """Path data of a dot at each point."""
    size = 2 * RADIUS
    arcs = f"a{RADIUS} {RADIUS} 0 1 0 {size} 0a{RADIUS} {RADIUS} 0 1 0 {-size} 0"
    return "".join(
        f"M{svg.format_number(a - RADIUS)} {svg.format_number(b)}{arcs}" for a, b in zip(x, y, strict=True)
    )
