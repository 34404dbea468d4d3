"""The file of a pack: all that a GPU needs to run each kernel and to record it, without a compiler.

Line 1 is JSON: `format`, `version`, and the SHA-256 of all bytes after the line. Line 2 is JSON: device,
architecture, versions, rule, and for each operator its JSON, the bytes of its block and those of the
unpacked block. The blocks follow, one for each operator, each an xz stream: one line of JSON with a list of
kernels, then their machine code in the same order.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ekc.codegen.compiled import CompiledKernel, Launch, Resources
from ekc.errors import RecordError
from ekc.file_limits import parse_json, read_plain_file
from ekc.ir.operator import Operator, operator_from_json
from ekc.ir.schedule.schedule import Schedule

FORMAT, VERSION = "ekc pack", 1
MOST_UNPACKED = 1 << 29
"""Bytes of one operator's block, unpacked, at most."""
DICTIONARY_BYTES = 1 << 24
"""Window of the compression: kernels of an operator are alike, and 16 MiB hold a few hundred of them. It
takes 180 MB of memory to pack, and 16 MiB to unpack."""


@dataclass(frozen=True)
class PackedKernel:
    """One kernel of a pack."""

    digest: str
    """Digest of the schedule."""
    steps: str
    """The schedule as JSON, without its operator."""
    structure: str
    stratum: str
    """Part of the rule that drew it; see `rule.py`."""
    figures: Mapping[str, float]
    """Figures of the analysis, by name, as a recording has them."""
    launches: tuple[Launch, ...]
    """Launches without their footprints, which only a simulated device uses."""
    resources: tuple[Resources, ...]
    workspace_bytes: int
    cubin: bytes

    @cached_property
    def code_digest(self) -> str:
        """SHA-256 of the machine code."""
        return compute_code_digest(self.cubin)

    def make_schedule(self, op: Operator) -> Schedule:
        """The schedule, each step checked. Raises `RecordError` where it reads as another one."""
        return read_steps(op, self.steps, self.digest)

    def make_kernel(self, op: Operator, arch: str, nvrtc: str) -> CompiledKernel:
        """The kernel as a device loads it. Its text holds the digest of the schedule and no more, so the
        machine code identifies it. It has no PTX: a simulated device cannot run it."""
        return CompiledKernel(
            name=op.name,
            cuda_source=f"// digest {self.digest}\n",
            ptx="",
            cubin=self.cubin,
            arch=arch,
            log="",
            nvrtc_version=nvrtc,
            launches=self.launches,
            resources=self.resources,
            workspace_bytes=self.workspace_bytes,
            flops=op.flops,
            min_bytes=op.min_bytes,
            inputs=op.inputs,
        )


def compute_code_digest(cubin: bytes) -> str:
    """SHA-256 of machine code."""
    return hashlib.sha256(cubin).hexdigest()


def read_steps(op: Operator, steps: str, digest: str) -> Schedule:
    """A schedule from its steps as JSON. Raises `RecordError` where it reads as another than `digest`."""
    parts = json.loads(steps)
    whole = {"format": parts["format"], "operator": op.to_json(), "steps": parts["steps"]}
    schedule = Schedule.from_json(json.dumps(whole))
    if schedule.digest != digest:
        raise RecordError(f"schedule {digest} of the pack reads as {schedule.digest}: another ekc wrote it")
    return schedule


def pack_kernel(
    schedule: Schedule, structure: str, stratum: str, figures: Mapping[str, float], kernel: CompiledKernel
) -> PackedKernel:
    """The part of a compiled schedule that is packed."""
    data = json.loads(schedule.to_json())
    del data["operator"]
    launches = tuple(replace(launch, footprints=()) for launch in kernel.launches)
    return PackedKernel(
        digest=schedule.digest,
        steps=json.dumps(data, separators=(",", ":")),
        structure=structure,
        stratum=stratum,
        figures=dict(figures),
        launches=launches,
        resources=kernel.resources,
        workspace_bytes=kernel.workspace_bytes,
        cubin=kernel.cubin,
    )


@dataclass(frozen=True)
class PackHead:
    """First line of a pack: its conditions and operators."""

    device: str
    """Simulated device whose search and model drew it, such as "h100"."""
    arch: str
    nvrtc: str
    """Version of the compiler."""
    generator: int
    """Number of ekc's generator of CUDA text."""
    ekc_version: str
    rule: str
    """The rule in words, with seed and numbers."""
    operators: tuple[Mapping[str, Any], ...]
    """One entry for each operator: "operator" (JSON), "name", "bytes", "unpacked_bytes", "kernels"."""


@dataclass(frozen=True, eq=False)
class Pack:
    """An opened pack, whose bytes were checked."""

    path: Path
    head: PackHead
    sha256: str
    """SHA-256 over everything in the first line; it identifies the pack."""
    _blocks: tuple[bytes, ...]

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Operators of the pack, in its order."""
        return tuple(operator_from_json(one["operator"]) for one in self.head.operators)

    def read_kernels(self, number: int) -> tuple[PackedKernel, ...]:
        """The kernels of one operator, in the order of the rule. Raises `RecordError` for a damaged block."""
        facts = self.head.operators[number]
        try:
            return tuple(_unpack_block(self._blocks[number], int(facts["unpacked_bytes"])))
        except (ValueError, TypeError, KeyError, lzma.LZMAError) as problem:
            raise RecordError(f"{self.path}, {facts['name']}: the block is damaged ({problem})") from None


def write_pack(path: Path, head: PackHead, kernels: Sequence[Sequence[PackedKernel]]) -> None:
    """Write a pack, or replace it in one step. `head.operators` gets the sizes."""
    blocks, operators = [], []
    for facts, mine in zip(head.operators, kernels, strict=True):
        plain = _join_block(mine)
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": DICTIONARY_BYTES}]
        blocks.append(lzma.compress(plain, format=lzma.FORMAT_XZ, filters=filters))
        sizes = {"bytes": len(blocks[-1]), "unpacked_bytes": len(plain), "kernels": len(mine)}
        operators.append({**facts, **sizes})
    second = json.dumps(asdict(replace(head, operators=tuple(operators)))).encode() + b"\n"
    body = second + b"".join(blocks)
    first = {"format": FORMAT, "version": VERSION, "sha256": hashlib.sha256(body).hexdigest()}
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(json.dumps(first).encode() + b"\n" + body)
        aside.replace(path)
    except OSError as problem:
        aside.unlink(missing_ok=True)
        raise RecordError(f"pack {path} cannot be written: {problem.strerror}") from None


def read_pack(path: Path) -> Pack:
    """Open a pack and check all of its bytes. Raises `RecordError` for a file that is absent, no pack, cut,
    changed, or of another version."""
    try:
        data = read_plain_file(path)
    except OSError as problem:
        raise RecordError(f"pack {path} cannot be read: {problem.strerror}") from None
    line, _, body = data.partition(b"\n")
    try:
        first = parse_json(line)
        if first["format"] != FORMAT:
            raise ValueError("its first line says otherwise")
        version, sha256 = first["version"], str(first["sha256"])
    except (ValueError, TypeError, KeyError) as problem:
        raise RecordError(f"{path} is no pack of kernels ({problem})") from None
    if version != VERSION:
        raise RecordError(f"{path} is a pack of version {version}, this reads {VERSION}: make it again")
    if hashlib.sha256(body).hexdigest() != sha256:
        raise RecordError(f"{path} is damaged: its bytes are not those that were written; copy it again")
    line, _, rest = body.partition(b"\n")
    facts = parse_json(line)
    head = PackHead(**{**facts, "operators": tuple(facts["operators"])})
    blocks, at = [], 0
    for one in head.operators:
        blocks.append(rest[at : at + one["bytes"]])
        at += one["bytes"]
    return Pack(path, head, sha256, tuple(blocks))


def _make_kernel(facts: Mapping[str, Any], cubin: bytes) -> PackedKernel:
    launches = tuple(_make_launch(one) for one in facts["launches"])
    resources = tuple(Resources(**one) for one in facts["resources"])
    return PackedKernel(**{**facts, "launches": launches, "resources": resources}, cubin=cubin)


def _make_launch(facts: Mapping[str, Any]) -> Launch:
    return Launch(
        name=facts["name"],
        grid=tuple(facts["grid"]),
        block=tuple(facts["block"]),
        shared_bytes=facts["shared_bytes"],
        arguments=tuple(facts["arguments"]),
        argument_bytes=tuple(facts["argument_bytes"]),
    )


def _join_block(kernels: Sequence[PackedKernel]) -> bytes:
    """One line of JSON with all kernels and the sizes of their machine code, then the machine code."""
    index = []
    for kernel in kernels:
        facts = asdict(kernel)
        cubin = facts.pop("cubin")
        index.append({**facts, "cubin_bytes": len(cubin), "cubin_sha256": kernel.code_digest})
    line = json.dumps(index, separators=(",", ":")).encode() + b"\n"
    return line + b"".join(kernel.cubin for kernel in kernels)


def _unpack_block(block: bytes, size: int) -> Iterator[PackedKernel]:
    if not 0 < size <= MOST_UNPACKED:
        raise ValueError(f"{size} bytes unpacked, of at most {MOST_UNPACKED}")
    plain = lzma.LZMADecompressor().decompress(block, max_length=size)
    if len(plain) != size:
        raise ValueError(f"{len(plain)} bytes unpacked of {size}")
    line, _, code = plain.partition(b"\n")
    at = 0
    for facts in parse_json(line):
        cubin = code[at : at + facts.pop("cubin_bytes")]
        at += len(cubin)
        if hashlib.sha256(cubin).hexdigest() != facts.pop("cubin_sha256"):
            raise ValueError(f"machine code of schedule {facts['digest']} is not what was compiled")
        yield _make_kernel(facts, cubin)
