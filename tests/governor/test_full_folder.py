"""A job whose lease folder becomes full or read-only goes on at the limits of before."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.devices.clocks.conditions import fill_disk, make_read_only, mount_small_disk, needs_root
from tests.scripted.nvml.boards import ROOT, ScriptedBoards

RESTLESS = str(ROOT / "tests" / "governor" / "restless_govern.py")
JOB = "import sys; sys.stdin.readline(); print('job done'); sys.exit(7)"


@needs_root
@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_limits_are_back_long_before_the_job_ends(one: ScriptedBoards, kind: str) -> None:
    with mount_small_disk(one.leases):
        options = {"stdin": subprocess.PIPE, "start_new_session": True}
        governor = one.start_python(RESTLESS, sys.executable, "-c", JOB, **options)
        try:
            assert one.wait_for(lambda b: not b.are_limits_back(), 60) < 60
            (fill_disk if kind == "full" else make_read_only)(one.leases)
            line = governor.stderr.readline()
            assert "cannot write the lease GPU-" in line
            assert line.endswith("; nothing was set; the job goes on ungoverned, at its previous settings\n")
            assert one.are_limits_back()
            out, err = governor.communicate("\n", timeout=60)
        finally:
            if governor.poll() is None:
                os.killpg(governor.pid, 9)
        assert (governor.returncode, out) == (7, "job done\n")
        assert one.are_limits_back()
        assert one.has_lease() == (kind == "read-only")
        assert ("cannot be deleted (Read-only file system)" in err) == (kind == "read-only")
