"""A compiled kernel as files for a C++ project: CUDA text with a launcher, header, record, CMake function.

Kernels of one library have different C names; a program with two kernels of one name does not link.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ekc.argument_checks import check_path
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.emit.names import to_c_name
from ekc.codegen.render import render_template
from ekc.errors import InvalidInput
from ekc.ir.compute import TensorSpec
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.ir.validate import check_identifier
from ekc.version import __version__


def make_kernel_name(op: Operator, prefix: str = "") -> str:
    """A name that no other operator has, after a prefix if one is given: `matmul_64x128x64_1c3f09aa`.

    The extents are those of the axes of the first compute, reductions last. The digits are from the
    operator's digest, so the name depends on the operator and the prefix only.
    """
    shape = "x".join(str(axis.extent) for axis in op.computes[0].axes)
    return "_".join(part for part in (prefix, op.name, shape, op.digest[:8]) if part)


def compute_kernel_digest(compiled: CompiledKernel) -> str:
    """12 digits of the digest of the CUDA text (operator, schedule, version), to distinguish equal names."""
    return hashlib.sha256(compiled.cuda_source.encode()).hexdigest()[:12]


_WORKSPACE_ALIGNMENT_BYTES = 256
"""Bytes between the starts of workspace tensors, as cudaMalloc gives."""


def export(
    compiled: CompiledKernel,
    schedule: Schedule,
    folder: str | Path,
    *,
    provenance: Mapping[str, str] | None = None,
) -> tuple[Path, ...]:
    """Write `<name>.cu`, `<name>.h`, `<name>.json` and `ekc.cmake` into `folder`; the paths written.

    A missing folder is made; each file is replaced in one step. `provenance` (device label, energy and
    latency with their units, date, ...) is copied into header and record. With `simulated` set to "true",
    `device` must contain "(simulated)".

    Raises `InvalidInput` for a folder that cannot be written, a kernel made from another schedule, and a
    simulated device whose label does not contain "(simulated)".
    """
    folder = check_path("folder", folder)
    facts = dict(provenance or {})
    name = check_identifier("kernel", compiled.name)
    if f"digest {schedule.digest}" not in compiled.cuda_source:
        raise InvalidInput(
            f"export: {name} was not compiled from the schedule {schedule.digest}; compile it first"
        )
    if facts.get("simulated") == "true" and "(simulated)" not in facts.get("device", ""):
        raise InvalidInput(
            f"export: device {facts.get('device', '')!r} is simulated; call it 'NAME (simulated)'"
        )
    values = _collect_template_values(compiled, schedule, facts)
    texts = {
        f"{name}.cu": render_template("bundle.cu.j2", cuda_source=compiled.cuda_source, **values),
        f"{name}.h": render_template("bundle.h.j2", **values),
        f"{name}.json": json.dumps(
            _build_record(compiled, schedule, values["workspace_bytes"], facts), indent=1
        )
        + "\n",
        "ekc.cmake": render_template("bundle.cmake.j2"),
    }
    return write_files(Path(folder), texts)


def _collect_template_values(
    compiled: CompiledKernel, schedule: Schedule, provenance: Mapping[str, str]
) -> dict[str, Any]:
    """Values of the templates."""
    op = schedule.program.op
    output = op.outputs[0]
    given = {t.name for t in (*op.inputs, output)}
    arguments = dict.fromkeys(a for launch in compiled.launches for a in launch.arguments)
    tensors = [op.tensors[x] for x in arguments]
    offsets, total = lay_out_workspace([t for t in tensors if t.name not in given])
    return {
        "name": compiled.name,
        "operator": [clean_comment(line) for line in str(op).splitlines()],
        "version": __version__,
        "digest": schedule.digest,
        "kernel_digest": compute_kernel_digest(compiled),
        "arch": compiled.arch,
        "inputs": [{"pointer": to_c_name(t.name), "name": t.name, "text": str(t)} for t in op.inputs],
        "output": {"pointer": to_c_name(output.name), "name": output.name, "text": str(output)},
        "unordered": ", ".join(schedule.program.nondeterministic_outputs),
        "workspace": [{"pointer": to_c_name(x), "offset": offset} for x, offset in offsets.items()],
        "workspace_bytes": total,
        "launches": [
            asdict(launch) | {"pointers": [to_c_name(a) for a in launch.arguments]}
            for launch in compiled.launches
        ],
        "provenance": {clean_comment(key): clean_comment(value) for key, value in provenance.items()},
    }


def lay_out_workspace(tensors: list[TensorSpec]) -> tuple[dict[str, int], int]:
    """Lay out the workspace: the offset of each intermediate tensor in bytes, and the bytes of all."""
    offsets, total = {}, 0
    for t in tensors:
        offsets[t.name] = total
        total += -(-t.bytes // _WORKSPACE_ALIGNMENT_BYTES) * _WORKSPACE_ALIGNMENT_BYTES
    return offsets, total


def clean_comment(text: str) -> str:
    """Make one line that cannot end a C comment."""
    return " ".join(text.split()).replace("*/", "* /").replace("/*", "/ *")


def _build_record(
    compiled: CompiledKernel, schedule: Schedule, workspace_bytes: int, provenance: Mapping[str, str]
) -> dict[str, Any]:
    """Content of the JSON file: enough to compile the kernel again, and its provenance."""
    launch_facts = ("name", "grid", "block", "shared_bytes", "arguments")
    return {
        "name": compiled.name,
        "ekc_version": __version__,
        "nvrtc_version": compiled.nvrtc_version,
        "arch": compiled.arch,
        "digest": schedule.digest,
        "kernel_digest": compute_kernel_digest(compiled),
        "schedule": json.loads(schedule.to_json()),
        "launches": [{fact: getattr(launch, fact) for fact in launch_facts} for launch in compiled.launches],
        "resources": [asdict(r) for r in compiled.resources],
        "workspace_bytes": workspace_bytes,
        "flops": compiled.flops,
        "min_bytes": compiled.min_bytes,
        "provenance": dict(provenance),
    }


def write_files(folder: Path, texts: Mapping[str, str], subject: str = "export") -> tuple[Path, ...]:
    """Write texts by their paths in a folder, each in one step; returns the paths. `subject` begins an error
    message. Raises `InvalidInput` for a folder that cannot be written."""
    try:
        for name in texts:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        return tuple(_replace_file(folder / name, text) for name, text in texts.items())
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        raise InvalidInput(
            f"{subject}: cannot write into {folder} ({reason}); choose another folder"
        ) from None


def _replace_file(path: Path, text: str) -> Path:
    """Write a file in one step: no reader sees a part of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
