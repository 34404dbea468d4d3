"""Leases end with their connection, with silence and with the daemon: real processes, scripted NVML."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.devices.clocks.daemon.helpers import RunningDaemon, measure_seconds
from tests.scripted.nvml.boards import LIMITS_BEFORE, ScriptedBoards

LIMIT_S = 5.0
"""Seconds within which settings are back, whatever happened."""


def _is_set(boards: ScriptedBoards) -> bool:
    return boards.read_limits() == ([300, 900], *LIMITS_BEFORE[1:])


def test_client_sets_limits_and_leaves_them_as_they_were(daemon: RunningDaemon) -> None:
    boards = daemon.boards
    client = daemon.start_client("900", boards.get_uuid(0), boards.get_uuid(1))
    assert client.read_line() == "set"
    assert [boards.read_limits(x)[0] for x in (0, 1)] == [[300, 900], [300, 900]]
    assert len(list(boards.leases.glob("*.json"))) == 2
    assert len(daemon.find_guards()) == 1
    assert {call[1] for call in boards.read_calls()} == {daemon.process.pid}
    assert client.end() == ""
    assert boards.is_restored()
    assert "(the client is done): previous settings are back" in daemon.read_log()


def test_killed_client_is_restored(daemon: RunningDaemon) -> None:
    client = daemon.start_client("900", daemon.boards.get_uuid())
    assert client.read_line() == "set"
    client.send_signal(signal.SIGKILL)
    assert measure_seconds(daemon.boards, ScriptedBoards.is_restored) < LIMIT_S
    client.close()


def test_stopped_client_is_restored_and_sets_again_when_it_continues(daemon: RunningDaemon) -> None:
    """A batch system stops governor, guard and job at once: nothing of the job's own can restore."""
    client = daemon.start_client("900", daemon.boards.get_uuid())
    assert client.read_line() == "set"
    for _ in range(2):
        client.send_signal(signal.SIGSTOP)
        assert measure_seconds(daemon.boards, ScriptedBoards.is_restored) < LIMIT_S
        client.send_signal(signal.SIGCONT)
        assert measure_seconds(daemon.boards, _is_set) < LIMIT_S
    output = client.end()
    assert output.count("no complete message for 2.5 s; the lease is over, and is taken again") == 2
    assert daemon.boards.is_restored()


def test_killed_daemon_is_restored_by_its_guard_and_serves_again(daemon: RunningDaemon) -> None:
    client = daemon.start_client("900", daemon.boards.get_uuid())
    assert client.read_line() == "set"
    daemon.kill()
    assert measure_seconds(daemon.boards, ScriptedBoards.are_limits_back) < LIMIT_S
    daemon.start()
    measure_seconds(daemon.boards, _is_set)
    client.end()
    assert daemon.boards.is_restored()


def test_next_daemon_restores_after_daemon_and_guard_were_killed(daemon: RunningDaemon) -> None:
    client = daemon.start_client("900", daemon.boards.get_uuid())
    assert client.read_line() == "set"
    client.send_signal(signal.SIGSTOP)  # It would ask for its limits again.
    daemon.kill(with_guards=True)
    assert not daemon.boards.are_limits_back()
    daemon.start()
    assert measure_seconds(daemon.boards, ScriptedBoards.is_restored) < LIMIT_S
    daemon.wait_for_log("stale lease: NVML, GPU 0 (Scripted GPU): previous settings are back")
    client.close()


def test_end_of_the_daemon_restores(daemon: RunningDaemon) -> None:
    client = daemon.start_client("900", daemon.boards.get_uuid())
    assert client.read_line() == "set"
    assert daemon.stop() == 0
    assert daemon.boards.is_restored()
    daemon.wait_for_state("STOPPING=1")
    assert not daemon.socket_path.exists()
    assert "the daemon ends" in daemon.read_log()
    client.close()


def test_watchdog_hears_from_an_idle_daemon(daemon: RunningDaemon) -> None:
    for _ in range(2):
        daemon.wait_for_state("WATCHDOG=1")


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


def test_second_daemon_at_the_same_socket_is_refused(daemon: RunningDaemon) -> None:
    words = ("--socket", str(daemon.socket_path), "--allow", str(daemon.allow_file))
    second = daemon.boards.start_python("-m", "ekc", "govern", "--daemon", *words)
    _, err = second.communicate(timeout=30)
    assert second.returncode == 2
    assert f"--socket: another daemon listens at {daemon.socket_path}" in err
    assert daemon.ask(do="beat") == {"ok": True, "taken": {}}


@pytest.mark.parametrize("kind", ["link", "file"])
def test_socket_path_that_is_something_else_is_refused(boards: ScriptedBoards, kind: str) -> None:
    path = boards.folder / "taken"
    path.symlink_to("/etc/passwd") if kind == "link" else path.write_text("mine")
    (boards.folder / "allow.toml").write_text("")
    words = ("--socket", str(path), "--allow", str(boards.folder / "allow.toml"))
    daemon = boards.start_python("-m", "ekc", "govern", "--daemon", *words)
    _, err = daemon.communicate(timeout=30)
    assert daemon.returncode == 2
    assert f"--socket: {path} is no socket" in err
