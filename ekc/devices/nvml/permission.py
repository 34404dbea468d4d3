"""Whether this process may set clocks through NVML, found without setting anything."""

from __future__ import annotations

from pathlib import Path

_CAP_SYS_ADMIN = 1 << 21
"""CAP_SYS_ADMIN, which root has and the driver asks for."""


def explain_refusal(status_file: Path = Path("/proc/self/status")) -> str:
    """Why not, in a few words; "" where it may, for all that can be known before it is tried."""
    try:
        lines = status_file.read_text().splitlines()
    except OSError:
        return "this system does not tell which rights a process has"
    held = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return "" if held & _CAP_SYS_ADMIN else "this process lacks CAP_SYS_ADMIN, which root has"
