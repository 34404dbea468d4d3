"""Measured figures written into docs/explanation/simulated-devices.md, and the plots of that page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).parents[2] / "docs" / "explanation"
SIZE, EDGE = 320, 40
PAGE = "simulated-devices.md"
BLOCKS = {
    "clblast": "## Figures",
    "top": "## At the top of the ranking",
    "residual": "## What nothing explains",
    "energy": "## Energy of events",
    "h200": "## Tensor cores on the H200",
}
"""Part -> heading of its block of figures."""


def write(
    texts: Mapping[str, str],
    plots: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]],
    folder: Path = FOLDER,
) -> None:
    """Write the blocks of figures of these parts into the page, and one plot for each device.

    Prose, and blocks of other parts, stay as they are. A folder without a page gets a copy.
    """
    file = folder / PAGE
    page = (file if file.is_file() else FOLDER / PAGE).read_text()
    for part, text in texts.items():
        page = _replace_block(page, BLOCKS[part], text)
    for device, (predicted, recorded) in plots.items():
        name = f"simulated-{device}.svg"
        (folder / name).write_text(plot_scatter(f"{device} (simulated)", predicted, recorded))
    file.write_text(page)


def _replace_block(page: str, heading: str, text: str) -> str:
    """The page with another text in the first block under a heading. Raises ValueError where it has none."""
    pattern = re.compile(rf"(^{re.escape(heading)}\n.*?^```\n).*?(?=\n```$)", re.MULTILINE | re.DOTALL)
    page, count = pattern.subn(lambda match: match[1] + text, page, count=1)
    if not count:
        raise ValueError(f"{PAGE} has no block of figures under {heading!r}")
    return page


def plot_scatter(title: str, predicted: NDArray[np.float64], recorded: NDArray[np.float64]) -> str:
    """An SVG of seconds against seconds, in milliseconds, both axes logarithmic."""
    low, high = (
        float(round_(np.concatenate([predicted, recorded])))
        for round_ in (lambda v: np.log10(v.min() * 1e3) - 0.05, lambda v: np.log10(v.max() * 1e3) + 0.05)
    )

    def place(seconds: Any) -> Any:
        return (np.log10(np.asarray(seconds) * 1e3) - low) / (high - low) * (SIZE - 2 * EDGE)

    dots = "".join(
        f'<circle cx="{EDGE + x:.1f}" cy="{SIZE - EDGE - y:.1f}" r="1.6"/>'
        for x, y in zip(place(recorded), place(predicted), strict=True)
    )
    ticks = [t for t in (5, 10, 20, 50, 100, 200) if low < np.log10(t) < high]
    marks = "".join(
        f'<text x="{EDGE + place(t / 1e3):.1f}" y="{SIZE - EDGE + 14}" text-anchor="middle">{t}</text>'
        f'<text x="{EDGE - 4}" y="{SIZE - EDGE - place(t / 1e3) + 4:.1f}" text-anchor="end">{t}</text>'
        for t in ticks
    )
    near, far = EDGE, SIZE - EDGE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE}" height="{SIZE}" font-family="sans-serif" '
        f'font-size="10"><rect width="{SIZE}" height="{SIZE}" fill="white"/>'
        f'<path d="M{near} {near}V{far}H{far}" fill="none" stroke="black"/>'
        f'<path d="M{near} {far}L{far} {near}" stroke="gray" stroke-dasharray="3"/>'
        f'<g fill="#1f6fb4" fill-opacity="0.5">{dots}</g>{marks}'
        f'<text x="{SIZE / 2}" y="20" text-anchor="middle">{title}</text>'
        f'<text x="{SIZE / 2}" y="{SIZE - 8}" text-anchor="middle">recorded [ms]</text>'
        f'<text x="12" y="{SIZE / 2}" transform="rotate(-90 12 {SIZE / 2})" text-anchor="middle">'
        f"predicted [ms]</text></svg>\n"
    )
