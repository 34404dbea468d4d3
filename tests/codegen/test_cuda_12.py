"""The packages of CUDA 12, for drivers that load no machine code of CUDA 13, in a virtual environment."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import ekc
from ekc.devices.cuda.driver import CUDA_12_INSTALL_COMMAND
from tests.ir.tensor_examples import tensor_matmul

ROOT = Path(__file__).parents[2]
OTHERS = "click", "jinja2", "ml-dtypes", "numpy", "nvidia-ml-py", "rich"
PROGRAM = """
import ekc
from ekc.codegen import nvrtc

assert nvrtc.version().startswith("12."), nvrtc.version()
assert "sm_70" in nvrtc.list_supported_archs()
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with what ekc needs to compile and execute, and these packages."""
    folder = tmp_path_factory.mktemp("cuda12")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "-q", "install"]
    done = subprocess.run([*pip, *OTHERS], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the packages cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    _, install = CUDA_12_INSTALL_COMMAND.split(" && ")
    done = subprocess.run([*pip, *shlex.split(install)[2:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "bin" / "python"


def _run(python: Path, tmp_path: Path, *words: str) -> str:
    place = {"PYTHONPATH": str(ROOT), "EKC_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [python, *words], cwd=tmp_path, capture_output=True, text=True, env=os.environ | place
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_docs_have_the_command_of_the_message() -> None:
    assert f"```sh\n{CUDA_12_INSTALL_COMMAND}\n```" in (ROOT / "docs" / "how-to" / "real-gpu.md").read_text()


@pytest.mark.slow
def test_cuda_12_compiler_is_loaded(python: Path, tmp_path: Path) -> None:
    _run(python, tmp_path, "-c", PROGRAM)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_cuda_12_kernels_match_reference(python: Path, tmp_path: Path, dtype: str) -> None:
    """Tensor cores, asynchronous copies, swizzled tiles; in float32 one element a thread."""
    op = ekc.matmul(64, 64, 64, dtype=dtype)
    schedule = ekc.Schedule(op) if dtype == "float32" else tensor_matmul(op)
    (tmp_path / "schedule.json").write_text(schedule.to_json())
    out = _run(python, tmp_path, "-m", "ekc", "run", "--schedule", "schedule.json", "--target", "a100")
    assert "sanitizer  found nothing\nagrees with the reference" in out
