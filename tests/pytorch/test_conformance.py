"""A small sample of the conformance cases of PyTorch; the whole is a command of `benchmarks/models`."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; .ci/run installs a build for the CPU")
pytest.importorskip("expecttest", reason="op_db of PyTorch needs expecttest")

from benchmarks.models.conformance_torch import draw_cases, run, write_page
from benchmarks.models.outcomes import FAULTS


@pytest.mark.filterwarnings("ignore")
def test_samples_of_op_db_have_no_fault() -> None:
    outcomes = run(8, 3) + run(4, 0, "softm") + run(1, 0, "nn.functional.dropout")
    assert [outcome for outcome in outcomes if outcome.verdict in FAULTS] == []
    assert {outcome.verdict for outcome in outcomes} >= {"right", "opaque"}
    left_out = [outcome for outcome in outcomes if outcome.verdict != "right"]
    assert all(outcome.reason for outcome in left_out)
    page = write_page(outcomes, 3)
    words = set(page.replace("`", " ").replace(",", " ").split())
    assert all(outcome.operator in words for outcome in left_out)


def test_equal_seeds_draw_equal_samples() -> None:
    first, again = ([case.name for case in draw_cases(5, 6, "add")] for _ in range(2))
    assert first == again
    assert first != [case.name for case in draw_cases(6, 6, "add")]
