"""Identity of a compiled kernel: a digest of its text, or of text and machine code."""

from __future__ import annotations

import hashlib
import re

from ekc.codegen.compiled import CompiledKernel

_LEADING_COMMENTS = re.compile(r"\A(?:\s+|//[^\n]*(?:\n|\Z)|/\*.*?\*/)*", re.DOTALL)


def digest_kernel(kernel: CompiledKernel) -> str:
    """SHA-256 of the CUDA text without its leading comments, or of the cubin if there is no more text."""
    text = _strip_comments(kernel.cuda_source)
    return _hash_sha256(text) if text else _hash_sha256(kernel.cubin)


def identify_kernel(kernel: CompiledKernel) -> str:
    """The digest and that of the machine code, because one text is compiled for several GPUs. Data about a
    compiled kernel are kept by this key; random draws for it are seeded by the text alone."""
    return f"{digest_kernel(kernel)} {_hash_sha256(kernel.cubin)}"


def digest_cuda_source(cuda_source: str) -> str:
    """Digest of the kernel that a CUDA text compiles to; the text has more than comments."""
    return _hash_sha256(_strip_comments(cuda_source))


def _strip_comments(cuda_source: str) -> bytes:
    return _LEADING_COMMENTS.sub("", cuda_source, count=1).encode()


def _hash_sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
