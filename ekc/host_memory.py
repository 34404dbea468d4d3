"""Memory that this process may still use: by the machine, its control groups and its own limit. And what a
file from somebody else may take of it: bytes that are read or unpacked, values of a text."""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_FILE_BYTES = 1 << 26
"""Bytes of a text that is read from a file, or unpacked from one, at most (64 MiB)."""
MAX_JSON_VALUES = 5_000_000
"""Values of a JSON text, at most. One takes up to some 100 bytes in memory."""
MAX_TOML_BYTES = 1 << 21
"""Bytes of a TOML text, at most (2 MiB): reading it takes some seconds."""

_UNLIMITED_BYTES = 1 << 60
"""Limit in bytes above which a control group of version 1 has no limit."""


@dataclass(frozen=True)
class HostMemory:
    """The smallest limit, and its name."""

    bytes: int
    limit_name: str

    def __str__(self) -> str:
        return f"{format_bytes(self.bytes)} ({self.limit_name})"


def find_free_memory(root: Path = Path("/")) -> HostMemory:
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


def read_plain_file(path: Path, most: int = MAX_FILE_BYTES) -> bytes:
    """Read a file whole. Raises `OSError`, also for a pipe or a device, which may never end, and for more
    bytes than `most`."""
    # A pipe without a writer is opened at once this way, instead of never.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {format_bytes(most)}", str(path))
    return data


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises `ValueError` for text that is no JSON, is nested too deeply, or holds
    more than `MAX_JSON_VALUES`."""
    # Each value but the first follows one of these. Within texts they count too, so the limit is a rough one.
    counted = text if isinstance(text, bytes) else text.encode(errors="replace")
    if sum(map(counted.count, (b"[", b"{", b",", b":"))) > MAX_JSON_VALUES:
        raise ValueError(f"it holds more than {MAX_JSON_VALUES:,} values")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text. Raises `ValueError` for text that is none, is nested too deeply, or has more
    than `MAX_TOML_BYTES`."""
    if len(text) > MAX_TOML_BYTES:
        raise ValueError(f"it has more than {format_bytes(MAX_TOML_BYTES)}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _read_available_memory(root: Path) -> Iterator[HostMemory]:
    for line in _read_lines(root / "proc/meminfo"):
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            yield HostMemory(int(rest.split()[0]) * 1024, "available memory")


def _read_cgroup_limits(root: Path) -> Iterator[HostMemory]:
    """Limits of control groups of both versions. Inside a container the folder of the group may be hidden;
    the root is then the group. A limit of a parent counts too."""
    for line in _read_lines(root / "proc/self/cgroup"):
        _, controllers, path = line.strip().split(":", 2)
        if controllers == "":
            base, most, now, cache = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base, most, now = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        group = Path(path.lstrip("/"))
        for folder in (root / base / each for each in (group, *group.parents)):
            limit, used = _read_number(folder / most), _read_number(folder / now)
            if limit is not None and used is not None and limit < _UNLIMITED_BYTES:
                # Memory that only caches files is released when memory runs short.
                free_bytes = limit - used + _read_statistic(folder / "memory.stat", cache)
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


def _read_statistic(path: Path, name: str) -> int:
    found = (line.split() for line in _read_lines(path))
    return next((int(words[1]) for words in found if words[:1] == [name]), 0)
