"""Compile cache on disk, by content: the same text for the same target is compiled once.

An entry is one file: a SHA-256 of all that follows, a JSON header with the key of the compile, then PTX and
CUBIN as bytes. It is written to a temporary file and renamed, so that another process sees a complete entry
or none. A damaged entry, and that of another compile, count as absent and are written again. Old entries are
never removed.

Whoever can write an entry decides what a kernel computes: a checksum is no defence, as it can be written too.
So entries are read only where no other user than root can write.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import stat
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

from ekc.codegen import nvrtc
from ekc.codegen.compiled import Resources
from ekc.codegen.nvrtc import NvrtcOutput
from ekc.errors import InvalidInput
from ekc.file_limits import parse_json, read_plain_file

_CACHE_FORMAT = 2
"""Version of the entries, a part of every key; raise it when their layout or ekc's NVRTC options change."""


def compile_cached(source: str, arch: str = "sm_80", options: Sequence[str] = ()) -> NvrtcOutput:
    """`nvrtc.compile`, or its earlier output from `find_folder()`. Raises what `nvrtc.compile` raises.

    A folder that cannot be written or found, or that others can write to, gives one warning; the text is then
    compiled.
    """
    try:
        place = find_folder()
    except InvalidInput as problem:
        _warn_once(str(problem))
        return nvrtc.compile(source, arch, options)
    key = _make_key(source, arch, options)
    path = place / key[:2] / f"{key}.nvrtc"
    if reason := explain_distrust(place) or explain_distrust(path.parent):
        _warn_once(reason)
        return nvrtc.compile(source, arch, options)
    cached = _load_entry(path, key, source, arch)
    if cached is not None:
        return cached
    output = nvrtc.compile(source, arch, options)
    if reason := _store_entry(path, key, output):
        _warn_once(f"{place} cannot be written ({reason})")
    return output


def find_folder() -> Path:
    """`$EKC_CACHE_DIR`, else `$XDG_CACHE_HOME/ekc`, else `~/.cache/ekc`.

    Raises `InvalidInput` where there is no home directory.
    """
    if own := os.environ.get("EKC_CACHE_DIR"):
        try:
            return Path(own).expanduser()
        except RuntimeError as problem:
            raise InvalidInput(f"has no folder (EKC_CACHE_DIR is {own}: {problem})") from None
    # The XDG standard says to ignore a relative path.
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else _find_home() / ".cache") / "ekc"


def _find_home() -> Path:
    """`$HOME`, else the home in the system's list of users, which may lack the user of a container."""
    own = Path(os.environ.get("HOME", ""))
    if own.is_absolute():
        return own
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise InvalidInput(
            f"has no folder (HOME is not set, and user id {os.getuid()} has no entry in the system's list)"
        ) from None


def explain_distrust(path: Path) -> str:
    """Why a file or folder of the cache is not used: another user owns it or may write to it. "" for one that
    can be trusted, and for one that does not exist."""
    try:
        found = path.stat()
    except OSError:
        return ""
    if found.st_uid not in (os.geteuid(), 0):
        return f"{path} is not used, as it belongs to user id {found.st_uid}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} is not used, as other users may write to it (chmod -R go-w {path})"
    return ""


def _make_key(source: str, arch: str, options: Sequence[str]) -> str:
    """Key of a compile: a SHA-256 of all that its output depends on."""
    content = json.dumps([_CACHE_FORMAT, nvrtc.version(), arch, list(options), source])
    return hashlib.sha256(content.encode()).hexdigest()


def _load_entry(path: Path, key: str, source: str, arch: str) -> NvrtcOutput | None:
    """The entry at `path`; None where it is absent, unreadable, damaged, or of another compile."""
    try:
        if path.is_symlink() or explain_distrust(path):
            return None
        digest, _, body = read_plain_file(path).partition(b"\n")
        head, _, payload = body.partition(b"\n")
        header = parse_json(head)
        split = header["ptx_bytes"]
        is_whole = digest.decode() == hashlib.sha256(body).hexdigest() and header["key"] == key
        if not is_whole or not 0 < split < len(payload):
            return None
        return NvrtcOutput(
            source=source,
            arch=arch,
            ptx=payload[:split].decode(),
            cubin=payload[split:],
            resources={str(name): _read_resources(one) for name, one in header["resources"].items()},
            log=str(header["log"]),
            nvrtc_version=str(header["nvrtc_version"]),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _read_resources(values: dict[str, int]) -> Resources:
    if not all(type(value) is int and value >= 0 for value in values.values()):
        raise ValueError("resources are counts")
    return Resources(**values)


def _store_entry(path: Path, key: str, output: NvrtcOutput) -> str:
    """Write the entry; returns the reason where it cannot be written, else ""."""
    ptx = output.ptx.encode()
    header = {
        "key": key,
        "ptx_bytes": len(ptx),
        "resources": {name: asdict(resources) for name, resources in output.resources.items()},
        "log": output.log,
        "nvrtc_version": output.nvrtc_version,
    }
    body = json.dumps(header).encode() + b"\n" + ptx + output.cubin
    try:
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _write_atomically(path, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""


def _write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step: no reader sees a part of it."""
    handle, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


@cache
def _warn_once(problem: str) -> None:
    """Warn that compiles are not cached; `functools.cache` makes it once for each problem."""
    warnings.warn(
        f"compile cache {problem}: every kernel is compiled again; "
        "set EKC_CACHE_DIR to a folder that can be written",
        stacklevel=3,
    )
