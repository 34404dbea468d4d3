"""The compile cache: equal output, damaged entries, several processes and users, folders that cannot be
written."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from ekc.codegen import cache, nvrtc
from ekc.codegen.cache import compile_cached
from ekc.errors import CompileError

SOURCE = 'extern "C" __global__ void scale(float* a) { a[threadIdx.x] *= 2.0f; }\n'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entries(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.is_file()]


def test_cached_output_equals_a_fresh_one(place: Path) -> None:
    first = compile_cached(SOURCE)
    (entry,) = entries(place)
    written = entry.stat().st_mtime_ns
    assert compile_cached(SOURCE) == first == nvrtc.compile(SOURCE)
    assert entry.stat().st_mtime_ns == written


def test_hit_does_not_compile(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_cached(SOURCE)

    def compiled(*_: object) -> nvrtc.NvrtcOutput:
        raise AssertionError("compiled again")

    monkeypatch.setattr(nvrtc, "compile", compiled)
    assert compile_cached(SOURCE) == first
    with pytest.raises(AssertionError, match="compiled again"):
        compile_cached(SOURCE + "\n")


def test_source_arch_and_options_are_part_of_the_key(place: Path) -> None:
    compile_cached(SOURCE)
    assert compile_cached(SOURCE, "sm_90").arch == "sm_90"
    compile_cached(SOURCE, options=["--use_fast_math"])
    compile_cached(SOURCE + "\n")
    assert len(entries(place)) == 4


@pytest.mark.parametrize("keep", [0, 10, 64, 65, 100, 1000, -1])
def test_truncated_entry_is_compiled_again_and_repaired(place: Path, keep: int) -> None:
    first = compile_cached(SOURCE)
    (entry,) = entries(place)
    whole = entry.read_bytes()
    entry.write_bytes(whole[:keep])
    assert compile_cached(SOURCE) == first
    assert entry.read_bytes() == whole


@pytest.mark.parametrize("at", [0, 64, 70, 300, -1])
def test_flipped_byte_is_detected(place: Path, at: int) -> None:
    first = compile_cached(SOURCE)
    (entry,) = entries(place)
    content = bytearray(entry.read_bytes())
    content[at] ^= 0xFF
    entry.write_bytes(content)
    assert compile_cached(SOURCE) == first


def test_refused_text_is_not_cached(place: Path) -> None:
    with pytest.raises(CompileError):
        compile_cached("not CUDA")
    assert not place.exists()


def test_unwritable_folder_warns_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match=r"compile cache .*file/cache cannot be written"):
        assert compile_cached(SOURCE).cubin
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compile_cached(SOURCE).cubin


def _compile(number: int) -> bytes:
    return compile_cached(SOURCE + "\n" * (number % 2)).cubin


def test_processes_share_the_folder(place: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        cubins = pool.map(_compile, range(12), chunksize=1)
    assert set(cubins[::2]) == {compile_cached(SOURCE).cubin}
    # Two entries, and nothing that was written aside is left.
    assert len(entries(place)) == 2


def test_folder_follows_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("EKC_CACHE_DIR", "~/kept")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/shared")
    assert cache.find_folder() == Path("/home/me/kept")
    monkeypatch.delenv("EKC_CACHE_DIR")
    assert cache.find_folder() == Path("/var/shared/ekc")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.find_folder() == Path("/home/me/.cache/ekc")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.find_folder() == Path("/home/me/.cache/ekc")


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
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cubins = {compile_cached(SOURCE).cubin for _ in range(3)}
        assert len(cubins) == 1
        os.dup2(writing, 1)
        assert main(["doctor", "--json"]) == 0
        sys.stdout.flush()
        os.write(writing, json.dumps([str(w.message) for w in caught]).encode() + b"\\n")
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


def run_compiles(
    folder: Path, *cases: tuple[dict[str, str], int, int]
) -> list[tuple[list[str], dict[str, object]]]:
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
def test_unknown_user_gets_a_warning(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "home").mkdir(mode=0o700)
    unknown = f"{NO_FOLDER}{UNKNOWN}){HINT}"
    shut = f"compile cache {tmp_path}/home/.cache/ekc cannot be written (Permission denied){HINT}"
    found = run_compiles(
        tmp_path,
        ({}, UNKNOWN_USER, 0),
        ({"HOME": ""}, UNKNOWN_USER, 0),
        ({"HOME": "relative", "XDG_CACHE_HOME": "relative"}, UNKNOWN_USER, 0),
        ({"HOME": f"{tmp_path}/home"}, UNKNOWN_USER, 0),
    )
    assert [warned for warned, _ in found] == [[unknown], [unknown], [unknown], [shut]]
    assert [shown["writable"] for _, shown in found] == [False] * 4
    assert UNKNOWN in str(found[0][1]["reason"])
    ((warned, _),) = run_compiles(tmp_path, ({"EKC_CACHE_DIR": "~/folder"}, UNKNOWN_USER, 0))
    assert len(warned) == 1
    assert warned[0].startswith(f"{NO_FOLDER}EKC_CACHE_DIR is ~/folder: ")
    assert not (tmp_path / "relative").exists()
    assert not (tmp_path / "~").exists()


def test_file_as_home_full_disk_and_folder_as_entry_warn(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = str(tmp_path / "folder")
    found = run_compiles(
        tmp_path,
        ({"HOME": str(tmp_path / "file")}, 0, 0),
        ({"EKC_CACHE_DIR": str(tmp_path / "full")}, 0, 1000),
        ({"EKC_CACHE_DIR": folder}, 0, 0),
    )
    file, full, good = ([w.removeprefix("compile cache ") for w in warned] for warned, _ in found)
    assert file == [f"{tmp_path}/file/.cache/ekc cannot be written (Not a directory){HINT}"]
    assert full == [f"{tmp_path}/full cannot be written (File too large){HINT}"]
    assert good == []
    assert not [path for path in (tmp_path / "full").rglob("*") if path.is_file()]
    (entry,) = (path for path in Path(folder).rglob("*") if path.is_file())
    entry.unlink()
    entry.mkdir()
    ((warned, _),) = run_compiles(tmp_path, ({"EKC_CACHE_DIR": folder}, 0, 0))
    assert warned == [f"compile cache {folder} cannot be written (Is a directory){HINT}"]


@needs_root
def test_read_only_folder_serves_its_entries(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:  # No other user may look into those of pytest.
        run_compiles(tmp_path, ({"EKC_CACHE_DIR": folder}, 0, 0))
        for path in (Path(folder), *Path(folder).rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        ((warned, shown),) = run_compiles(tmp_path, ({"EKC_CACHE_DIR": folder}, UNKNOWN_USER, 0))
    assert warned == []
    assert shown["writable"] is False


# Entries and folders that are not trusted


def replace_body(entry: Path, change: Callable[[bytes], bytes]) -> None:
    """Change an entry, and make its checksum right again."""
    body = change(entry.read_bytes().partition(b"\n")[2])
    entry.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def change_header(body: bytes, **changes: object) -> bytes:
    head, _, rest = body.partition(b"\n")
    header = {name: value for name, value in (json.loads(head) | changes).items() if value != "absent"}
    return json.dumps(header).encode() + b"\n" + rest


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "no JSON": lambda body: b"{" + body,
    "deep": lambda body: b"[" * 100_000 + b"\n",
    "a list": lambda body: b"[]\n",
    "no header": lambda body: b"",
    **{
        f"{name} is {value!r:.12}": lambda body, n=name, v=value: change_header(body, **{n: v})  # type: ignore[misc]
        for name in ("key", "ptx_bytes", "resources", "log", "nvrtc_version")
        for value in ("absent", None, [], {"scale": 1}, -1, 1e400)
        if name not in ("log", "nvrtc_version") or value == "absent"
    },
    "resources of no kernel": lambda body: change_header(body, resources={"scale": {"registers": "many"}}),
}


def test_damaged_entry_counts_as_absent(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_cached(SOURCE)
    (entry,) = entries(place)
    compiled: list[str] = []
    monkeypatch.setattr(nvrtc, "compile", lambda *given: (compiled.append(given[0]), first)[1])
    for name, damage in DAMAGED.items():
        replace_body(entry, damage)
        compiled.clear()
        assert compile_cached(SOURCE) == first, name
        assert compiled == [SOURCE], f"{name}: it is compiled again, and the entry is repaired"
        assert compile_cached(SOURCE) == first
        assert compiled == [SOURCE], name


def test_entry_of_another_compile_counts_as_absent(place: Path) -> None:
    times, other = SOURCE, SOURCE.replace("*=", "+=")
    right = compile_cached(times)
    (entry,) = entries(place)
    compile_cached(other)
    (wrong,) = set(entries(place)) - {entry}
    shutil.copyfile(wrong, entry)
    assert compile_cached(times) == right


def make_fifo(entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry)


def make_link(entry: Path) -> None:
    entry.unlink()
    entry.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [make_fifo, make_link], ids=["a FIFO", "a link to /dev/zero"])
def test_entry_that_is_no_plain_file_counts_as_absent(place: Path, make: Callable[[Path], None]) -> None:
    first = compile_cached(SOURCE)
    (entry,) = entries(place)
    make(entry)
    signal.alarm(20)
    try:
        assert compile_cached(SOURCE) == first
    finally:
        signal.alarm(0)
    assert entry.is_file()
    assert not entry.is_symlink()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
@pytest.mark.parametrize("depth", [0, 1], ids=["folder", "folder in it"])
def test_folder_that_others_can_write_to_is_not_used(
    tmp_path: Path, mode: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / f"{mode:o}-{depth}"
    monkeypatch.setenv("EKC_CACHE_DIR", str(place))
    first = compile_cached(SOURCE)
    (entry,) = entries(place)
    replace_body(entry, lambda body: body.replace(b"mul.f32", b"add.f32"))
    shared = (place, entry.parent)[depth]
    shared.chmod(mode)
    before = entry.read_bytes()
    with pytest.warns(UserWarning, match=rf"{shared} is not used, as other users may write to it") as caught:
        found = [compile_cached(SOURCE) for _ in range(3)]
    assert len(caught) == 1
    assert found == [first] * 3
    assert entry.read_bytes() == before


@needs_root
def test_folder_of_another_user_is_not_used(place: Path) -> None:
    compile_cached(SOURCE)
    os.chown(place, 12345, -1)
    with pytest.warns(UserWarning, match=r"is not used, as it belongs to user id 12345"):
        compile_cached(SOURCE)


def test_new_folders_are_for_the_user_alone(place: Path) -> None:
    before = os.umask(0o002)
    try:
        compile_cached(SOURCE)
    finally:
        os.umask(before)
    (entry,) = entries(place)
    assert [path.stat().st_mode & 0o077 for path in (place, entry.parent, entry)] == [0, 0, 0]
