"""Status codes of a generated library, in the order of their numbers, and the sentence for each."""

from __future__ import annotations

from collections.abc import Mapping

STATUS_CODES: Mapping[str, str] = {
    "ok": "all launches are queued",
    "null_pointer": "a pointer is null: give every tensor and struct, and a workspace where one is needed",
    "misaligned": "a tensor is not aligned to 16 bytes, or the workspace not to 256; cudaMalloc aligns both",
    "workspace_too_small": "the workspace has fewer bytes than the kernel needs; ask workspace_bytes",
    "unknown_shape": "no kernel of the library has these extents; list and the header name those that have",
    "no_kernel_for_device": "no kernel of the function runs on the device; bundle one that does",
    "not_exact": "exact_only is set, and no kernel was tuned for this board",
    "wrong_device": "a pointer is not to memory that the current device can use; see cudaSetDevice",
    "wrong_capability": "the code of the kernel does not run on the compute capability of the device",
    "launch_failed": "CUDA refused the launch; cuda_error has its error",
    "bad_struct": "an option has no legal value, or a struct of C no legal size or version",
    "wrong_extents": "the extents of a view do not fit the operator",
    "buffer_too_small": "a view has fewer bytes than its tensor",
    "no_gpu": "there is no GPU or no CUDA driver that can be used; cuda_error has the error",
}
"""Sentence of each code. Codes may be added at the end; a number keeps its meaning."""
