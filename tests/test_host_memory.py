"""Memory that is available: by the machine, control groups of both versions, and the limit of the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ekc.host_memory import format_bytes, measure_free_memory

GIB = 1 << 30


def host(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal: 99 kB\nMemAvailable: 16777216 kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_machine_memory_is_read(tmp_path: Path) -> None:
    found = measure_free_memory(host(tmp_path, {}))
    assert (found.bytes, str(found)) == (16 * GIB, "16 GiB (available memory)")


GROUP_2 = {"proc/self/cgroup": "0::/work/job\n", "sys/fs/cgroup/work/job/memory.max": "max\n",
           "sys/fs/cgroup/work/job/memory.current": "1\n"}  # fmt: skip


@pytest.mark.parametrize("folder", ["sys/fs/cgroup/work/job", "sys/fs/cgroup/work", "sys/fs/cgroup"])
def test_control_group_parent_and_container_limits_count(tmp_path: Path, folder: str) -> None:
    limits = {f"{folder}/memory.max": f"{4 * GIB}\n", f"{folder}/memory.current": f"{3 * GIB}\n",
              f"{folder}/memory.stat": f"anon 5\ninactive_file {GIB}\n"}  # fmt: skip
    found = measure_free_memory(host(tmp_path, GROUP_2 | limits))
    assert found.bytes == 2 * GIB
    assert found.limit_name == "memory limit of the control group 4 GiB"


def test_control_group_without_a_limit_is_ignored(tmp_path: Path) -> None:
    assert measure_free_memory(host(tmp_path, GROUP_2)).bytes == 16 * GIB


@pytest.mark.parametrize(("limit", "left"), [(8 * GIB, 6 * GIB), (9223372036854771712, 16 * GIB), (GIB, 0)])
def test_control_group_of_version_1_is_read(tmp_path: Path, limit: int, left: int) -> None:
    folder = "sys/fs/cgroup/memory/job"
    files = {"proc/self/cgroup": "4:cpu,cpuacct:/\n3:memory:/job\n", f"{folder}/memory.stat": "cache 7\n",
             f"{folder}/memory.limit_in_bytes": str(limit),
             f"{folder}/memory.usage_in_bytes": str(2 * GIB)}  # fmt: skip
    assert measure_free_memory(host(tmp_path, files)).bytes == left


def test_address_space_limit_of_the_process_counts() -> None:
    program = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 29, resource.RLIM_INFINITY))
from ekc.host_memory import measure_free_memory
print(measure_free_memory())
"""
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    ).stdout
    assert printed.endswith("MiB (address space limit (ulimit -v) 512 MiB)\n")
    assert 100 < float(printed.split()[0]) < 512


def test_memory_of_this_machine_is_found() -> None:
    assert 0 < measure_free_memory().bytes < 1 << 50


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (6.4e6, "6.1 MiB"), (160e9, "149 GiB"), (2**50, "1,048,576 GiB")],
)  # fmt: skip
def test_bytes_are_formatted(count: float, text: str) -> None:
    assert format_bytes(count) == text
