"""Limits on files that may be damaged or made to do harm: bytes read or unpacked, values of a text, nodes."""

from __future__ import annotations

import errno
import json
import os
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ekc.host_memory import format_bytes

MAX_FILE_BYTES = 1 << 26
"""Bytes of a text that is read from a file, or unpacked from one, at most (64 MiB)."""
MAX_JSON_VALUES = 5_000_000
"""Values of a JSON text, at most. One takes up to some 100 bytes in memory."""
MAX_TOML_BYTES = 1 << 21
"""Bytes of a TOML text, at most (2 MiB): reading it takes some seconds."""
UNPACKED_BYTES = 1 << 30
"""Bytes that one file may become where it is unpacked, folded or parsed, beyond its own size."""
UNPACKED_NODES = 1_000_000
"""Nodes, terms or rows that one file may become."""


@dataclass
class UnpackBudget:
    """The bytes and nodes that one file may still become. Code that unpacks takes from it first."""

    bytes_left: int = UNPACKED_BYTES
    nodes_left: int = UNPACKED_NODES

    def take(self, *, bytes: int = 0, nodes: int = 0) -> bool:
        """Whether so many more are allowed; they are then used up."""
        if bytes > self.bytes_left or nodes > self.nodes_left:
            return False
        self.bytes_left -= bytes
        self.nodes_left -= nodes
        return True


def read_plain_file(path: Path, most: int = MAX_FILE_BYTES) -> bytes:
    """Read a whole file. Raises `OSError`, also for a pipe or a device, which may never end, and for more
    than `most` bytes."""
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
    if len(text.encode()) > MAX_TOML_BYTES:
        raise ValueError(f"it has more than {format_bytes(MAX_TOML_BYTES)}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
