"""Pictures of any schedule: SVG that is well formed, bounded, and alone; names, reasons and golden files."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ekc
import ekc.ir.operators as o
from ekc.errors import InvalidInput
from ekc.ir.drawing.draw import PICTURE_NAMES, PICTURES
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule
from tests.browser import PageOpener
from tests.drawing.samples import GOLDEN, SCHEDULES
from tests.drawn.schedules import draw_any, draw_by
from tests.ir.async_examples import draw_async
from tests.ir.tensor_examples import draw_tensor
from tests.ir.warpgroup_examples import draw_group

FOLDER = Path(__file__).with_name("golden")
MOST_BYTES = 300_000
ANY = st.one_of(*(draw_by(draw) for draw in (draw_any, draw_any, draw_tensor, draw_group, draw_async)))


def check_svg(text: str) -> None:
    """Well formed and small, with nothing that another page or a network has."""
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(text.encode()) < MOST_BYTES
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert names <= {"svg", "title", "desc", "style", "g", "path", "rect", "text", "tspan"}
    attributes = {name for element in root.iter() for name in element.attrib}
    assert not any("href" in name or name.startswith("on") for name in attributes)
    assert not re.search(r"url\(|@import|\w://(?!www\.w3\.org/2000/svg)", text)
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids)) == 2
    assert root.attrib["aria-labelledby"] == " ".join(ids)
    width, height = (float(v) for v in root.attrib["viewBox"].split()[2:])
    assert width <= 960
    assert height > 0
    coordinates = [element.attrib[n] for element in root.iter() for n in ("x", "y") if n in element.attrib]
    assert all(re.fullmatch(r"-?\d+(\.\d)?", value) for value in coordinates)


@settings(max_examples=40)
@given(ANY)
def test_every_drawn_schedule_has_its_pictures(schedule: Schedule) -> None:
    overview = schedule.draw()
    check_svg(overview)
    for name in PICTURES:
        heading, refusal = draw_alone(schedule, name)
        if not refusal:
            assert f">{heading}<" in overview
            continue
        assert f'picture "{name}": this schedule ' in refusal
        assert f"Not shown: {refusal.partition(';')[0]}." in ElementTree.fromstring(overview)[1].text


def draw_alone(schedule: Schedule, name: str) -> tuple[str, str]:
    """The heading of one picture, and the reason for which there is none."""
    try:
        return PICTURES[name](schedule.program).heading, ""
    except InvalidInput as reason:
        return "", str(reason)


@pytest.mark.parametrize("picture", PICTURE_NAMES)
def test_same_schedule_gives_the_same_text(picture: str) -> None:
    first, second = (SCHEDULES["padded_mma"]().draw(picture) for _ in range(2))
    assert first == second
    check_svg(first)


@pytest.mark.parametrize(("name", "picture"), GOLDEN)
def test_picture_equals_the_golden_file(name: str, picture: str, golden: Callable[[Path, str], None]) -> None:
    golden(FOLDER / f"{name}_{picture}.svg", SCHEDULES[name]().draw(picture))


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        ("banks", "stages nothing in shared memory; try cache_read"),
        ("fragments", "uses no tensor cores; try tensorize"),
        ("bank", "choices are overview, loops, threads, staging, banks, fragments; nearest is 'banks'"),
        (3, "picture: no 3; choices are"),
        (None, "picture: no None; choices are"),
    ],
)
def test_picture_that_does_not_apply_is_refused_with_the_reason(picture: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(words)):
        make_naive_schedule(o.matmul(64, 64, 64)).draw(picture)


def test_import_of_ekc_loads_no_picture() -> None:
    code = "import ekc, sys; ekc.Schedule; sys.exit(any('ekc.ir.drawing' in name for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_of_a_user_are_escaped() -> None:
    op = ekc.compute(
        "less", axes={"i": 4}, inputs={"A": (4,)}, output="Y",
        body=lambda A, i: ekc.where(ekc.less(A[i], 2), 1, A[i]),
    )  # fmt: skip
    text = Schedule(op).draw()
    assert "A[i] &lt; 2" in text
    check_svg(text)


def test_many_launches_are_cut_with_a_note() -> None:
    op = ekc.compute("a", axes={"i": 64}, inputs={"A": (64,)}, body=lambda A, i: A[i] + 1, output="t0")
    for n in range(1, 40):
        read = f"t{n - 1}"
        body = eval(f"lambda {read}, i{n}: {read}[i{n}] * 2")
        op = op.then(f"t{n}", axes={f"i{n}": 64}, body=body)
    text = Schedule(op).draw()
    check_svg(text)
    assert text.count("Not shown: 35 more of 40 launches.") == 3


def draw_long_names(length: int) -> str:
    """All pictures of a tiled copy whose operator, axes and tensors have names of so many letters."""
    name, i, j, x, y = (f"{letter}{'_little_layer' * 30}"[:length] for letter in "nijxy")
    body = eval(f"lambda {x}, {i}, {j}: {x}[{i}, {j}] + 1")
    op = ekc.compute(name, axes={i: 64, j: 64}, inputs={x: (64, 64)}, body=body, output=y)
    tiled = Schedule(op).split(i, (8,)).split(j, (8,)).reorder(f"{i}.0", f"{j}.0", f"{i}.1", f"{j}.1")
    return tiled.bind(f"{i}.0", "block.x").bind(f"{j}.1", "thread.x").cache_read(x, "shared", f"{j}.0").draw()


def test_pictures_fit_a_page_side_by_side(open_page: Callable[..., PageOpener], tmp_path: Path) -> None:
    """All pictures in one page, as a notebook has them: no text leaves its picture, none changes another."""
    texts = [
        SCHEDULES[name]().draw() for name in ("tiles", "cp_async", "wgmma", "conv2d", "softmax", "naive")
    ]
    texts += [draw_long_names(length) for length in (20, 300)]
    page_text = f"<!doctype html><body style='color:rgb(1, 2, 3)'>{''.join(texts)}</body>"
    (tmp_path / "page.html").write_text(page_text, encoding="utf-8")
    page = open_page(width=900, dark=True)
    page.goto((tmp_path / "page.html").as_uri())
    outside = page.evaluate(
        """() => [...document.querySelectorAll("svg")].flatMap((svg) => {
            const room = svg.getBoundingClientRect();
            return [...svg.querySelectorAll("text")].filter((text) => {
                const box = text.getBoundingClientRect();
                return box.right > room.right + 1 || box.left < room.left - 1 || box.bottom > room.bottom + 1;
            }).map((text) => text.textContent);
        })"""
    )
    assert outside == []
    # Inside a page, text has the color of the page, whatever the browser prefers.
    colors = page.evaluate(
        '() => [...document.querySelectorAll("svg text")].map(t => getComputedStyle(t).fill)'
    )
    assert set(colors) == {"rgb(1, 2, 3)"}


@pytest.mark.parametrize(("dark", "color"), [(False, "rgb(255, 255, 255)"), (True, "rgb(20, 24, 29)")])
def test_picture_alone_follows_the_color_scheme(
    dark: bool, color: str, open_page: Callable[..., PageOpener], tmp_path: Path
) -> None:
    (tmp_path / "a.svg").write_text(SCHEDULES["tiles"]().draw("loops"), encoding="utf-8")
    page = open_page(dark=dark)
    page.goto((tmp_path / "a.svg").as_uri())
    assert page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor") == color
