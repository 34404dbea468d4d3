"""CUDA text from Programs, NVRTC, resource facts, and the bundle for C++ projects."""

from __future__ import annotations

from ekc.codegen import nvrtc

__all__ = ["nvrtc"]
