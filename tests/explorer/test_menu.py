"""The list of next steps: the menu, filtered by the rules; the free text field refuses the rest."""

from __future__ import annotations

import numpy as np
import pytest

import ekc
from ekc.errors import EkcError
from ekc.explorer.path import apply_text
from ekc.explorer.steps import (
    estimate_families,
    estimate_schedules,
    list_legal_families,
)
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule.naive import make_naive_schedule
from tests.explorer.drawn import (
    DEVICE,
    OPERATORS,
    draw_schedule,
    explain_refusal,
    format_steps,
    list_legal_steps,
    list_menu,
)

REFUSED_TEXTS = 15
"""Entries that are not legal and are written into the text field, for each schedule."""


def check_list(schedule: ekc.Schedule, seed: int) -> None:
    """The list has the legal entries of the menu, and the text field gives the reason for the others."""
    listed = [step.text for step in list_legal_steps(schedule)]
    reasons = {format_steps(e): explain_refusal(schedule, e) for e in list_menu(schedule.program)}
    assert len(set(listed)) == len(listed)
    assert set(listed) == {text for text, reason in reasons.items() if not reason}
    refused = sorted(text for text, reason in reasons.items() if reason)
    for text in np.random.default_rng(seed).permutation(refused)[:REFUSED_TEXTS].tolist():
        with pytest.raises(EkcError) as problem:
            enforce_rules(apply_text(schedule, text).program, DEVICE.limits)
        assert str(problem.value) == reasons[text]


SIMILAR = {"groups", "epilogue"}
"""Operators whose menus have the entries of others."""


@pytest.mark.parametrize(
    ("name", "seed"),
    [pytest.param(x, n, marks=[pytest.mark.exhaustive] * (x in SIMILAR)) for n, x in enumerate(OPERATORS)],
)
def test_list_is_the_menu_filtered_by_the_rules(name: str, seed: int) -> None:
    check_list(draw_schedule(name, seed), seed)


def test_copies_of_one_name_in_two_computes_are_listed_once() -> None:
    check_list(draw_schedule("softmax", 116), 16)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(54))
def test_lists_of_many_schedules_are_the_menu_filtered_by_the_rules(seed: int) -> None:
    check_list(draw_schedule(list(OPERATORS)[seed % len(OPERATORS)], 100 + seed), seed)


def test_tensor_cores_are_one_entry_with_their_fragments() -> None:
    schedule = ekc.Schedule(ekc.matmul(64, 64, 64, dtype="float16"))
    for text in (
        'split("i", (2, 8)).split("j", (4, 2)).split("k", (16,))',
        'reorder("i.0", "j.0", "k.0", "i.2", "j.1", "i.1", "j.2", "k.1")',
        'bind("i.0", "block.x").bind("j.0", "block.x").bind("i.2", "thread.x").bind("j.1", "thread.x")',
        'cache_write("C").cache_read("A", "shared", at="k.0").cache_read("B", "shared", at="k.0")',
    ):
        schedule = apply_text(schedule, text)
    kinds = [step.kind for step in list_legal_steps(schedule)]
    assert "tensorize" in kinds
    (step, *_) = (s for s in list_legal_steps(schedule) if s.kind == "tensorize")
    assert step.text.count("fragment") == 2
    assert not explain_refusal(schedule, step.steps)


def test_estimates_of_a_list_are_those_of_each_schedule() -> None:
    schedule = apply_text(make_naive_schedule(ekc.matmul(64, 64, 64)), 'split("k", (16,))')
    families = list_legal_families(schedule, DEVICE.limits)
    entries, found = list_legal_steps(schedule), estimate_families(families, DEVICE)
    assert len(entries) == len(found.latency_s) > 50
    alone = estimate_schedules([schedule.apply_steps(*e.steps) for e in entries], DEVICE)
    np.testing.assert_allclose(found.latency_s, alone.latency_s)
    np.testing.assert_allclose(found.energy_j, alone.energy_j)
    assert (found.latency_s > 0).all()
    assert (found.energy_j > 0).all()


def test_shared_memory_is_estimated_to_help_the_naive_matmul() -> None:
    schedule = apply_text(make_naive_schedule(ekc.matmul(512, 512, 512)), 'split("k", (16,))')
    now, staged = estimate_schedules(
        [schedule, apply_text(schedule, 'cache_read("A", "shared", at="k.0", pad=4)')], DEVICE
    ).latency_s
    assert staged < 0.6 * now
