"""Facts about other processes, as /proc shows them: family, user, state, handling of signals."""

from __future__ import annotations

import os
from pathlib import Path

_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""The namespace of the machine's own process numbers; those of containers have other numbers."""


def list_process_family(pid: int) -> set[int]:
    """Ids of a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            children.setdefault(_read_parent_pid(entry), []).append(int(entry.name))
    family, pending = set(), [pid]
    while pending:
        member = pending.pop()
        family.add(member)
        pending += children.get(member, [])
    return family


def _read_parent_pid(entry: Path) -> int:
    """Id of a process's parent; 0 for a process that has just ended."""
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def read_environment(pid: int) -> dict[str, str]:
    """Environment with which a process began; empty where it may not be read, and while it starts."""
    try:
        lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (line.partition(b"=") for line in lines if b"=" in line)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def read_user_id(pid: int) -> int | None:
    """Id of the user of a process; None where the process has ended or may not be seen."""
    words = _read_status(pid).get("Uid")
    return None if words is None else int(words.split()[0])


def read_command_name(pid: int) -> str:
    """The first 15 characters of a program's name; empty where they may not be seen."""
    return _read_status(pid).get("Name", "")


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger; one that has ended is not."""
    return _read_state(_read_status(pid)) in "Tt"


def has_default_action(pid: int, number: int) -> bool:
    """Whether a process that has not ended neither handles, ignores nor blocks a signal."""
    status = _read_status(pid)
    masks = [int(status.get(name, "0"), 16) for name in ("SigIgn", "SigCgt", "SigBlk")]
    return _read_state(status) not in "ZX" and not any(mask >> (number - 1) & 1 for mask in masks)


def has_own_process_numbers() -> bool:
    """Whether this process is in a container that numbers its processes itself: a driver may show others'."""
    try:
        return os.readlink("/proc/self/ns/pid") != _INITIAL_PID_NAMESPACE
    except OSError:
        return True


def _read_state(status: dict[str, str]) -> str:
    """The state as one letter, as in ps; X for a process that has ended."""
    return status.get("State", "X")[0]


def _read_status(pid: int) -> dict[str, str]:
    """Fields of /proc/PID/status; none for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}
