"""Machine code of a CUBIN as text, by nvdisasm."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from ekc.errors import ToolchainError


def find_nvdisasm() -> str | None:
    """Find nvdisasm: where the package nvidia-cuda-nvdisasm puts it, otherwise on the path."""
    packaged = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin/nvdisasm"))
    return str(packaged[-1]) if packaged else shutil.which("nvdisasm")


def disassemble(cubin: bytes) -> str:
    """Disassemble the functions of a CUBIN. Raises `ToolchainError` where nvdisasm is missing or fails."""
    program = find_nvdisasm()
    if program is None:
        raise ToolchainError("machine code needs nvdisasm: pip install nvidia-cuda-nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([program, "-c", str(file)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolchainError(f"nvdisasm failed: {' '.join(done.stderr.split())[:200]}")
    return done.stdout
