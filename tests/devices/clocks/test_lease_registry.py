"""Leases of killed governors are found by root wherever they are: real processes of two users."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ekc.devices.clocks.lease_file import make_default_folder
from ekc.devices.clocks.lease_registry import MACHINE_REGISTRY
from tests.devices.clocks.users import ALICE, BOB, needs_root, shared, start_as
from tests.scripted.nvml.boards import ScriptedBoards

__all__ = ["shared"]

pytestmark = needs_root
GOVERN = """
import sys, time
from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.limits import Settings
from ekc.devices.clocks.nvml_limits import NvmlLimits
from ekc.devices.nvml.library import list_uuids

with LeaseKeeper([NvmlLimits(list_uuids()[0])], on_message=print) as keeper:
    for result in keeper.actuators[0].restored:
        print(result, flush=True)
    if sys.argv[1:]:
        keeper.actuators[0].apply(Settings(sm_mhz=900, power_w=150.0))
        print("guard", keeper.guard_pid, flush=True)
        time.sleep(60)
"""
SET = ([300, 900], None, 150_000)


@contextmanager
def governor(boards: ScriptedBoards, uid: int, **extra: str) -> Iterator[tuple[int, int]]:
    """Process ids of a governor of a user that has set limits, and of its guard."""
    process = start_as(boards, uid, "-c", GOVERN, "set", **extra)
    line = process.stdout.readline()
    assert line.startswith("guard "), line + process.communicate()[1]
    pids = process.pid, int(line.split()[1])
    try:
        yield pids
    finally:
        kill(*reversed(pids))
        process.communicate()


def kill(*pids: int, number: int = signal.SIGKILL) -> None:
    for pid in pids:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, number)


def leave_limits(boards: ScriptedBoards, uid: int, **extra: str) -> None:
    """Kill a governor of a user together with its guard."""
    with governor(boards, uid, **extra) as pids:
        kill(*reversed(pids))  # The guard first: it would begin to restore.
    assert boards.read_limits() == SET


def restore(boards: ScriptedBoards, uid: int = 0, **extra: str) -> tuple[int, str]:
    """Exit status and output of `ekc govern --restore`."""
    process = start_as(boards, uid, "-m", "ekc", "govern", "--restore", **extra)
    out, err = process.communicate(timeout=60)
    assert not err
    return process.returncode, out


def start_next(boards: ScriptedBoards, uid: int, **extra: str) -> str:
    """Output of the next governor, which sets nothing."""
    process = start_as(boards, uid, "-c", GOVERN, **extra)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def folder_of(boards: ScriptedBoards, name: str) -> dict[str, str]:
    return {"EKC_RUN_DIR": str(boards.folder / name)}


def test_root_restores_what_a_killed_governor_of_a_user_left(shared: ScriptedBoards) -> None:
    leave_limits(shared, ALICE, **folder_of(shared, "alice"))
    status, out = restore(shared, BOB, **folder_of(shared, "bob"))
    assert status == 1
    assert "a governor left SM up to 900 MHz, cap 150 W; only its user or root" in out
    assert shared.read_limits() == SET
    status, out = restore(shared)
    assert status == 0
    assert f"of user {ALICE}" in out
    assert "are back as before" in out
    assert shared.are_limits_back()
    assert restore(shared)[0] == 0


def test_user_finds_leases_in_another_folder_of_hers(shared: ScriptedBoards) -> None:
    leave_limits(shared, ALICE, **folder_of(shared, "alice"))
    status, out = restore(shared, ALICE, EKC_RUN_DIR="")
    assert (status, out) == (0, "NVML, GPU 0 (Scripted GPU): previous settings are back\n")
    assert shared.are_limits_back()


def test_next_governor_restores_as_root_and_says_so_as_another_user(shared: ScriptedBoards) -> None:
    leave_limits(shared, ALICE, **folder_of(shared, "alice"))
    out = start_next(shared, BOB, **folder_of(shared, "bob"))
    assert "only its user or root can end that" in out
    assert shared.read_limits() == SET
    assert "are back as before" in start_next(shared, 0)
    assert shared.are_limits_back()


def test_running_governor_of_a_user_is_left_alone_by_root(shared: ScriptedBoards) -> None:
    with governor(shared, ALICE, **folder_of(shared, "alice")):
        assert restore(shared) == (0, "nothing to restore: no governor has left anything behind\n")
        assert shared.read_limits() == SET


@pytest.mark.parametrize("uid", [ALICE, 0])
def test_suspended_governor_is_shown_and_restored(shared: ScriptedBoards, uid: int) -> None:
    """Governor, guard and job stopped together, as batch systems suspend; it sets again when it goes on."""
    with governor(shared, ALICE, **folder_of(shared, "alice")) as pids:
        kill(*pids, number=signal.SIGSTOP)
        status, out = restore(shared, uid, **folder_of(shared, "alice" if uid else "leases"))
        assert status == 0, out
        assert f"governor {pids[0]} is suspended" in out
        assert "had set SM up to 900 MHz, cap 150 W" in out
        assert shared.are_limits_back()
        kill(*pids, number=signal.SIGCONT)
        assert shared.wait_for(lambda b: b.read_limits() == SET, 20) < 20


def test_known_folders_and_entries_in_them_are_found(shared: ScriptedBoards) -> None:
    """Without the variables of these tests: as the machine has it. Other leases of the machine may exist."""
    unset = {"EKC_RUN_DIR": "", "EKC_REGISTRY_DIR": ""}
    default = make_default_folder(ALICE)
    try:
        leave_limits(shared, ALICE, **unset)
        assert f"{default}/{shared.get_uuid()}.json of user {ALICE}: NVML" in restore(shared, **unset)[1]
        assert shared.are_limits_back()
        leave_limits(shared, ALICE, **unset | folder_of(shared, "alice"))
        assert any(default.glob("folder-*"))
        assert f"{shared.folder}/alice/{shared.get_uuid()}.json" in restore(shared, **unset)[1]
        assert shared.are_limits_back()
    finally:
        shutil.rmtree(default)
        for entry in MACHINE_REGISTRY.glob("folder-*"):
            if str(shared.folder) in entry.read_text():
                entry.unlink()


def test_registry_that_others_may_delete_from_is_not_used(shared: ScriptedBoards) -> None:
    shared.registry.chmod(0o777)
    out = start_next(shared, ALICE, **folder_of(shared, "alice"))
    assert "cannot register" in out
    assert "sticky bit" in out
