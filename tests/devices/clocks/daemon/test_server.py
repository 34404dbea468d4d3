"""Leases end with their connection, with silence and with the daemon: real processes, scripted NVML."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ekc.devices.clocks.daemon.server import run_daemon
from ekc.errors import InvalidInput
from tests.devices.clocks.daemon.helpers import Client, RunningDaemon, measure_seconds
from tests.devices.clocks.daemon.user_process import UserProcess
from tests.scripted.nvml.boards import LIMITS_BEFORE, ScriptedBoards

LIMIT_S = 5.0
"""Seconds within which settings are back, whatever happened."""


def _is_set(boards: ScriptedBoards) -> bool:
    return boards.read_limits() == ([300, 900], *LIMITS_BEFORE[1:])


@pytest.fixture
def client(shared_daemon: RunningDaemon) -> Iterator[Client]:
    """A client process that has set 900 MHz on both GPUs."""
    boards = shared_daemon.boards
    running = shared_daemon.start_client("900", boards.get_uuid(0), boards.get_uuid(1))
    assert running.read_line() == "set"
    yield running
    running.close()
    assert boards.wait_for(ScriptedBoards.is_restored, LIMIT_S) < LIMIT_S


@pytest.fixture
def peer(shared_daemon: RunningDaemon) -> Iterator[UserProcess]:
    """A process of this user that has set 900 MHz on the first GPU, without the classes of the client."""
    process = UserProcess(shared_daemon, os.geteuid())
    gpu = shared_daemon.boards.get_uuid()
    assert process.lease(gpu)["ok"] is True
    assert process.set(gpu, sm_mhz=900)["ok"] is True
    yield process
    process.close()
    assert shared_daemon.boards.wait_for(ScriptedBoards.is_restored, LIMIT_S) < LIMIT_S


def test_stopped_client_is_restored_and_sets_again(shared_daemon: RunningDaemon, client: Client) -> None:
    """A batch system stops governor, guard and job at once: nothing of the job's own can restore."""
    boards = shared_daemon.boards
    assert [boards.read_limits(x)[0] for x in (0, 1)] == [[300, 900], [300, 900]]
    assert len(list(boards.leases.glob("*.json"))) == 2
    assert len(shared_daemon.find_guards()) == 1
    assert {call[1] for call in boards.read_calls()} == {shared_daemon.process.pid}
    client.send_signal(signal.SIGSTOP)
    assert measure_seconds(boards, ScriptedBoards.is_restored) < LIMIT_S
    client.send_signal(signal.SIGCONT)
    assert measure_seconds(boards, _is_set) < LIMIT_S
    assert client.end().count("no complete message for 2.5 s; the lease is over, and is taken again") == 1
    assert boards.is_restored()
    assert "(the client is done): previous settings are back" in shared_daemon.read_log()


def test_killed_daemon_is_restored_by_its_guard_and_serves_again(
    shared_daemon: RunningDaemon, client: Client
) -> None:
    shared_daemon.kill()
    assert measure_seconds(shared_daemon.boards, ScriptedBoards.are_limits_back) < LIMIT_S
    shared_daemon.start()
    measure_seconds(shared_daemon.boards, _is_set)
    client.end()
    assert shared_daemon.boards.is_restored()


LATE_SETTER = """
import sys
from ekc.devices.clocks import lease
from ekc.devices.clocks.daemon.client import DaemonLease
from ekc.devices.clocks.limits import Settings
from ekc.devices.clocks.open import choose_actuator
lease.HEARTBEAT_INTERVAL_S = 60.0
is_held, first_answers = DaemonLease.is_held, [True]
DaemonLease.is_held = lambda self: first_answers.pop() if first_answers else is_held(self)
with lease.LeaseKeeper([choose_actuator("daemon", sys.argv[1])]) as keeper:
    print("leased", flush=True)
    sys.stdin.readline()
    keeper.actuators[0].apply(Settings(sm_mhz=900))
    print("set", flush=True)
    sys.stdin.readline()
"""


def test_lease_that_ends_just_before_a_setting_is_taken_again(shared_daemon: RunningDaemon) -> None:
    """As of a governor that a batch system has stopped between the question for its lease and the setting."""
    setter = Client(shared_daemon, ["-c", LATE_SETTER, shared_daemon.boards.get_uuid()])
    assert setter.read_line() == "leased"
    shared_daemon.kill()
    shared_daemon.start()
    setter.process.stdin.write("\n")
    setter.process.stdin.flush()
    assert setter.read_line() == "set"
    assert _is_set(shared_daemon.boards)
    assert setter.end() == ""
    assert shared_daemon.boards.is_restored()


def test_killed_client_is_restored(shared_daemon: RunningDaemon, peer: UserProcess) -> None:
    os.kill(peer.pid, signal.SIGKILL)
    assert measure_seconds(shared_daemon.boards, ScriptedBoards.is_restored) < LIMIT_S


def test_next_daemon_restores_after_daemon_and_guard_were_killed(
    shared_daemon: RunningDaemon, peer: UserProcess
) -> None:
    shared_daemon.kill(with_guards=True)
    assert not shared_daemon.boards.are_limits_back()
    shared_daemon.start()
    assert measure_seconds(shared_daemon.boards, ScriptedBoards.is_restored) < LIMIT_S
    shared_daemon.wait_for_log("stale lease: NVML, GPU 0 (Scripted GPU): previous settings are back")


def test_end_of_the_daemon_restores(shared_daemon: RunningDaemon, peer: UserProcess) -> None:
    assert shared_daemon.stop() == 0
    assert shared_daemon.boards.is_restored()
    shared_daemon.wait_for_state("STOPPING=1")
    assert not shared_daemon.socket_path.exists()
    assert peer.ask(do="beat") == {"ended": "the daemon ends"}
    shared_daemon.start()


def test_watchdog_hears_from_an_idle_daemon(shared_daemon: RunningDaemon) -> None:
    for _ in range(2):
        shared_daemon.wait_for_state("WATCHDOG=1")


def test_socket_of_systemd_is_used(boards: ScriptedBoards) -> None:
    """LISTEN_FDS, as the socket unit passes it: clients that come before the daemon wait."""
    path = boards.folder / "passed.sock"
    (boards.folder / "allow.toml").write_text(f"[[allow]]\nusers = [{os.geteuid()}]\n")
    (boards.folder / "allow.toml").chmod(0o644)
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
        socket.socket(socket.AF_UNIX) as client,
    ):
        listener.bind(str(path))
        listener.listen()
        client.settimeout(30)
        client.connect(str(path))
        client.sendall(b'{"do": "beat"}\n')
        program = (
            f"import os, sys; os.dup2({listener.fileno()}, 3); os.environ['LISTEN_PID'] = str(os.getpid()); "
            "os.execv(sys.executable, [sys.executable, '-m', 'ekc', *sys.argv[1:]])"
        )
        words = ("govern", "--daemon", "--allow", str(boards.folder / "allow.toml"))
        daemon = subprocess.Popen(
            [sys.executable, "-c", program, *words],
            env=boards.environment | {"LISTEN_FDS": "1"},
            pass_fds=(listener.fileno(), 3) if listener.fileno() != 3 else (3,),
        )
        assert client.recv(100) == b'{"ok": true, "taken": {}}\n'
        daemon.terminate()
        assert daemon.wait(30) == 0
        assert path.exists()  # It belongs to systemd.


@pytest.mark.parametrize("kind", ["link", "file", "daemon"])
def test_socket_path_that_is_taken_is_refused(
    shared_daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("EKC_RUN_DIR", str(tmp_path / "leases"))
    path = shared_daemon.socket_path if kind == "daemon" else tmp_path / "taken"
    if kind == "link":
        path.symlink_to(shared_daemon.socket_path)
    elif kind == "file":
        path.write_text("mine")
    words = f"another daemon listens at {path}; end it first" if kind == "daemon" else f"{path} is no socket"
    with pytest.raises(InvalidInput, match=words):
        run_daemon(path, shared_daemon.allow_file)
    assert path.exists()
