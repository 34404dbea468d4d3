"""Compiles kept on disk, by content: the same text for the same target is compiled once.

An entry is one file: a SHA-256 of all that follows, a JSON header, then PTX and CUBIN as bytes.
It is written aside and renamed, so that another process sees a whole entry or none. An entry
that fails its checksum counts as absent and is written again. Old entries are never removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

from ekc.codegen import nvrtc
from ekc.codegen.compiled import Resources
from ekc.codegen.nvrtc import NvrtcOutput

_FORMAT = 1
"""Part of every key: raise it when the entry's layout or ekc's own NVRTC options change."""


def cached_compile(source: str, arch: str = "sm_80", options: Sequence[str] = ()) -> NvrtcOutput:
    """`nvrtc.compile`, or its earlier output from `folder()`. Raises what `nvrtc.compile` raises.

    A folder that cannot be written costs a warning, once, and the time to compile.
    """
    path = _path(source, arch, options)
    known = _load(path, source, arch)
    if known is not None:
        return known
    output = nvrtc.compile(source, arch, options)
    _store(path, output)
    return output


def folder() -> Path:
    """`$EKC_CACHE_DIR`, else `$XDG_CACHE_HOME/ekc`, else `~/.cache/ekc`."""
    if own := os.environ.get("EKC_CACHE_DIR"):
        return Path(own).expanduser()
    # The XDG standard says to ignore a relative path.
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "ekc"


def _path(source: str, arch: str, options: Sequence[str]) -> Path:
    """Where the entry of this compile is, there or not."""
    content = json.dumps([_FORMAT, nvrtc.version(), arch, list(options), source])
    key = hashlib.sha256(content.encode()).hexdigest()
    return folder() / key[:2] / f"{key}.nvrtc"


def _load(path: Path, source: str, arch: str) -> NvrtcOutput | None:
    """The entry, or None where it is absent, unreadable or damaged."""
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


def _store(path: Path, output: NvrtcOutput) -> None:
    """Write the entry, or warn that it cannot be written."""
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
        _write_whole(path, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    except OSError as error:
        _warn_once(folder(), error.strerror or type(error).__name__)


def _write_whole(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step: no reader sees a part of it."""
    handle, aside = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(aside, path)
    finally:
        Path(aside).unlink(missing_ok=True)


@cache
def _warn_once(place: Path, reason: str) -> None:
    """Say that compiles are not kept; `functools.cache` makes it once per folder and reason."""
    warnings.warn(
        f"compile cache {place} cannot be written ({reason}): every kernel is compiled again; "
        "set EKC_CACHE_DIR to a folder that can be written",
        stacklevel=4,
    )
