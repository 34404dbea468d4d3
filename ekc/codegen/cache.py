"""Compile cache on disk, by content: the same text for the same target is compiled once.

An entry is one file: a SHA-256 of all that follows, a JSON header, then PTX and CUBIN as bytes. It is written
to a temporary file and renamed, so that another process sees a complete entry or none. An entry with a wrong
checksum counts as absent and is written again. Old entries are never removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
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

_CACHE_FORMAT = 1
"""Version of the entries, a part of every key; raise it when their layout or ekc's NVRTC options change."""


def compile_cached(source: str, arch: str = "sm_80", options: Sequence[str] = ()) -> NvrtcOutput:
    """`nvrtc.compile`, or its earlier output from `find_folder()`. Raises what `nvrtc.compile` raises.

    A folder that cannot be written or found gives one warning; the text is then compiled.
    """
    try:
        place = find_folder()
    except InvalidInput as problem:
        _warn_once(str(problem))
        return nvrtc.compile(source, arch, options)
    path = place / _make_entry_name(source, arch, options)
    cached = _load_entry(path, source, arch)
    if cached is not None:
        return cached
    output = nvrtc.compile(source, arch, options)
    if reason := _store_entry(path, output):
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


def _make_entry_name(source: str, arch: str, options: Sequence[str]) -> str:
    """Path of the entry of a compile, below the cache folder."""
    content = json.dumps([_CACHE_FORMAT, nvrtc.version(), arch, list(options), source])
    key = hashlib.sha256(content.encode()).hexdigest()
    return f"{key[:2]}/{key}.nvrtc"


def _load_entry(path: Path, source: str, arch: str) -> NvrtcOutput | None:
    """The entry at `path`; None where it is absent, unreadable or damaged."""
    try:
        digest, _, body = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    if digest.decode(errors="replace") != hashlib.sha256(body).hexdigest():
        return None
    head, _, payload = body.partition(b"\n")
    header = json.loads(head)
    split = header["ptx_bytes"]
    return NvrtcOutput(
        source=source,
        arch=arch,
        ptx=payload[:split].decode(),
        cubin=payload[split:],
        resources={name: Resources(**fields) for name, fields in header["resources"].items()},
        log=header["log"],
        nvrtc_version=header["nvrtc_version"],
    )


def _store_entry(path: Path, output: NvrtcOutput) -> str:
    """Write the entry; returns the reason where it cannot be written, else ""."""
    ptx = output.ptx.encode()
    header = {
        "ptx_bytes": len(ptx),
        "resources": {name: asdict(resources) for name, resources in output.resources.items()},
        "log": output.log,
        "nvrtc_version": output.nvrtc_version,
    }
    body = json.dumps(header).encode() + b"\n" + ptx + output.cubin
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
