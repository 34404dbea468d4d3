"""`ekc.space`: the table of structures, samples, neighbours, estimates and the picture."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import ekc
from ekc.errors import InvalidInput
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule import Split, Unroll
from ekc.search.space.design_space import DesignSpace
from ekc.search.space.landscape import draw_landscape
from tests.search.helpers import LIMITS

OP = ekc.matmul(256, 256, 256)
SIZES = [2, 4, 8, 16]


@pytest.fixture(scope="module")
def found() -> DesignSpace:
    return ekc.space(OP, target="a100")


@pytest.fixture(scope="module")
def small() -> DesignSpace:
    """Eight combinations."""
    return ekc.space(
        OP, "a100", [Split("k", (ekc.hole("depth", SIZES),)), Unroll("k.1", ekc.hole("unroll", [1, 2]))]
    )


def test_rules_are_those_that_the_derivation_applied(found: DesignSpace) -> None:
    by_name = {s.name: [rule.name for rule in s.rules] for s in found.structures}
    staged = by_name["A:shared+register B:shared+register"]
    assert staged == ["tile", "reduce", "stage", "accumulate"]
    assert by_name["A:shared+register B:shared+register flying"] == [*staged, "copy asynchronously"]
    assert by_name["lanes registers"] == ["spread over lanes", "accumulate"]
    assert {rule.name for rule in found.rules} == {name for names in by_name.values() for name in names}


@pytest.mark.parametrize(
    ("op", "rule"),
    [
        (ekc.softmax((64, 256)), "single launch"),
        (ekc.matmul(64, 64, 64, dtype="float16"), "tensor cores"),
        (ekc.matmul(16, 16, 16384), "split-K"),
        (ekc.conv2d(1, 32, 14, 14, out_channels=32, kernel=3, padding=1, dtype="float16"), "pack"),
        (ekc.conv2d(1, 32, 8, 8, out_channels=32, kernel=3, padding=1, groups=2), "divide"),
    ],
)
def test_rules_of_other_operators(op: ekc.Operator, rule: str) -> None:
    assert rule in [r.name for r in ekc.space(op, "a100").rules]


def test_table_has_a_line_for_each_structure(found: DesignSpace) -> None:
    lines = str(found).splitlines()
    assert re.fullmatch(
        r"matmul on a100 \(simulated\): 15 structures derived by rules, \d\.\de\+1\d combinations", lines[0]
    )
    assert max(map(len, lines)) <= 100
    for structure in found.structures:
        row = next(line for line in lines if line.startswith(f"{structure.name}  "))
        assert row.split()[-1].endswith("%")
    assert "legal    an estimate: the share among 1,000 random combinations of each structure" in lines
    assert "rule 2   reduce: A reduction axis is cut into an outer and an inner loop." in lines
    assert repr(found) == f"<DesignSpace {lines[0]}>"
    page = found._repr_html_()
    assert page.count("<tr>") == 16
    assert "an estimate" in page


def test_counts_are_products_of_the_holes(found: DesignSpace, small: DesignSpace) -> None:
    assert small.counts == {"own": 8}
    assert small.holes == {"depth": ((2,), (4,), (8,), (16,)), "unroll": ((1,), (2,))}
    assert small.legal_shares == {"own": 1.0}
    assert "1 structure written by you, 8 combinations" in str(small)
    for structure in found.structures:
        sizes = [len(found.holes[name]) for name in structure.holes]
        assert found.counts[structure.name] == np.prod(sizes, dtype=object)
        assert 0 < found.legal_shares[structure.name] < 1


def test_sample_has_legal_schedules_once(found: DesignSpace, small: DesignSpace) -> None:
    drawn = found.sample(50, seed=3)
    assert len(set(drawn)) == 50
    assert drawn == found.sample(50, seed=3)
    assert drawn != found.sample(50, seed=4)
    for schedule in drawn:
        enforce_rules(schedule.program, LIMITS)
    assert len(small.sample(50)) == 8


def test_neighbours_of_a_small_space(small: DesignSpace) -> None:
    at = {tuple(n for (n,) in small.find_values(s).values()): s for s in small.sample(8)}
    near = [tuple(n for (n,) in small.find_values(s).values()) for s in small.neighbours(at[4, 1])]
    assert sorted(near) == [(2, 1), (4, 2), (8, 1)]


def test_estimates_are_those_of_the_prior(found: DesignSpace) -> None:
    drawn = found.sample(20)
    figures = found.estimate(drawn)
    assert found.estimate([]) == ()
    assert found.estimate([drawn[7]]) == (figures[7],)
    assert all(0 < seconds < 1 and 0 < joules < 10 for seconds, joules in figures)


def test_picture_has_a_point_for_each_schedule(found: DesignSpace) -> None:
    picture = found.draw(300, seed=1)
    root = ElementTree.fromstring(picture)
    dots = [e.get("d", "") for e in root.iter("{http://www.w3.org/2000/svg}path")]
    assert sum(d.count("a2.5 2.5 0 1 0 5.0 0") for d in dots) == 300
    assert "7 other structures" in picture
    assert "Estimates from the loops alone" in picture
    assert "a100 (simulated): 300 legal schedules" in picture
    assert picture == found.draw(300, seed=1)


@pytest.mark.parametrize("widest", [1.0001, 1.5, 30.0, 1e5])
def test_axes_have_labels(widest: float) -> None:
    values = np.array([1e-5, 1e-5 * widest])
    picture = draw_landscape("title", "", ["one"], np.zeros(2, np.int64), values, values)
    labels = re.findall(r'class="s [ce]"[^>]*>([\d.,]+)<', picture)
    assert 4 <= len(labels) <= 16
    assert len(set(labels)) == len(labels) / 2


def test_json_holds_what_the_table_holds(small: DesignSpace) -> None:
    data = small.to_json()
    assert data["structures"] == [
        {
            "name": "own",
            "rules": [],
            "steps": ['split("k", (<depth>,))', 'unroll("k.1", factor=<unroll>)'],
            "holes": ["depth", "unroll"],
            "combinations": 8,
            "legal_share": 1.0,
        }
    ]
    assert data["own"]
    assert str(small.structures[0]) == '.split("k", (<depth>,))\n.unroll("k.1", factor=<unroll>)'


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda s: s.neighbours(ekc.Schedule(ekc.matvec(8, 8))), "a schedule of matvec is not in a space of"),
        (lambda s: s.find_values(ekc.Schedule(OP)), "is not in this space: no values of the holes make its"),
        (lambda s: s.estimate([3]), "3 is not a schedule; sample(1)[0] is one of this space"),
        (lambda s: s.sample(0), "count: 0, at least 1"),
        (lambda s: s.sample(10**6), "count: 1000000, at most 10000"),
        (lambda s: s.draw(10, seed=-1), "seed: -1, at least 0"),
        (lambda s: ekc.space(3), "op: 3 is not an operator"),
        (lambda s: ekc.list_tiles(0, (8,)), "list_tiles: extent: 0, at least 1"),
        (lambda s: ekc.list_tiles(512, (64,) * 9), "list_tiles: tuples to choose from: "),
        (lambda s: ekc.list_tiles(64, 8), "list_tiles: most=8 is no list of numbers; write (8, 32, 8)"),
    ],
)
def test_refusals(small: DesignSpace, ask: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        ask(small)
    assert words in str(refusal.value)


def test_tiles_are_those_of_the_rules(found: DesignSpace) -> None:
    assert tuple(ekc.list_tiles(256, (8, 256, 16))) == found.holes["tile.i"]
