"""Cores that a process may use: affinity, and quotas of control groups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ekc.processes.pool import count_cores

CASES: dict[str, tuple[str, dict[str, str], int]] = {
    "none": ("0::/", {}, 8),
    "no limit": ("0::/job", {"job/cpu.max": "max 100000"}, 8),
    "version 2": ("0::/job", {"job/cpu.max": "200000 100000"}, 2),
    "part of a core": ("0::/job", {"job/cpu.max": "50000 100000"}, 1),
    "rounded up": ("0::/job", {"job/cpu.max": "250000 100000"}, 3),
    "more than there are": ("0::/job", {"job/cpu.max": "3200000 100000"}, 8),
    "a group above": ("0::/user/job", {"user/cpu.max": "300000 100000", "user/job/cpu.max": "max 100000"}, 3),
    "in a container": ("0::/docker/1234", {"cpu.max": "400000 100000"}, 4),
    "version 1": (
        "4:cpu,cpuacct:/job",
        {"cpu,cpuacct/job/cpu.cfs_quota_us": "150000", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"},
        2,
    ),
    "version 1, no limit": (
        "4:cpu:/",
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        8,
    ),
    "damaged": ("0::/job", {"job/cpu.max": "0 0 x"}, 8),
}
"""Line of /proc/self/cgroup, files below /sys/fs/cgroup, and cores of 8."""


@pytest.mark.parametrize("name", CASES)
def test_cores_follow_affinity_and_quota(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line, files, cores = CASES[name]
    for path, text in {
        "proc/self/cgroup": line,
        **{f"sys/fs/cgroup/{k}": v for k, v in files.items()},
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert count_cores(tmp_path) == cores


def test_cores_without_files_are_those_of_the_affinity(tmp_path: Path) -> None:
    assert count_cores(tmp_path) == len(os.sched_getaffinity(0))
