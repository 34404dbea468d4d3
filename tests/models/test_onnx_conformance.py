"""Conformance cases of the package onnx: none gives other numbers, crashes or ends in an internal error."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from benchmarks.models.conformance_onnx import (
    LEAST_RIGHT,
    list_node_cases,
    list_shipped_cases,
    make_line,
    run_case,
    run_onnx,
    write_page,
)
from benchmarks.models.outcomes import FAULTS, Outcome, find_difference

MODULES = (
    "spacetodepth",
    "depthtospace",
    "prelu",
    "gatherelements",
    "dropout",
    "pad",
    "isinf",
    "layernormalization",
)
"""Modules of the node cases that run by default."""
PAGE = Path(__file__).parents[2] / "docs/reference/conformance-onnx.md"


def list_faults(outcomes: list[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.verdict in FAULTS]


def test_some_node_cases_are_right() -> None:
    outcomes = [run_case(case) for case in list_node_cases(MODULES)]
    assert not list_faults(outcomes)
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    assert verdicts["right"] >= 40
    assert verdicts["right"] > 3 * (verdicts["opaque"] + verdicts["refused"])


def test_some_shipped_cases_are_right() -> None:
    outcomes = [run_case(case) for case in list_shipped_cases()[::7]]
    assert not list_faults(outcomes)
    assert sum(outcome.verdict == "right" for outcome in outcomes) > len(outcomes) // 2


@pytest.mark.exhaustive
def test_all_cases_and_their_page() -> None:
    """All cases; the default run has those of a few operators."""
    groups = run_onnx()
    assert groups.keys() == LEAST_RIGHT.keys()
    for name, outcomes in groups.items():
        assert not list_faults(outcomes)
        assert make_line(name, outcomes)["pass"]
    if f"onnx {onnx.__version__} " in PAGE.read_text():
        assert write_page(groups) == PAGE.read_text()


def test_tolerance_of_each_output_is_that_of_its_type() -> None:
    small, ones = np.ones(2, ml_dtypes.bfloat16), np.ones(2, np.float32)
    assert find_difference([small, ones], [small, ones], 1e-3, 0.0) is None
    found = find_difference([small, 1.005 * ones], [small, ones], 1e-3, 0.0)
    assert found == "output 1: other elements than expected"


def test_a_fault_is_found() -> None:
    """The judge notices a graph that gives other numbers."""
    case = next(case for case in list_node_cases(("spacetodepth",)) if "crd" in case.name)
    wrong = [case.outputs[0][..., ::-1]]
    assert run_case(replace(case, outputs=wrong)).verdict == "wrong"
