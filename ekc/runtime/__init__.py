"""Compiled kernels: called on arrays of any library, run in the PTX machine, and checked."""

from ekc.runtime.kernel import Kernel

__all__ = ["Kernel"]
