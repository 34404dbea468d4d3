"""The page of the simulated devices."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from benchmarks.simulator import write_docs


def test_page_keeps_the_parts_that_are_not_written(tmp_path: Path) -> None:
    times = np.array([0.01, 0.02, 0.09])
    texts = {"clblast": "the figures", "h200": "the shapes"}
    write_docs.write(texts, {"a100": (times, 1.1 * times)}, tmp_path)
    page = (tmp_path / "simulated-devices.md").read_text()
    assert page.count("the figures") == page.count("the shapes") == 1
    write_docs.write({"h200": "other shapes"}, {}, tmp_path)
    assert (tmp_path / "simulated-devices.md").read_text() == page.replace("the shapes", "other shapes")
    plot = ElementTree.parse(tmp_path / "simulated-a100.svg")
    assert len(plot.findall(".//{http://www.w3.org/2000/svg}circle")) == 3
