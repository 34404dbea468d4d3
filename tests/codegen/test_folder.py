"""The folder of a library after an error, and after the process was killed: the old files or the new."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ekc.codegen.library.folder import replace_files
from ekc.errors import InvalidInput

OLD = {"src/net.cpp": "old code", "src/net_sm_80.cu": "old kernel", "net.json": "old record"}
NEW = {"include/net.h": "new header", "src/net.cpp": "new code", "net.json": "new record"}
OWN = {"build/deep/object.o": "object", "src/own.cpp": "own code"}


def read_files(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def make_old(folder: Path) -> Path:
    for path, text in (OLD | OWN).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def test_files_are_replaced_and_others_stay(tmp_path: Path) -> None:
    folder = make_old(tmp_path / "net")
    folder.chmod(0o750)
    (folder / "link").symlink_to("missing")
    times = (folder / "build/deep/object.o").stat().st_mtime_ns
    assert replace_files(folder, NEW, ["src/net_sm_80.cu"]) == tuple(folder / path for path in NEW)
    assert read_files(folder) == NEW | OWN
    assert (folder / "link").readlink() == Path("missing")
    assert (folder / "build/deep/object.o").stat().st_mtime_ns == times
    assert folder.stat().st_mode & 0o777 == 0o750
    assert os.listdir(tmp_path) == ["net"]


def test_working_directory_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_old(tmp_path / "net")
    monkeypatch.chdir(folder / "build")
    before = folder.stat().st_ino
    replace_files(Path(".."), NEW, ["src/net_sm_80.cu"])
    assert (folder.stat().st_ino, read_files(folder)) == (before, NEW | OWN)


def test_folder_behind_a_link_is_replaced(tmp_path: Path) -> None:
    make_old(tmp_path / "real")
    (tmp_path / "net").symlink_to("real")
    replace_files(tmp_path / "net", NEW, ["src/net_sm_80.cu"])
    assert (tmp_path / "net").is_symlink()
    assert read_files(tmp_path / "real") == NEW | OWN


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EACCES, errno.EPERM, errno.EMLINK])
def test_file_system_without_links_gets_one_file_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Such as CIFS; the user's folder with a name like those of new folders stays."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    folder = make_old(tmp_path / "net")
    (tmp_path / ".net.ekc-notes").mkdir()
    (tmp_path / ".net.ekc-0123456789abcdef").mkdir()
    before = folder.stat().st_ino
    replace_files(folder, NEW, ["src/net_sm_80.cu"])
    assert (folder.stat().st_ino, read_files(folder)) == (before, NEW | OWN)
    assert sorted(os.listdir(tmp_path)) == [".net.ekc-notes", "net"]


def run_child(prepare: Callable[[], object], folder: Path, texts: dict[str, str]) -> int:
    """Replace files in a forked process; its wait status. 256 is a refusal in the right words."""
    child = os.fork()
    if child == 0:
        status = 3
        try:
            prepare()
            replace_files(folder, texts, ["src/net_sm_80.cu"])
            status = 0
        except InvalidInput as problem:
            expected = f"bundle: cannot write into {folder} (File too large); choose another folder"
            status = 1 if str(problem) == expected else 2
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("size", [0, 4, 9, 10])
@pytest.mark.parametrize("is_new", [True, False])
def test_full_disk_changes_nothing(tmp_path: Path, size: int, is_new: bool) -> None:
    """A limit on the size of files is in place of a full disk: the first or a later file is too large."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    folder = tmp_path / "net" if is_new else make_old(tmp_path / "net")
    texts = {"a": "1234", "src/b": "123456789", "c": "123456789", "net.json": "12345678901"}
    assert run_child(limit, folder, texts) == 256
    assert (read_files(folder) == OLD | OWN) if not is_new else not folder.exists()
    assert os.listdir(tmp_path) == ([] if is_new else ["net"])


@pytest.mark.parametrize("is_new", [True, False])
def test_killed_process_leaves_the_old_or_the_new(tmp_path: Path, is_new: bool) -> None:
    """Killed before each of its operations on files, in turn."""
    complete = NEW if is_new else NEW | OWN
    outcomes = []
    for number in range(200):
        place = tmp_path / str(number)
        folder = place / "net" if is_new else make_old(place / "net")
        status = run_child(lambda count=number: kill_after(count), folder, NEW)
        found = read_files(folder) if folder.exists() else {}
        assert found in ({} if is_new else OLD | OWN, complete), (number, found)
        outcomes.append(found == complete)
        if status == 0:
            break
        assert status == signal.SIGKILL
        # The next run removes what the killed one left.
        replace_files(folder, NEW, ["src/net_sm_80.cu"])
        assert os.listdir(place) == ["net"]
        assert read_files(folder) == complete
    assert outcomes == sorted(outcomes)
    assert outcomes[-1]
    assert not outcomes[3]


def kill_after(count: int) -> None:
    """Kill this process at an operation on files, after as many others."""

    def act(event: str, _: tuple[object, ...]) -> None:
        nonlocal count
        if event.split(".")[0] in ("open", "os", "shutil", "ctypes"):
            count -= 1
            if count < 0:
                signal.raise_signal(signal.SIGKILL)

    sys.addaudithook(act)


def test_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net").write_text("text")
    with pytest.raises(InvalidInput, match=r"cannot write into .*net \(Not a directory\)"):
        replace_files(tmp_path / "net", NEW, [])
    assert (tmp_path / "net").read_text() == "text"
