"""Scripted boards."""

from tests.scripted.nvml.fixtures import boards, here

__all__ = ["boards", "here"]
