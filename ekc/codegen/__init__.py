"""CUDA text from schedules, NVRTC, resources of kernels, and the export for C++ projects."""

from ekc.codegen import nvrtc

__all__ = ["nvrtc"]
