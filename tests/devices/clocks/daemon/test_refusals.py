"""Refusals of the daemon, asked by processes of two real users and more."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.limits import NvmlLimits
from tests.devices.clocks.daemon.conftest import ALLOW
from tests.devices.clocks.daemon.helpers import ALICE, BOB, CAROL, GPU_GROUP, RunningDaemon, measure_seconds
from tests.devices.clocks.daemon.user_process import UserProcess
from tests.scripted.nvml.boards import LIMITS_BEFORE, ScriptedBoards
from tests.scripted.nvml.fixtures import see_boards

Enter = Callable[..., UserProcess]
LIMIT_S = 5.0


def check_success(reply: dict[str, Any]) -> None:
    assert reply.get("ok") is True, reply


@pytest.fixture
def gpus(shared_daemon: RunningDaemon) -> list[str]:
    return [shared_daemon.boards.get_uuid(index) for index in (0, 1)]


def test_user_without_a_rule_is_refused(shared_daemon: RunningDaemon, enter: Enter) -> None:
    reply = enter(BOB).ask(do="beat")
    assert reply == {
        "ended": f"uid {BOB} is not on the allow-list {shared_daemon.allow_file}; the administrator can "
        "add the user or one of the user's groups"
    }


def test_group_permits_its_gpus_alone(shared_daemon: RunningDaemon, enter: Enter, gpus: list[str]) -> None:
    bob = enter(BOB, (GPU_GROUP,))
    refusal = f"uid {BOB} may not set GPU 0: {shared_daemon.allow_file} allows 1"
    assert bob.lease(gpus[0]) == {"refused": refusal}
    assert bob.ask(do="check", gpus=gpus) == {"refused": refusal}
    check_success(bob.lease(gpus[1]))
    check_success(bob.set(gpus[1], sm_mhz=300))
    assert shared_daemon.boards.read_limits(1)[0] == [300, 300]


def test_gpu_of_another_user_is_refused_with_the_holder(
    shared_daemon: RunningDaemon, enter: Enter, gpus: list[str]
) -> None:
    alice, bob = enter(ALICE), enter(BOB, (GPU_GROUP,))
    check_success(alice.lease(*gpus))
    holder = f"NVML, GPU 1 (Scripted GPU) is governed by process {alice.pid} of uid {ALICE} already"
    assert bob.lease(gpus[1]) == {"refused": f"{holder}; one GPU has one governor"}
    assert bob.ask(do="check", gpus=gpus[1:]) == {"refused": f"{holder}; one GPU has one governor"}
    assert bob.set(gpus[1], sm_mhz=900)["refused"].startswith("set: this connection has no lease of")
    check_success(alice.ask(do="end"))
    check_success(bob.lease(gpus[1]))


REFUSED_SETTINGS = [
    ({"sm_mhz": 585}, "sm_mhz: 585 MHz is below the 600 MHz that"),
    ({"power_w": 145.0}, "power_w: 145 W is below the 150 W that"),
    ({"power_w": 300.0}, "power_w: 300 W, from 100 to 280 W"),
    ({"sm_mhz": 1996}, "sm_mhz: 1996 MHz, from 300 to 1995 MHz"),
    ({"memory_mhz": 0}, "memory_mhz is 0; give whole MHz above 0"),
    ({"sm_mhz": True}, "sm_mhz is True; give whole MHz above 0"),
    ({"sm_mhz": "900"}, "sm_mhz is '900'; give whole MHz above 0"),
    ({"sm_mhz": 10**400}, "sm_mhz is"),
    ({"fan": 100}, "settings: give sm_mhz, memory_mhz and power_w, or some of them"),
]


def test_value_out_of_bounds_is_refused_and_sets_nothing(
    shared_daemon: RunningDaemon, enter: Enter, gpus: list[str]
) -> None:
    alice = enter(ALICE)
    check_success(alice.lease(gpus[0]))
    for settings, words in REFUSED_SETTINGS:
        assert words in alice.set(gpus[0], **settings)["refused"]
    assert shared_daemon.boards.read_limits() == LIMITS_BEFORE
    check_success(alice.set(gpus[0], sm_mhz=600, power_w=280.0))


def test_gpu_on_which_another_user_computes_is_refused(
    shared_daemon: RunningDaemon, enter: Enter, gpus: list[str]
) -> None:
    alice, bob = enter(ALICE), enter(BOB, (GPU_GROUP,))
    shared_daemon.boards.update_board(1, pids=[alice.pid])
    check_success(alice.lease(gpus[1]))
    check_success(alice.set(gpus[1], sm_mhz=900))
    shared_daemon.boards.update_board(1, pids=[alice.pid, bob.pid])
    assert measure_seconds(shared_daemon.boards, ScriptedBoards.is_restored) < LIMIT_S
    words = (
        f"process {bob.pid} of uid {BOB} computes on {gpus[1]}; a GPU that two users share is not governed"
    )
    assert alice.ask(do="beat") == {"ended": words}
    assert enter(ALICE).lease(gpus[1]) == {"refused": words}
    shared_daemon.boards.update_board(1, pids=[])


def test_mps_clients_of_another_user_count(
    shared_daemon: RunningDaemon, enter: Enter, gpus: list[str]
) -> None:
    """A function of NVML that the daemon once did not call lists them."""
    alice, bob = enter(ALICE), enter(BOB, (GPU_GROUP,))
    shared_daemon.boards.update_board(1, pids=[alice.pid], mps_pids=[alice.pid])
    check_success(alice.lease(gpus[1]))
    check_success(alice.set(gpus[1], sm_mhz=900))
    shared_daemon.boards.update_board(1, mps_pids=[alice.pid, bob.pid])
    assert measure_seconds(shared_daemon.boards, ScriptedBoards.is_restored) < LIMIT_S
    words = (
        f"process {bob.pid} of uid {BOB} computes on {gpus[1]} through MPS; a GPU that two users share is "
        "not governed"
    )
    assert alice.ask(do="beat") == {"ended": words}
    assert enter(ALICE).lease(gpus[1]) == {"refused": words}
    shared_daemon.boards.update_board(1, pids=[], mps_pids=[])


def test_gpu_split_by_mig_is_refused(shared_daemon: RunningDaemon, enter: Enter, gpus: list[str]) -> None:
    shared_daemon.boards.update_board(1, mig=[1, 1])
    assert "GPU 1 is split by MIG" in enter(ALICE).lease(gpus[1])["refused"]
    shared_daemon.boards.update_board(1, mig=[0])


def test_job_file_permits_the_gpus_of_a_job_until_it_is_deleted(
    shared_daemon: RunningDaemon, enter: Enter, gpus: list[str]
) -> None:
    carol, file = enter(CAROL), shared_daemon.boards.leases / "jobs" / "4711"
    shared_daemon.boards.update_board(0, minor=3)
    refusal = {
        "refused": f"uid {CAROL} may not set GPU 0: {shared_daemon.allow_file} allows those of its jobs"
    }
    assert carol.lease(gpus[0]) == refusal
    for text in (f"uid = {CAROL}\ngpus = [0, 1]\n", f"uid = {BOB}\ngpus = [3]\n"):
        file.write_text(text)
        assert carol.lease(gpus[0]) == refusal
    file.write_text(f"uid = {CAROL}\ngpus = [3]\n")
    check_success(carol.lease(gpus[0]))
    check_success(carol.set(gpus[0], sm_mhz=900))
    file.unlink()
    assert measure_seconds(shared_daemon.boards, ScriptedBoards.is_restored) < LIMIT_S
    assert carol.ask(do="beat") == {"ended": refusal["refused"]}
    shared_daemon.boards.update_board(0, minor=0)


@pytest.mark.parametrize("kind", ["writable", "other owner", "link", "text", "values"])
def test_job_file_that_root_did_not_write_is_refused(
    shared_daemon: RunningDaemon, enter: Enter, gpus: list[str], tmp_path: Path, kind: str
) -> None:
    file = shared_daemon.boards.leases / "jobs" / "4712"
    file.write_text(f"uid = {CAROL}\ngpus = [0]\n")
    if kind == "writable":
        file.chmod(0o666)
    elif kind == "other owner":
        os.chown(file, CAROL, CAROL)
    elif kind == "link":
        file.rename(tmp_path / "job")
        file.symlink_to(tmp_path / "job")
    else:
        file.write_text("uid" if kind == "text" else f"uid = '{CAROL}'\ngpus = 0\n")
    reply = enter(CAROL).lease(gpus[0])
    file.unlink()
    assert str(file) in reply["refused"]


def test_reload_ends_leases_that_are_no_longer_permitted(
    shared_daemon: RunningDaemon, enter: Enter, gpus: list[str]
) -> None:
    alice = enter(ALICE)
    check_success(alice.lease(gpus[0]))
    shared_daemon.write_allow_list("[[allow]]\nuser = ['x']\n")
    shared_daemon.process.send_signal(signal.SIGHUP)
    shared_daemon.wait_for_log("the allow-list stays as it was")
    check_success(alice.set(gpus[0], sm_mhz=900))
    shared_daemon.write_allow_list(f"[[allow]]\nusers = [{BOB}]\n")
    shared_daemon.process.send_signal(signal.SIGHUP)
    assert measure_seconds(shared_daemon.boards, ScriptedBoards.is_restored) < LIMIT_S
    assert f"uid {ALICE} is not on the allow-list" in alice.ask(do="beat")["ended"]
    shared_daemon.write_allow_list(ALLOW)
    shared_daemon.process.send_signal(signal.SIGHUP)
    measure_seconds(shared_daemon.boards, lambda _: shared_daemon.ask(do="beat").get("ok") is True)


def test_governor_without_the_daemon_is_named(
    shared_daemon: RunningDaemon, enter: Enter, gpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One owner per GPU, whichever way it sets clocks."""
    see_boards(shared_daemon.boards, monkeypatch)
    monkeypatch.setenv("EKC_RUN_DIR", str(shared_daemon.boards.folder / "own"))
    with LeaseKeeper([NvmlLimits(gpus[0])]):
        reply = enter(ALICE).lease(gpus[0])
    assert f"NVML, GPU 0 (Scripted GPU) is governed by process {os.getpid()}" in reply["refused"]
