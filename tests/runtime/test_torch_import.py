"""`ekc.torch` is the one module that imports PyTorch; `tests/pytorch` tests it with PyTorch itself."""

from __future__ import annotations

import subprocess
import sys

WITHOUT = """
import sys
sys.modules["torch"] = None
import ekc, ekc.runtime.kernel, ekc.devices.cuda.call, ekc.devices.cuda.device_arrays
"""


def test_ekc_imports_without_pytorch() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)
