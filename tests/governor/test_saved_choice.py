"""The choice of an earlier run: kept after a check, tried by A/B/A, and refused where it does not hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ekc.errors import InvalidInput
from ekc.governor.event_records import Chosen
from ekc.governor.loop import govern
from ekc.governor.protocols import Settings
from ekc.governor.request import Policy, check_name
from ekc.governor.saved_choice import ChoiceFile, SavedChoice, SavedChoiceTried, make_conditions
from ekc.governor.simulation.simulated_run import SimulatedRun
from tests.governor.helpers import make_iterations, make_job, select_events

JOB = make_job([make_iterations(700)])
OTHER = make_job([make_iterations(300, 1, (1, 4), (0.3, 0.8))])


def run_with(saved: list[SavedChoice], job=JOB, seed: int = 1) -> tuple[list, list[SavedChoice]]:
    """(events, choices kept) of a run."""
    run, events, kept = SimulatedRun(job, seed), [], []

    def save(choices: list[SavedChoice]) -> None:
        kept[:] = choices

    govern(run, run, on_event=events.append, saved=saved, save=save)
    return events, kept


@pytest.fixture(scope="module")
def saved() -> list[SavedChoice]:
    return run_with([], seed=0)[1]


def test_checked_choice_is_kept_and_trusted_in_the_next_run(saved: list[SavedChoice]) -> None:
    (choice,) = saved
    events, _ = run_with(saved)
    (tried,) = select_events(events, SavedChoiceTried)
    chosen = select_events(events, Chosen)[0]
    assert tried.is_trusted
    assert (chosen.settings, chosen.points) == (choice.settings, 1)


def test_choice_that_was_never_checked_is_not_kept() -> None:
    assert run_with([], make_job([make_iterations(200)]))[1] == []


def test_wrong_choice_is_caught_and_the_job_is_searched(saved: list[SavedChoice]) -> None:
    (choice,) = saved
    offered = JOB.card.list_offered().sm_mhz
    low = max(x for x in offered if x < 0.8 * choice.settings.sm_mhz)
    wrong = replace(choice, settings=Settings(sm_mhz=low))
    events, _ = run_with([wrong], make_job([make_iterations(300)]))
    (tried,) = select_events(events, SavedChoiceTried)
    assert not tried.is_trusted
    assert "it is not used" in tried.format_line()
    assert select_events(events, Chosen)[0].settings.sm_mhz > 0.95 * choice.settings.sm_mhz


def test_choice_for_other_work_is_not_tried(saved: list[SavedChoice]) -> None:
    assert not select_events(run_with(saved, OTHER)[0], SavedChoiceTried)


def test_clock_that_the_card_does_not_have_is_not_tried(saved: list[SavedChoice]) -> None:
    wrong = replace(saved[0], settings=Settings(sm_mhz=1777))
    assert not select_events(run_with([wrong], make_job([make_iterations(200)]))[0], SavedChoiceTried)


def make_file(notes: list[str], policy: Policy | None = None, driver: str = "580.1") -> ChoiceFile:
    return ChoiceFile("night", make_conditions("H200", 1, driver, policy or Policy()), notes.append)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "ekc" / "choices"


def test_file_gives_back_what_was_written(saved: list[SavedChoice], folder: Path) -> None:
    notes: list[str] = []
    assert make_file(notes).read() == []
    aperiodic = replace(saved[0], kind="throughput", period_s=float("nan"))
    make_file(notes).write([saved[0], aperiodic])
    first, second = make_file(notes).read()
    assert first == saved[0]
    assert (second.kind, second.settings) == ("throughput", saved[0].settings)
    assert [path.name for path in folder.iterdir()] == ["night.json"]
    make_file(notes).write([])
    assert make_file(notes).read()
    assert notes == []


@pytest.mark.parametrize(
    ("other", "word"),
    [
        ({"driver": "590.2"}, "another driver"),
        ({"policy": Policy(max_slowdown=0.02)}, "another policy"),
        ({"policy": Policy("speed", power_cap_w=300.0)}, "another policy"),
    ],
)
def test_other_conditions_are_said(saved: list[SavedChoice], folder: Path, other: dict, word: str) -> None:
    notes: list[str] = []
    make_file(notes).write(saved)
    assert make_file(notes, **other).read() == []
    assert word in notes[0]


def test_remaining_time_may_differ(saved: list[SavedChoice], folder: Path) -> None:
    notes: list[str] = []
    make_file(notes, Policy(remaining_s=100.0)).write(saved)
    assert make_file(notes).read() == saved


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"conditions": {}, "choices": [{}]}', "\x00"])
def test_damaged_file_is_said_and_not_used(folder: Path, text: str) -> None:
    notes: list[str] = []
    folder.mkdir(parents=True)
    (folder / "night.json").write_text(text)
    assert make_file(notes).read() == []
    assert len(notes) == 1


@pytest.mark.parametrize(
    "change",
    [{"settings": {"sm_mhz": "fast", "memory_mhz": None, "power_w": None}}, {"kind": "x"}, {"saving": None}],
)
def test_forged_choice_is_not_used(saved: list[SavedChoice], folder: Path, change: dict) -> None:
    notes: list[str] = []
    make_file(notes).write(saved)
    file = folder / "night.json"
    content = json.loads(file.read_text())
    content["choices"][0].update(change)
    file.write_text(json.dumps(content))
    assert make_file(notes).read() == []
    assert "is damaged" in notes[0]


def test_folder_that_cannot_be_written_is_said(saved: list[SavedChoice], folder: Path) -> None:
    notes: list[str] = []
    folder.parent.mkdir()
    folder.write_text("a file")
    make_file(notes).write(saved)
    assert "cannot be saved" in notes[0]


def test_names_are_those_of_files() -> None:
    assert check_name("nightly-bert.2") == "nightly-bert.2"
    for name in ("", "../x", "a/b", ".x", "x" * 101):
        with pytest.raises(InvalidInput, match="a name is"):
            check_name(name)
    for options in ({"each": True}, {"has_deadline": True}):
        with pytest.raises(InvalidInput, match="leave one of them out"):
            check_name("nightly", **options)
