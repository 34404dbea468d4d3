"""Scripted boards that other processes see too, as in tests of the governor."""

from tests.governor.conftest import boards, here

__all__ = ["boards", "here"]
