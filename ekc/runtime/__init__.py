"""Compiled kernels that can be called: on arrays of any library, in the PTX emulator, and verified against
the reference.
"""

from __future__ import annotations

from ekc.runtime.kernel import Kernel

__all__ = ["Kernel"]
