"""`ekc.torch` is the one module that imports PyTorch; `tests/pytorch` tests it with PyTorch itself."""

from __future__ import annotations

import subprocess
import sys

WITHOUT = """
import sys
sys.modules["torch"] = None
import ekc, ekc.devices.kernel, ekc.devices.cuda.calls, ekc.devices.cuda.frameworks
"""


def test_nothing_needs_pytorch() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)
