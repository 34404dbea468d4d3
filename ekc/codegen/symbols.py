"""The C names of exported kernels: those of one library differ, and two kernels of one name do not link."""

from __future__ import annotations

import hashlib

from ekc.codegen.compiled import CompiledKernel
from ekc.ir.operator import Operator


def make_kernel_name(op: Operator, prefix: str = "") -> str:
    """A name that no other operator has: `matmul_64x128x64_1c3f09aa`, behind a prefix if one is given.

    The extents are those of the axes of the first compute, sums last. The digits are of the operator, so that
    a name depends on nothing but the operator and the prefix.
    """
    shape = "x".join(str(axis.extent) for axis in op.computes[0].axes)
    return "_".join(part for part in (prefix, op.name, shape, op.digest[:8]) if part)


def compute_kernel_digest(compiled: CompiledKernel) -> str:
    """Digits that tell apart two kernels of one name: 12 of the digest of the CUDA text, in which operator,
    schedule and version of ekc are written."""
    return hashlib.sha256(compiled.cuda_source.encode()).hexdigest()[:12]
