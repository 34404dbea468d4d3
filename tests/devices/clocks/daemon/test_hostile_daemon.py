"""The daemon beside held sockets, full disks and damaged leases: clients are served, and limits go back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from ekc.processes.process_facts import describe_user
from tests.devices.clocks.conditions import (
    DAMAGES,
    OTHER_UID,
    HolderKind,
    SocketHolder,
    fill_disk,
    mark_slow,
    mount_small_disk,
    needs_root,
)
from tests.devices.clocks.daemon.conftest import open_daemon
from tests.devices.clocks.daemon.helpers import RunningDaemon, measure_seconds
from tests.devices.clocks.daemon.user_process import UserProcess
from tests.scripted.nvml.boards import ScriptedBoards

pytestmark = needs_root
LIMIT_S = 5.0


@pytest.fixture
def daemon(boards: ScriptedBoards) -> Iterator[RunningDaemon]:
    """A daemon with its leases on a small disk."""
    with mount_small_disk(boards.leases), open_daemon(boards) as running:
        yield running


def set_as_client(daemon: RunningDaemon) -> UserProcess:
    """A client that has set the SM clock of the first board."""
    client = UserProcess(daemon, os.geteuid())
    gpu = daemon.boards.get_uuid()
    assert client.lease(gpu).get("ok") is True
    assert client.set(gpu, sm_mhz=900).get("ok") is True
    return client


@pytest.mark.parametrize("kind", mark_slow(("listens", "is silent"), ("listens",)))
def test_clients_are_served_beside_a_held_socket(daemon: RunningDaemon, kind: HolderKind) -> None:
    holder = SocketHolder(daemon.boards.get_uuid(), kind)
    try:
        client = set_as_client(daemon)
        daemon.kill(with_guards=True)
        client.close()
        daemon.start()
        assert measure_seconds(daemon.boards, ScriptedBoards.is_restored) < LIMIT_S
        daemon.wait_for_log(
            "stale lease: NVML, GPU 0 (Scripted GPU): previous settings are back; NVML, GPU 0"
        )
    finally:
        holder.close()
    log = daemon.read_log()
    named = f"process {holder.pid} of {describe_user(OTHER_UID)} holds the socket of its governor"
    assert log.count(named) == 2
    assert f"daemon: NVML, GPU 0 (Scripted GPU): {named}; it may not, and is ignored" in log


@pytest.mark.parametrize("killed", mark_slow(("client", "daemon", "daemon and guard"), ("daemon and guard",)))
def test_full_disk_keeps_no_limit_set(daemon: RunningDaemon, killed: str) -> None:
    """The next daemon cannot serve, as its socket is to be on the same disk; it restores all the same."""
    client = set_as_client(daemon)
    fill_disk(daemon.boards.leases)
    if killed == "client":
        client.close()
    else:
        daemon.kill(with_guards=killed == "daemon and guard")
        client.close()
    if killed == "daemon and guard":
        assert not daemon.boards.are_limits_back()
        files = ("--socket", str(daemon.boards.leases / "new.sock"), "--allow", str(daemon.allow_file))
        next_one = daemon.boards.start_python(
            "-m", "ekc", "govern", "--daemon", *files, stderr=subprocess.STDOUT
        )
        out, _ = next_one.communicate(timeout=60)
        assert next_one.returncode == 2
        assert "No space left on device" in out
        assert "stale lease: NVML, GPU 0 (Scripted GPU): previous settings are back" in out
    assert daemon.boards.wait_for(ScriptedBoards.is_restored, LIMIT_S) < LIMIT_S


def test_nothing_of_the_daemon_can_be_written_by_others(daemon: RunningDaemon) -> None:
    client = set_as_client(daemon)
    found = [path for path in daemon.boards.leases.rglob("*") if path.stat().st_mode & 0o022]
    client.close()
    assert found == []
    assert {x.name for x in daemon.boards.leases.iterdir() if x.is_dir()} == {"jobs"}


@pytest.mark.parametrize("kind", mark_slow(("empty", "FIFO", "folder"), ("FIFO",)))
def test_damaged_lease_of_the_daemon_is_written_again(daemon: RunningDaemon, kind: str) -> None:
    client = set_as_client(daemon)
    (file,) = daemon.boards.leases.glob("*.json")
    DAMAGES[kind](file)
    daemon.wait_for_log("NVML, GPU 0 (Scripted GPU) had ended (its file was damaged: ")
    measure_seconds(daemon.boards, lambda _: file.is_file() and file.stat().st_size > 0)
    assert daemon.boards.read_limits()[0] == [300, 900]
    client.close()
    assert measure_seconds(daemon.boards, ScriptedBoards.is_restored) < LIMIT_S
