"""Limits go back whatever is done to lease files, their folder and the sockets of governors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ekc.devices.clocks import lease_file
from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.limits import Settings
from ekc.devices.clocks.restore import restore_all
from ekc.errors import ActuatorError, InvalidInput, RecordError
from ekc.processes.process_facts import describe_user
from tests.devices.clocks.conditions import (
    DAMAGES,
    HOLDER_KINDS,
    OTHER_UID,
    HolderKind,
    SocketHolder,
    fill_disk,
    make_read_only,
    mark_slow,
    mount_small_disk,
    needs_root,
)
from tests.devices.clocks.helpers import make_keeper, make_lease, read_lease
from tests.devices.clocks.users import ALICE, BOB, shared, start_as
from tests.scripted.nvml.boards import LIMITS_BEFORE, ScriptedBoards
from tests.scripted.nvml.fixtures import see_boards

__all__ = ["shared"]

OTHER = describe_user(OTHER_UID)
LOW = Settings(sm_mhz=900, memory_mhz=405, power_w=105.0)
LOW_LIMITS = ([300, 900], [405, 405], 105_000)
NO_ROOM = {"full": "No space left on device", "read-only": "Read-only file system"}
GOVERN = """
import os, sys, time
from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.limits import Settings
from ekc.devices.clocks.limits import NvmlLimits
keeper = LeaseKeeper([NvmlLimits(sys.argv[1])], on_message=lambda line: print(line, flush=True))
keeper.actuators[0].apply(Settings(900, 405, 105.0))
print("set", keeper.guard_pid, flush=True)
sys.stdin.readline()
print(*keeper.close(), sep="\\n", flush=True)
"""
"""Sets limits, and puts them back when a line comes."""


class Governor:
    """A process that has set limits of the first board, and its guard."""

    def __init__(self, boards: ScriptedBoards) -> None:
        self.boards, self.said = boards, ""
        options = {"stdin": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = boards.start_python("-c", GOVERN, boards.get_uuid(), **options)
        while not (line := self.process.stdout.readline()).startswith("set "):
            assert line, self.said
            self.said += line
        self.guard_pid = int(line.split()[1])
        assert boards.read_limits() == LOW_LIMITS

    def end(self) -> str:
        """Let it put the limits back; returns what it printed."""
        return self.said + str(self.process.communicate("\n", timeout=60)[0])

    def kill(self, *pids: int) -> str:
        """Kill it, and other processes before; returns what it and its guard printed."""
        for pid in (*pids, self.process.pid):
            os.kill(pid, signal.SIGKILL)
        return self.said + str(self.process.communicate(timeout=60)[0])


def restore(boards: ScriptedBoards) -> tuple[int, str]:
    """Exit status and output of `ekc govern --restore`."""
    process = boards.start_python("-m", "ekc", "govern", "--restore", stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=60)
    return process.returncode, str(out)


@pytest.fixture
def small_disk(here: ScriptedBoards) -> Iterator[ScriptedBoards]:
    """Leases on a small disk."""
    with mount_small_disk(here.leases):
        yield here


def change_disk(boards: ScriptedBoards, kind: str) -> None:
    (fill_disk if kind == "full" else make_read_only)(boards.leases)


@needs_root
@pytest.mark.parametrize("kind", NO_ROOM)
def test_limits_go_back_without_room_for_a_record(small_disk: ScriptedBoards, kind: str) -> None:
    with make_keeper(small_disk) as keeper:
        actuator = keeper.actuators[0]
        actuator.apply(LOW)
        change_disk(small_disk, kind)
        with pytest.raises(RecordError, match=f"{NO_ROOM[kind]}.*nothing was set"):
            actuator.apply(Settings(1200, 405, 105.0))
        assert small_disk.read_limits() == LOW_LIMITS
        with pytest.raises(RecordError, match=NO_ROOM[kind]):  # One limit goes back, another is new.
            actuator.apply(Settings(None, 405, 200.0))
        actuator.apply(Settings(None, None, 105.0))
        assert small_disk.read_limits() == (None, None, 105_000)
        actuator.apply(Settings())
        assert small_disk.are_limits_back()
    assert small_disk.are_limits_back()
    assert small_disk.has_lease() == (kind == "read-only")


@needs_root
@pytest.mark.parametrize("kind", NO_ROOM)
@pytest.mark.parametrize("killed", ["governor", "both"])
def test_full_and_read_only_folders_under_kills(small_disk: ScriptedBoards, kind: str, killed: str) -> None:
    governor = Governor(small_disk)
    change_disk(small_disk, kind)
    said = governor.kill(*([governor.guard_pid] if killed == "both" else []))
    if killed == "both":
        assert small_disk.read_limits() == LOW_LIMITS
        status, said = restore(small_disk)
        assert status == (kind == "read-only")  # The lease file stays: see below.
    assert small_disk.wait_for(ScriptedBoards.are_limits_back, 5.0) < 5.0
    file = f"{small_disk.get_uuid()}.json"
    if kind == "read-only":
        assert f"the settings are back, but the lease {file} cannot be deleted (Read-only file" in said
    else:
        assert small_disk.wait_for(ScriptedBoards.is_restored, 5.0) < 5.0
        assert "cannot" not in said


@needs_root
def test_folder_without_room_is_refused_before_anything_is_set(small_disk: ScriptedBoards) -> None:
    lease_file.prepare_lease_folder()
    fill_disk(small_disk.leases)
    with pytest.raises(RecordError, match=r"No space left on device.*nothing was set"):
        make_keeper(small_disk)
    assert not small_disk.read_calls()


@pytest.mark.parametrize("kind", mark_slow(DAMAGES, ("empty", "folder")))
def test_damaged_lease_is_written_again(here: ScriptedBoards, kind: str) -> None:
    messages: list[str] = []
    file = lease_file.make_lease_path(here.get_uuid())
    with make_keeper(here, on_message=messages.append) as keeper:
        keeper.actuators[0].apply(LOW)
        DAMAGES[kind](file)
        assert here.wait_for(lambda _: bool(messages), 20) < 20
        assert read_lease(here) == keeper.actuators[0].lease
        assert here.read_limits() == LOW_LIMITS
        keeper.actuators[0].apply(Settings(sm_mhz=1200))
    assert here.is_restored()
    (line,) = messages
    assert "its file was " in line
    assert line.endswith("); taken and set again")
    if kind == "folder":
        (aside,) = here.leases.glob("*.json.*")
        assert (aside / "kept").exists()


@pytest.mark.parametrize("kind", mark_slow(DAMAGES, ("deleted",)))
def test_governor_that_ends_with_a_damaged_lease_restores(
    here: ScriptedBoards, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two heartbeats."""
    monkeypatch.setattr(LeaseKeeper, "_find_losses", lambda self: [])
    with make_keeper(here) as keeper:
        keeper.actuators[0].apply(LOW)
        DAMAGES[kind](lease_file.make_lease_path(here.get_uuid()))
        keeper.actuators[0].apply(Settings(None, 405, 105.0))
        assert here.read_limits() == (None, *LOW_LIMITS[1:])
    assert here.is_restored()


@pytest.mark.parametrize("kind", mark_slow(DAMAGES, ("FIFO",)))
def test_governor_that_is_killed_with_a_damaged_lease_is_restored(here: ScriptedBoards, kind: str) -> None:
    governor = Governor(here)
    DAMAGES[kind](lease_file.make_lease_path(here.get_uuid()))
    said = governor.kill()
    assert here.wait_for(ScriptedBoards.is_restored, 5.0) < 5.0
    assert f"governor {governor.process.pid} died; NVML, GPU 0 (Scripted GPU): previous settings are" in said


@pytest.mark.parametrize("kind", [x for x in DAMAGES if x not in ("deleted", "link to nothing")])
def test_damaged_lease_without_a_governor_is_said(here: ScriptedBoards, kind: str) -> None:
    """Nothing knows then what was set, and no limit is guessed."""
    file = lease_file.make_lease_path(here.get_uuid())
    lease_file.write_lease(make_lease(here.get_uuid()))
    DAMAGES[kind](file)
    began_s = time.monotonic()
    (result,) = restore_all()
    assert result.problem is not None
    assert f"{file} is no lease (" in result.problem
    assert "delete it and reset the GPU by hand (nvidia-smi -i GPU-" in result.problem
    assert "\n" not in result.problem
    with pytest.raises(RecordError, match="is no lease"):
        make_keeper(here)
    assert time.monotonic() - began_s < 5
    assert not here.read_calls()


@needs_root
def test_lost_lease_that_cannot_be_written_again_goes_back(small_disk: ScriptedBoards) -> None:
    """Without a record on the disk nothing stays set, until there is room."""
    messages: list[str] = []
    with make_keeper(small_disk, on_message=messages.append) as keeper:
        keeper.actuators[0].apply(LOW)
        fill_disk(small_disk.leases)
        DAMAGES["empty"](lease_file.make_lease_path(small_disk.get_uuid()))
        fill_disk(small_disk.leases)
        assert small_disk.wait_for(ScriptedBoards.are_limits_back, 20) < 20
        assert small_disk.wait_for(lambda _: bool(messages), 20) < 20
        for filler in small_disk.leases.glob("filler*"):
            filler.unlink()
        assert small_disk.wait_for(lambda b: b.read_limits() == LOW_LIMITS, 20) < 20
    assert small_disk.is_restored()
    assert "No space left on device" in messages[0]
    assert "damaged" in messages[1]


@needs_root
@pytest.mark.parametrize("kind", mark_slow(HOLDER_KINDS, ("has a full queue",)))
def test_socket_held_by_another_user_is_ignored_and_named(here: ScriptedBoards, kind: HolderKind) -> None:
    messages: list[str] = []
    holder = SocketHolder(here.get_uuid(), kind)
    try:
        with make_keeper(here, on_message=messages.append) as keeper:
            keeper.actuators[0].apply(LOW)
            assert here.read_limits() == LOW_LIMITS
            assert lease_file.find_governor_pid(here.get_uuid()) == os.getpid()
            with pytest.raises(ActuatorError, match=f"is governed by process {os.getpid()} already"):
                make_keeper(here)
            assert restore(here) == (
                1,
                f"NVML, GPU 0 (Scripted GPU): governed by process {os.getpid()}; end that one instead\n",
            )
        assert here.is_restored()
        assert lease_file.find_governor_pid(here.get_uuid()) is None
    finally:
        holder.close()
    name = f"process {holder.pid} of {OTHER}"
    assert messages == [
        f"NVML, GPU 0 (Scripted GPU): {name} holds the socket of its governor; it may not, and is ignored"
    ]


@needs_root
@pytest.mark.parametrize("kind", mark_slow(HOLDER_KINDS, ("is silent",)))
def test_restore_goes_on_beside_a_held_socket(here: ScriptedBoards, kind: HolderKind) -> None:
    here.set_state(0, sm_lock=[300, 900], limit_mw=150_000)
    lease_file.write_lease(make_lease(here.get_uuid()))
    holder = SocketHolder(here.get_uuid(), kind)
    try:
        status, out = restore(here)
    finally:
        holder.close()
    assert status == 0
    assert "a label: previous settings are back; a label: process " in out
    assert f"{holder.pid} of {OTHER} holds" in out
    assert here.is_restored()
    assert here.read_limits() == LIMITS_BEFORE


@needs_root
def test_locks_cannot_be_taken_by_another_user(here: ScriptedBoards) -> None:
    """An advisory lock needs no right but that to open the file."""
    with make_keeper(here) as keeper:
        keeper.actuators[0].apply(LOW)
        modes = {x.suffix: x.stat().st_mode & 0o777 for x in here.leases.iterdir()}
    assert modes == {".json": 0o644, ".lock": 0o600, ".governor": 0o600}


@needs_root
def test_folder_of_another_user_is_refused_and_named(
    here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where someone made /tmp/ekc-UID first."""
    taken = tmp_path / "taken"
    taken.mkdir()
    os.chown(taken, OTHER_UID, OTHER_UID)
    monkeypatch.setenv("EKC_RUN_DIR", str(taken))
    with pytest.raises(InvalidInput, match=f"taken of {re.escape(OTHER)} is not safe for leases"):
        make_keeper(here)
    assert not here.read_calls()


def start_keeper_as(boards: ScriptedBoards, uid: int) -> tuple[int, str]:
    """Status and output of a governor of a user, which sets limits and puts them back."""
    process = start_as(boards, uid, "-c", GOVERN, boards.get_uuid(), EKC_RUN_DIR=str(boards.folder / "alice"))
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


@needs_root
def test_user_ignores_another_user_and_not_root(
    shared: ScriptedBoards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with zeusd, which lets users without rights set limits."""
    gpu = shared.get_uuid()
    holder = SocketHolder(gpu, uid=BOB)
    try:
        status, out = start_keeper_as(shared, ALICE)
    finally:
        holder.close()
    assert status == 0
    assert f"process {holder.pid} of uid {BOB} holds the socket of its governor; it may not" in out
    assert shared.are_limits_back()
    see_boards(shared, monkeypatch)
    with make_keeper(shared):
        status, out = start_keeper_as(shared, ALICE)
    assert status == 1
    assert f"is governed by process {os.getpid()} already; one GPU has one governor" in out


KILLED_EARLY = """
import os, signal, sys
from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.limits import Settings
from ekc.devices.clocks.limits import NvmlLimits
keeper = LeaseKeeper([NvmlLimits(sys.argv[1])])
first = keeper.guard_pid
os.kill(first, signal.SIGKILL)
while keeper.guard_pid == first:
    pass
keeper.actuators[0].apply(Settings(900, 405, 105.0))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_limits_set_while_a_guard_starts_are_known_to_it(boards: ScriptedBoards) -> None:
    """The second guard is started when no limit is touched, and its governor is killed before it watches."""
    process = boards.start_python("-c", KILLED_EARLY, boards.get_uuid())
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, err
    assert {call[3] for call in boards.read_calls()} == {0}
    assert boards.wait_for(ScriptedBoards.is_restored, 10) < 10


def test_suspended_governor_is_shown_and_restored(boards: ScriptedBoards) -> None:
    """Governor and guard are stopped together, as batch systems do; it sets again when it goes on."""
    governor = Governor(boards)
    pids = (governor.guard_pid, governor.process.pid)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    status, out = restore(boards)
    assert status == 0, out
    assert f"governor {governor.process.pid} is suspended, without a heartbeat for" in out
    assert "and had set SM up to 900 MHz, memory 405 MHz, cap 105 W; previous settings are back until" in out
    assert boards.is_restored()
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    assert boards.wait_for(lambda b: b.read_limits() == LOW_LIMITS, 20) < 20
    assert "the governor was stopped for a while" in governor.end()
    assert boards.is_restored()


def test_running_governor_whose_lease_shows_no_heartbeat_is_left_alone(
    here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a read-only disk."""
    monkeypatch.setattr(lease_file, "touch_lease", lambda gpu: None)
    with make_keeper(here) as keeper:
        keeper.actuators[0].apply(LOW)
        os.utime(lease_file.make_lease_path(here.get_uuid()), (1, 1))
        (result,) = restore_all()
        assert result.problem == f"governed by process {os.getpid()}; end that one instead"
        assert here.read_limits() == LOW_LIMITS
