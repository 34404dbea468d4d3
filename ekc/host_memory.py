"""Memory that this process may still use: by the machine, its control groups and its own limit."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED_BYTES = 1 << 60
"""Limit in bytes above which a control group of version 1 has no limit."""
_GROUP_FILES = {
    "": ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": (
        *("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
        "total_inactive_file",
    ),
}
"""Controller, "" of version 2 -> folder of its groups, files of the limit and of the use, and the entry of
memory.stat that is cached files."""


@dataclass(frozen=True)
class HostMemory:
    """The smallest limit, and its name."""

    bytes: int
    limit_name: str

    def __str__(self) -> str:
        return f"{format_bytes(self.bytes)} ({self.limit_name})"


def measure_free_memory(root: Path = Path("/")) -> HostMemory:
    """Memory that is available now; `root` is the folder of /proc and /sys."""
    found = [*_read_available_memory(root), *_read_cgroup_limits(root), *_read_address_space_limit(root)]
    return min(found, key=lambda one: one.bytes, default=HostMemory(_UNLIMITED_BYTES, "no limit is known"))


def format_bytes(count: float) -> str:
    """ "149 GiB", "1.5 MiB", "12 bytes"."""
    if count < 1024:
        return f"{count:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1000 or unit == "GiB":
            break
    return f"{count:.3g} {unit}" if count < 1000 else f"{count:,.0f} {unit}"


def _read_available_memory(root: Path) -> Iterator[HostMemory]:
    found = _read_statistic(root / "proc/meminfo", "MemAvailable:")
    if found is not None:
        yield HostMemory(found * 1024, "available memory")


def _read_cgroup_limits(root: Path) -> Iterator[HostMemory]:
    """Limits of control groups of both versions. Inside a container the folder of the group may be hidden;
    the root is then the group. A limit of a parent counts too."""
    lines = (line.strip().split(":", 2) for line in _read_lines(root / "proc/self/cgroup"))
    entries = ((name, path) for _, names, path in lines for name in names.split(",") if name in _GROUP_FILES)
    for controller, path in entries:
        base, most, now, cache = _GROUP_FILES[controller]
        group = Path(path.lstrip("/"))
        for folder in (root / base / each for each in (group, *group.parents)):
            limit, used = _read_number(folder / most), _read_number(folder / now)
            if limit is not None and used is not None and limit < _UNLIMITED_BYTES:
                # Memory that only caches files is released when memory runs short.
                free_bytes = limit - used + (_read_statistic(folder / "memory.stat", cache) or 0)
                yield HostMemory(
                    max(free_bytes, 0), f"memory limit of the control group {format_bytes(limit)}"
                )


def _read_address_space_limit(root: Path) -> Iterator[HostMemory]:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    words = next(iter(_read_lines(root / "proc/self/statm")), "0").split()
    if limit != resource.RLIM_INFINITY:
        free_bytes = max(limit - int(words[0]) * os.sysconf("SC_PAGE_SIZE"), 0)
        yield HostMemory(free_bytes, f"address space limit (ulimit -v) {format_bytes(limit)}")


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _read_number(path: Path) -> int | None:
    """The number in a file; None where there is none, or the word max."""
    text = "".join(_read_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _read_statistic(path: Path, name: str) -> int | None:
    """The number behind a name in a file; None where there is none."""
    found = (line.split() for line in _read_lines(path))
    return next((int(words[1]) for words in found if words[:1] == [name]), None)
