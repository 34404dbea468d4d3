"""What tells one compiled kernel from another."""

from __future__ import annotations

import hashlib
import re

from ekc.codegen.compiled import CompiledKernel

_HEADER = re.compile(r"\A(?:\s+|//[^\n]*(?:\n|\Z)|/\*.*?\*/)*", re.DOTALL)


def digest(kernel: CompiledKernel) -> str:
    """SHA-256 of the CUDA text without its leading comments, or of the cubin if there is no text."""
    text = _HEADER.sub("", kernel.cuda_source, count=1)
    return hashlib.sha256(text.encode() or kernel.cubin).hexdigest()
