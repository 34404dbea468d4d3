"""Reads what `ptxas -v` says about each kernel: registers, shared memory, spills, stack."""

from __future__ import annotations

import re

from ekc.codegen.compiled import Resources

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_OWNER = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_STACK = re.compile(r"(\d+) bytes cumulative stack size")


def parse_log(log: str) -> dict[str, Resources]:
    """Resources by kernel name (mangled, where the source is not `extern "C"`).

    Registers are per thread; `shared_bytes` is static shared memory per block; spills and stack
    are bytes per thread. A log without `ptxas info` lines gives an empty dict.
    """
    found: dict[str, Resources] = {}
    entry, frame = "", (0, 0, 0)
    owner = ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry, frame = match[1], (0, 0, 0)
        elif match := _OWNER.search(line):
            owner = match[1]
        # A called function has a frame of its own, printed among the kernels': not theirs.
        elif (match := _FRAME.search(line)) and owner == entry:
            frame = (int(match[1]), int(match[2]), int(match[3]))
        elif (match := _REGISTERS.search(line)) and entry:
            found[entry] = Resources(
                registers=int(match[1]),
                shared_bytes=_read_bytes(_SHARED, line),
                spill_store_bytes=frame[1],
                spill_load_bytes=frame[2],
                stack_bytes=max(frame[0], _read_bytes(_STACK, line)),
            )
    return found


def _read_bytes(pattern: re.Pattern[str], line: str) -> int:
    """The number that `pattern` finds; ptxas leaves out what is zero."""
    match = pattern.search(line)
    return int(match[1]) if match else 0
