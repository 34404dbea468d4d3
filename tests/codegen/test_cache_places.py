"""Compiles of users unknown to the system, without a home directory, or on a full disk: a warning, once,
and the kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

UNKNOWN_USER = 12345
"""A user id without an entry in the system's list, as containers have them."""
SCRIPT = """
import json, os, pwd, resource, sys, warnings
from ekc.cli import main
from ekc.codegen import nvrtc
from ekc.codegen.cache import compile_cached
from ekc.devices.clocks import lease_file

SOURCE = 'extern "C" __global__ void k(float *a) { a[0] = 1; }'
main(["doctor", "--json"])  # imports modules and libraries while they may be read
nvrtc.compile(SOURCE)
print()

def seen_in_child(environment, user, bytes_of_file):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.environ.update(environment)
        if bytes_of_file:
            resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_of_file, bytes_of_file))
        if user:
            os.setuid(user)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            cubins = {compile_cached(SOURCE).cubin for _ in range(3)}
        assert len(cubins) == 1
        os.dup2(writing, 1)
        assert main(["doctor", "--json"]) == 0
        sys.stdout.flush()
        os.write(writing, json.dumps([str(w.message) for w in seen]).encode() + b"\\n")
        os._exit(0)
    os.close(writing)
    shown, warned = os.fdopen(reading).read().splitlines()
    return [json.loads(warned), json.loads(shown)["cache"]]

for name in ("HOME", "XDG_CACHE_HOME", "EKC_CACHE_DIR"):
    os.environ.pop(name, None)
for case in json.loads(sys.argv[1]):
    print(json.dumps(seen_in_child(*case)), flush=True)
"""
NO_FOLDER = "compile cache has no folder ("
UNKNOWN = f"HOME is not set, and user id {UNKNOWN_USER} has no entry in the system's list"
HINT = ": every kernel is compiled again; set EKC_CACHE_DIR to a folder that can be written"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


def seen(folder: Path, *cases: tuple[dict[str, str], int, int]) -> list[tuple[list[str], dict[str, object]]]:
    """Warnings of three compiles, and the cache in `ekc doctor`, for an environment, a user id (0: as now)
    and bytes at which a file is full (0: never)."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(cases)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("[")]


@needs_root
def test_a_user_whom_the_system_does_not_know(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "home").mkdir(mode=0o700)
    unknown = f"{NO_FOLDER}{UNKNOWN}){HINT}"
    shut = f"compile cache {tmp_path}/home/.cache/ekc cannot be written (Permission denied){HINT}"
    found = seen(
        tmp_path,
        ({}, UNKNOWN_USER, 0),
        ({"HOME": ""}, UNKNOWN_USER, 0),
        ({"HOME": "relative", "XDG_CACHE_HOME": "relative"}, UNKNOWN_USER, 0),
        ({"HOME": f"{tmp_path}/home"}, UNKNOWN_USER, 0),
    )
    assert [warned for warned, _ in found] == [[unknown], [unknown], [unknown], [shut]]
    assert [shown["writable"] for _, shown in found] == [False] * 4
    assert UNKNOWN in str(found[0][1]["reason"])
    ((warned, _),) = seen(tmp_path, ({"EKC_CACHE_DIR": "~/kept"}, UNKNOWN_USER, 0))
    assert len(warned) == 1
    assert warned[0].startswith(f"{NO_FOLDER}EKC_CACHE_DIR is ~/kept: ")
    assert not (tmp_path / "relative").exists()
    assert not (tmp_path / "~").exists()


def test_a_home_that_is_a_file_a_full_disk_and_a_folder_in_the_place_of_an_entry(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kept = str(tmp_path / "kept")
    found = seen(
        tmp_path,
        ({"HOME": str(tmp_path / "file")}, 0, 0),
        ({"EKC_CACHE_DIR": str(tmp_path / "full")}, 0, 1000),
        ({"EKC_CACHE_DIR": kept}, 0, 0),
    )
    file, full, good = ([w.removeprefix("compile cache ") for w in warned] for warned, _ in found)
    assert file == [f"{tmp_path}/file/.cache/ekc cannot be written (Not a directory){HINT}"]
    assert full == [f"{tmp_path}/full cannot be written (File too large){HINT}"]
    assert good == []
    assert not [path for path in (tmp_path / "full").rglob("*") if path.is_file()]
    (entry,) = (path for path in Path(kept).rglob("*") if path.is_file())
    entry.unlink()
    entry.mkdir()
    ((warned, _),) = seen(tmp_path, ({"EKC_CACHE_DIR": kept}, 0, 0))
    assert warned == [f"compile cache {kept} cannot be written (Is a directory){HINT}"]


@needs_root
def test_a_folder_that_another_user_may_only_read_serves_its_entries(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as kept:  # No other user may look into those of pytest.
        seen(tmp_path, ({"EKC_CACHE_DIR": kept}, 0, 0))
        for path in (Path(kept), *Path(kept).rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        ((warned, shown),) = seen(tmp_path, ({"EKC_CACHE_DIR": kept}, UNKNOWN_USER, 0))
    assert warned == []
    assert shown["writable"] is False
