"""Scripted boards."""

from tests.scripted.nvml.fixtures import boards, here, one

__all__ = ["boards", "here", "one"]
