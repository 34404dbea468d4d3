"""The allow-list of the daemon: which users may set which GPUs, and how low. The administrator writes TOML:

    [[allow]]
    users = ["alice", 1002]
    groups = ["gpu-users"]
    gpus = [0, "GPU-..."]                        # or "jobs"; every GPU without this line
    lowest = {sm_mhz = 600, power_w = 150}       # what the board offers without it

    [[before]]                                   # limits in force, which NVML cannot read
    gpu = 0
    sm_mhz = 1410

The first rule that names the caller and the GPU counts. "jobs" are the GPUs that the batch system has given
to the caller's jobs: a file per job in the folder `jobs` beside the leases, written by the prolog and deleted
by the epilog, says which user has which GPUs of this machine now:

    uid = 1000
    gpus = [0, 3]      # numbers of /dev/nvidiaN, as in SLURM_JOB_GPUS, or UUIDs
"""

from __future__ import annotations

import difflib
import grp
import os
import pwd
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ekc.devices.clocks.lease_file import prepare_lease_folder
from ekc.devices.clocks.limits import LIMITS, Settings, parse_settings
from ekc.errors import ActuatorError, InvalidInput
from ekc.processes.process_facts import Caller, describe_user, read_unknown_uid

DEFAULT_FILE = Path("/etc/ekc/governor.toml")


@dataclass(frozen=True)
class AllowRule:
    """One `[[allow]]` table."""

    uids: frozenset[int]
    gids: frozenset[int]
    gpus: tuple[int | str, ...] | Literal["jobs"] | None
    """Numbers of nvidia-smi and UUIDs; None for every GPU."""
    lowest: Settings

    def names_caller(self, caller: Caller) -> bool:
        """Whether the rule is for this caller, by user or by group."""
        return caller.uid in self.uids or bool(caller.gids & self.gids)

    def names_gpu(self, gpu: GpuIdentity, caller: Caller) -> bool:
        """Whether the rule is for this GPU, for "jobs" now. Raises `InvalidInput` for a bad job file."""
        if self.gpus == "jobs":
            return bool(find_jobs(caller.uid, gpu))
        return self.gpus is None or gpu.index in self.gpus or gpu.uuid in self.gpus

    def describe_gpus(self) -> str:
        """The GPUs in words."""
        return "those of its jobs" if self.gpus == "jobs" else ", ".join(map(str, self.gpus or ("all",)))


@dataclass(frozen=True)
class AllowList:
    """A whole file."""

    file: Path
    rules: tuple[AllowRule, ...]
    before: tuple[tuple[int | str, Settings], ...]
    """Clock limits in force by NVML number or UUID."""

    def check_caller(self, caller: Caller) -> None:
        """Raises `ActuatorError` for a caller whom no rule names."""
        if not any(rule.names_caller(caller) for rule in self.rules):
            raise ActuatorError(
                f"{describe_user(caller.uid)} is not on the allow-list {self.file}; the administrator can "
                "add the user or one of the user's groups"
            )

    def find_lowest(self, caller: Caller, gpu: GpuIdentity) -> Settings:
        """The lowest settings that a caller may give a GPU now. Raises `ActuatorError` for a caller whom no
        rule lets set it, and `InvalidInput` for a bad job file."""
        self.check_caller(caller)
        rules = [rule for rule in self.rules if rule.names_caller(caller)]
        for rule in rules:
            if rule.names_gpu(gpu, caller):
                return rule.lowest
        permitted = "; ".join(rule.describe_gpus() for rule in rules)
        raise ActuatorError(
            f"{describe_user(caller.uid)} may not set GPU {gpu.index}: {self.file} allows {permitted}"
        )

    def find_before(self, gpu: GpuIdentity) -> Settings:
        """Clock limits that were in force before the daemon."""
        return next((limits for name, limits in self.before if name in (gpu.index, gpu.uuid)), Settings())


def read_allow_list(file: Path) -> AllowList:
    """Read the file. Raises `InvalidInput` for one that others may write, and for unknown keys, values and
    users."""
    try:
        with open(file, "rb") as opened:
            status = os.fstat(opened.fileno())
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise InvalidInput(
                    f"{file}: others than its administrator may write it; chown root and chmod 644 it"
                )
            content = tomllib.load(opened)
    except OSError as problem:
        raise InvalidInput(
            f"{file}: {problem.strerror}; it says who may set which GPU, e.g. [[allow]] users = ['alice']"
        ) from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise InvalidInput(f"{file}: {problem}") from problem
    _check_keys(f"{file}", content, ("allow", "before"))
    try:
        rules = tuple(_read_rule(table) for table in _list_tables(content, "allow"))
        before = tuple(_read_before(table) for table in _list_tables(content, "before"))
    except InvalidInput as problem:
        raise InvalidInput(f"{file}: {problem}") from problem
    return AllowList(file, rules, before)


def _read_rule(table: Mapping[str, Any]) -> AllowRule:
    _check_keys("[[allow]]", table, ("users", "groups", "gpus", "lowest"))
    uids = frozenset(_find_ids("users", table, lambda name: pwd.getpwnam(name).pw_uid))
    gids = frozenset(_find_ids("groups", table, lambda name: grp.getgrnam(name).gr_gid))
    if not uids and not gids:
        raise InvalidInput("[[allow]]: neither users nor groups; give at least one name")
    if read_unknown_uid() in uids:
        raise InvalidInput(
            f"users: {describe_user(read_unknown_uid())} means all users that this machine does not "
            "know; name single users"
        )
    return AllowRule(uids, gids, _read_gpus(table), _read_limits("lowest", table.get("lowest", {})))


def _read_gpus(table: Mapping[str, Any]) -> tuple[int | str, ...] | Literal["jobs"] | None:
    if "gpus" not in table:
        return None
    if table["gpus"] == "jobs":
        return "jobs"
    if not isinstance(table["gpus"], list):
        raise InvalidInput(f'gpus: {table["gpus"]!r}; give a list, or "jobs", or leave it out for every GPU')
    return tuple(map(_check_gpu, table["gpus"]))


def _read_before(table: Mapping[str, Any]) -> tuple[int | str, Settings]:
    _check_keys("[[before]]", table, ("gpu", "sm_mhz", "memory_mhz"))
    limits = _read_limits("[[before]]", {key: value for key, value in table.items() if key != "gpu"})
    return _check_gpu(table.get("gpu")), limits


def _list_tables(content: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    tables = content.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InvalidInput(f"{key}: write it as [[{key}]]")
    return tables


def _find_ids(key: str, table: Mapping[str, Any], find_id: Callable[[str], int]) -> Iterable[int]:
    """User or group ids, from numbers and names."""
    values = table.get(key, [])
    if not isinstance(values, list):
        raise InvalidInput(f"{key}: {values!r} is no list; write {key} = [{values!r}]")
    for value in values:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32:
            yield value
            continue
        try:
            yield find_id(value)
        except (KeyError, TypeError, ValueError) as problem:
            raise InvalidInput(f"{key}: {value!r} is not known here; give a name or an id") from problem


def _check_gpu(value: Any) -> int | str:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise InvalidInput(f"gpus: {value!r}; give the number of nvidia-smi, or the UUID of nvidia-smi -L")
    return value


def _read_limits(name: str, values: Any) -> Settings:
    if not isinstance(values, dict):
        raise InvalidInput(f"{name}: {values!r}; write {name} = {{sm_mhz = 600}}")
    _check_keys(name, values, LIMITS)
    try:
        return parse_settings(values)
    except ValueError as problem:
        raise InvalidInput(f"{name}: {problem}") from problem


def _check_keys(name: str, table: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in table:
        if key not in known:
            nearest = difflib.get_close_matches(key, list(known), 1, 0.0)[0]
            raise InvalidInput(f"{name}: no key {key!r}; keys are {', '.join(known)}; nearest is {nearest!r}")


MAX_FILE_BYTES = 4096


@dataclass(frozen=True)
class GpuIdentity:
    """The names of one GPU."""

    index: int
    """Number of nvidia-smi."""
    device_number: int
    """N of /dev/nvidiaN."""
    uuid: str


def make_job_folder() -> Path:
    """Make the folder of job files where it is missing. Raises `InvalidInput` for an unsafe one."""
    folder = prepare_lease_folder() / "jobs"
    try:
        folder.mkdir(mode=0o755, exist_ok=True)
        _check_owner(folder, folder.lstat(), stat.S_ISDIR)
    except OSError as problem:
        raise InvalidInput(f"{folder}: {problem.strerror}; set EKC_RUN_DIR to another folder") from problem
    return folder


def find_jobs(uid: int, gpu: GpuIdentity) -> list[str]:
    """Names of the job files that give a GPU to a user. Raises `InvalidInput` for a file that is no job file,
    where no other one gives the GPU."""
    found, problems = [], []
    for file in sorted(make_job_folder().iterdir()):
        try:
            owner, gpus = _read_job_file(file)
        except FileNotFoundError:
            continue  # The job has just ended.
        except InvalidInput as problem:
            problems.append(problem)
            continue
        if owner == uid and (gpu.device_number in gpus or gpu.uuid in gpus):
            found.append(file.name)
    if problems and not found:
        raise problems[0]
    return found


def _read_job_file(file: Path) -> tuple[int, list[int | str]]:
    """User and GPUs of one job."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as opened:
            _check_owner(file, os.fstat(descriptor), stat.S_ISREG)
            content = tomllib.loads(opened.read(MAX_FILE_BYTES).decode())
        uid, gpus = content["uid"], content["gpus"]
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError) as problem:
        raise InvalidInput(f"{file} is no job file ({problem}); write uid = 1000 and gpus = [0]") from problem
    if type(uid) is not int or not isinstance(gpus, list) or not all(type(x) in (int, str) for x in gpus):
        raise InvalidInput(f"{file} is no job file; write uid = 1000 and gpus = [0]")
    return uid, gpus


def _check_owner(path: Path, status: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    if not is_kind(status.st_mode) or status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        raise InvalidInput(f"{path}: others than root may write it, or it is a link; delete it")
