"""Leases of other users as root finds them: planted, linked and forged ones set nothing."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ekc.devices.clocks import lease_file
from ekc.devices.clocks.lease_registry import register_lease_folder
from ekc.devices.clocks.limits import ActuatorReference, Settings
from ekc.devices.clocks.restore import RestoreResult, restore_all
from tests.devices.clocks.users import (
    ALICE,
    BOB,
    make_folder,
    make_lease,
    needs_root,
    write_entry,
    write_lease_file,
)
from tests.scripted.nvml.boards import LIMITS_BEFORE, ScriptedBoards

pytestmark = needs_root
LEFT = ([300, 900], None, 150_000)
"""Limits that the killed governor left."""


@pytest.fixture
def folder(here: ScriptedBoards) -> Path:
    """Folder of alice's leases, registered; the board has the limits that her governor left."""
    here.set_state(0, sm_lock=LEFT[0], limit_mw=LEFT[2])
    made = make_folder(here.folder / "alice", ALICE)
    write_entry(here, made, ALICE)
    return made


def plant(here: ScriptedBoards, folder: Path, **changes: object) -> Path:
    """A lease of alice for the first board."""
    gpu = here.get_uuid()
    return write_lease_file(folder / f"{gpu}.json", make_lease(gpu, **changes), ALICE)


def check_left(here: ScriptedBoards, reason: str, limits: tuple = LEFT) -> RestoreResult:
    """Restoring leaves the board as it is, and says why."""
    (result,) = restore_all()
    assert result.problem is not None
    assert reason in result.problem
    assert here.read_limits() == limits
    return result


def test_lease_of_another_user_is_restored(here: ScriptedBoards, folder: Path) -> None:
    lease = plant(here, folder)
    (result,) = restore_all()
    assert result.problem is None
    assert "the SM clock and the power cap are back as before" in str(result)
    assert f"of user {ALICE}" in str(result)
    assert here.read_limits() == LIMITS_BEFORE
    assert not lease.exists()
    assert restore_all() == []


def test_lease_of_an_earlier_version_is_restored_too(here: ScriptedBoards, folder: Path) -> None:
    file = plant(here, folder)
    found = json.loads(file.read_text())
    del found["in_force"], found["possible_caps_w"]
    file.write_text(json.dumps(found))
    assert restore_all()[0].problem is None
    assert here.read_limits() == LIMITS_BEFORE


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_lease_that_others_may_write_to_sets_nothing(here: ScriptedBoards, folder: Path, mode: int) -> None:
    plant(here, folder).chmod(mode)
    check_left(here, "others may write to it")


def test_lease_of_a_third_user_sets_nothing(here: ScriptedBoards, folder: Path) -> None:
    os.chown(plant(here, folder), BOB, BOB)
    check_left(here, f"it belongs to user {BOB}")


def test_linked_leases_set_nothing(here: ScriptedBoards, folder: Path) -> None:
    file = plant(here, folder)
    file.rename(folder / "elsewhere")
    file.symlink_to("elsewhere")
    check_left(here, "no regular file")
    file.unlink()
    file.hardlink_to(folder / "elsewhere")
    check_left(here, "it has 2 links")


def test_pipe_in_place_of_a_lease_is_not_opened(here: ScriptedBoards, folder: Path) -> None:
    os.mkfifo(folder / f"{here.get_uuid()}.json")
    check_left(here, "no regular file")


def test_files_that_are_no_lease_set_nothing(here: ScriptedBoards, folder: Path) -> None:
    file = plant(here, folder)
    text = file.read_text()
    for changed, reason in (
        (text + " " * (17 << 10), "larger than 16384 bytes"),
        ("[" * 9000, "it is no lease"),
        ("", "it is no lease"),
        (text.replace("280.0", "NaN"), "it is no lease"),
        (text.replace("280.0", "-5"), "it is no lease"),
        (text.replace("280.0", "true"), "it is no lease"),
        (text.replace('"sm_mhz": 900', '"sm_mhz": "900"'), "it is no lease"),
    ):
        file.write_text(changed)
        assert "\n" not in str(check_left(here, reason))


def test_text_of_a_lease_is_not_printed(here: ScriptedBoards, folder: Path) -> None:
    plant(here, folder, label="\x1b[2Jhello", previous=Settings(sm_mhz=1500, power_w=280.0))
    result = check_left(here, "nothing of root's confirms", ([300, 900], None, 280_000))
    assert "hello" not in str(result)
    assert str(result).isprintable()


def test_lease_of_another_gpu_sets_nothing(here: ScriptedBoards, folder: Path) -> None:
    other = ActuatorReference("nvml", here.get_uuid(1))
    plant(here, folder, reference=other)
    check_left(here, "it is the lease of another GPU")
    assert here.read_limits(1) == LIMITS_BEFORE


def test_gpu_that_is_not_here_is_said(here: ScriptedBoards, folder: Path) -> None:
    lease = make_lease("GPU-of-another-machine")
    write_lease_file(folder / "GPU-of-another-machine.json", lease, ALICE)
    check_left(here, "Not Found")


def test_daemon_that_a_lease_names_is_not_asked(
    here: ScriptedBoards, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could take the token of root."""
    monkeypatch.setenv("ZEUSD_TOKEN", "secret")
    reference = ActuatorReference("zeusd", here.get_uuid(), str(folder / "socket"))
    plant(here, folder, reference=reference)
    assert restore_all()[0].problem is None
    assert here.read_limits() == LIMITS_BEFORE


def test_lease_from_before_the_start_is_only_deleted(here: ScriptedBoards, folder: Path) -> None:
    file = plant(here, folder, boot="another")
    (result,) = restore_all()
    assert (result.problem, file.exists()) == (None, False)
    assert "has been started since" in result.outcome
    plant(here, folder, boot="")
    check_left(here, "it names no start of the machine")


def test_value_looser_than_roots_own_lease_is_not_set(here: ScriptedBoards, folder: Path) -> None:
    gpu = here.get_uuid()
    own = make_lease(gpu, previous=Settings(sm_mhz=1500, power_w=200.0), touched=(), governor=4194304)
    lease_file.write_lease(own)
    os.utime(lease_file.make_lease_path(gpu), (1, 1))
    file = plant(here, folder)
    foreign, mine = restore_all()
    assert mine.problem is None
    assert foreign.problem is not None
    assert "280 W is above 200 W in root's own records" in foreign.problem
    assert "root's own records have a limit of 1500 MHz, this one none" in foreign.problem
    assert here.read_limits() == LEFT
    assert file.exists()


def test_cap_that_root_recorded_is_not_raised(here: ScriptedBoards, folder: Path) -> None:
    """A forged lease, for a board without a governor whose cap an administrator has lowered."""
    here.set_state(0, sm_lock=None, limit_mw=280_000)
    assert restore_all() == []  # As a prolog runs it.
    plant(here, folder, previous=Settings(), touched=("power_w",))
    check_left(here, "350 W is above 280 W in root's own records", LIMITS_BEFORE)
    here.set_state(0, limit_mw=150_000)
    plant(here, folder)
    assert restore_all()[0].problem is None
    assert here.read_limits() == LIMITS_BEFORE


def test_clock_limit_that_root_knows_is_put_back(here: ScriptedBoards, folder: Path) -> None:
    gpu = here.get_uuid()
    own = make_lease(gpu, previous=Settings(sm_mhz=1500, power_w=280.0), touched=())
    lease_file.write_lease(own)
    plant(here, folder, previous=Settings(sm_mhz=1500, power_w=280.0))
    assert [x.problem for x in restore_all()] == [None, None]
    assert here.read_limits() == ([300, 1500], None, 280_000)


def test_cap_above_the_default_is_not_set(here: ScriptedBoards, folder: Path) -> None:
    here.update_board(0, limits_mw=[100_000, 400_000])
    plant(here, folder, previous=Settings(power_w=390.0))
    check_left(here, "390 W is above the default, 350 W", (None, None, 150_000))


def test_forged_low_values_do_not_slow_the_gpu(here: ScriptedBoards, folder: Path) -> None:
    here.set_state(0, sm_lock=None, limit_mw=280_000)
    plant(here, folder, previous=Settings(sm_mhz=300, power_w=100.0), possible_caps_w=None)
    result = check_left(here, "nothing of root's confirms an earlier limit of 300 MHz", LIMITS_BEFORE)
    assert "someone else has set 280 W since" in str(result)


def test_cap_that_someone_set_since_is_kept(here: ScriptedBoards, folder: Path) -> None:
    here.set_state(0, limit_mw=200_000)
    plant(here, folder)
    (result,) = restore_all()
    assert result.problem is None
    assert "the power cap is kept (someone else has set 200 W since)" in result.outcome
    assert here.read_limits() == (None, None, 200_000)


def test_folders_that_are_not_the_users_are_not_looked_into(here: ScriptedBoards, folder: Path) -> None:
    """An entry speaks for its owner alone."""
    plant(here, folder)
    (entry,) = here.registry.iterdir()
    os.chown(entry, BOB, BOB)
    check_left(here, f"the folder belongs to user {ALICE}")
    os.chown(entry, ALICE, ALICE)
    folder.chmod(0o777)
    check_left(here, "others may write to the folder")
    folder.chmod(0o755)
    moved = folder.rename(here.folder / "moved")
    folder.symlink_to(moved)
    assert "Not a directory" in str(check_left(here, "not looked into"))


@pytest.mark.parametrize("text", ["relative/path\n", "/a\n/b\n", "/a\0b\n", "x" * 5000])
def test_entry_that_names_no_folder_is_said(here: ScriptedBoards, folder: Path, text: str) -> None:
    write_entry(here, folder, ALICE, text)
    check_left(here, "not looked into")


def test_entries_of_one_user_do_not_hide_those_of_another(here: ScriptedBoards, folder: Path) -> None:
    plant(here, folder)
    for number in range(70):
        write_entry(here, Path(f"/nowhere/{number:03d}"), BOB)
    restored, refused = restore_all()
    assert restored.problem is None
    assert "more than 64 entries" in str(refused.problem)
    assert here.read_limits() == LIMITS_BEFORE


def test_two_killed_governors_are_unwound_from_the_last(here: ScriptedBoards, folder: Path) -> None:
    """The second began at the limits that the first had left."""
    gpu, bobs = here.get_uuid(), make_folder(here.folder / "bob", BOB)
    write_entry(here, bobs, BOB)
    first = plant(here, folder)
    os.utime(first, (1, 1))
    second = make_lease(gpu, previous=Settings(power_w=150.0), possible_caps_w=(120.0, 150.0))
    write_lease_file(bobs / f"{gpu}.json", second, BOB)
    here.set_state(0, limit_mw=120_000)
    assert [x.problem for x in restore_all()] == [None, None]
    assert here.read_limits() == LIMITS_BEFORE


def test_folder_is_registered_once_and_forgotten_when_it_is_gone(
    here: ScriptedBoards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second", "second"):
        monkeypatch.setenv("EKC_RUN_DIR", str(tmp_path / name))
        register_lease_folder()
        if name == "first":
            (tmp_path / name).rmdir()
    (entry,) = here.registry.iterdir()
    assert entry.read_text() == f"{tmp_path / 'second'}\n"
    lease = make_lease(here.get_uuid())
    (tmp_path / "second" / f"{here.get_uuid()}.json").write_text(
        json.dumps({"version": 1} | asdict(replace(lease, touched=())))
    )
    monkeypatch.setenv("EKC_RUN_DIR", str(tmp_path / "first"))
    assert [str(x) for x in restore_all()] == ["a label: nothing had been set"]
