"""nvcc 13.0 ends on float16 products within seconds. It never ended on kernels that increment the pointers of
a pipelined copy under the condition that guards its loads."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ekc.codegen.generate import compile_schedule, generate
from ekc.ir.comparison.compare import make_random_input_arrays
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.hardware.target import LaunchLimits, find_capabilities, restrict_to_arch
from ekc.ir.schedule.schedule import Schedule
from ekc.models.layer_file import from_layers
from ekc.runtime.verify import verify
from ekc.search.space.space import Space
from tests.ir.tensor_examples import half_matmul

HERE = Path(__file__).parent
ARCH = "sm_80"
LIMITS = restrict_to_arch(LaunchLimits(shared_bytes_per_block=find_capabilities(ARCH).shared_bytes), ARCH)
LIMIT_S = 40
"""Seconds of one run of nvcc; one takes 1 to 3 on an idle core."""
HANGS = (HERE / "nvcc_hangs.jsonl").read_text().splitlines()
"""Schedules on whose earlier text nvcc 13.0 never ended."""


@cache
def find_nvcc_release() -> str:
    """Release of nvcc on the path ("13.0"), or "" where there is none."""
    if shutil.which("nvcc") is None:
        return ""
    done = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True, timeout=60)
    found = re.search(r"release (\d+\.\d+)", done.stdout)
    return found[1] if found else ""


needs_nvcc_13 = pytest.mark.skipif(find_nvcc_release() != "13.0", reason="needs nvcc 13.0")


def compile_with_nvcc(text: str, source: Path) -> None:
    """Compile CUDA text to PTX; fails where nvcc refuses it, or does not end within `LIMIT_S`."""
    source.write_text(text)
    command = ["nvcc", "-O2", "-ptx", "-arch", ARCH, "-o", str(source.with_suffix(".ptx")), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[:2000]


def draw_products(count: int) -> Iterator[Schedule]:
    """Legal schedules of the float16 products of the layer file. Every second one increments the pointers of
    a pipelined copy; those are a tenth of all."""
    ops = [layer.op for layer in from_layers(HERE.parents[1] / "examples" / "layers.toml").layers]
    ops = [op for op in ops if "matmul" in op.name and op.inputs[0].dtype.name == "float16"]
    spaces, random = [Space(op, LIMITS) for op in ops], np.random.default_rng(0)
    found = 0
    while found < count:
        space = spaces[found % len(spaces)]
        legal = space.repair(random, space.sample(random, 16))[0]
        schedule = space.build_schedule(legal, int(random.integers(len(legal))))
        if found % 2 or "_pointer +=" in generate(schedule, LIMITS).source:
            found += 1
            yield schedule


@needs_nvcc_13
def test_nvcc_ends_where_it_did_not(tmp_path: Path) -> None:
    """All kernels in one text: nvcc reads the headers once."""
    texts = [generate(Schedule.from_json(text), LIMITS).source for text in HANGS]
    parts = [f"namespace hang_{number} {{\n{text}\n}}\n" for number, text in enumerate(texts)]
    compile_with_nvcc("".join(parts), tmp_path / "kernels.cu")


@needs_nvcc_13
@pytest.mark.slow
def test_nvcc_ends_on_drawn_products(tmp_path: Path) -> None:
    texts = [generate(s, LIMITS).source for s in draw_products(60)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_with_nvcc, texts, (tmp_path / f"{n}.cu" for n in range(len(texts)))))


@pytest.mark.parametrize(
    "schedule",
    [
        half_matmul(32, 32, 32, copy="register"),
        half_matmul(32, 32, 96, copy="register"),
        half_matmul(32, 32, 32, stages=6),
        half_matmul(32, 32, 96, stages=3),
    ],
    ids=["one tile", "tiles", "more copies than tiles", "copies"],
)
def test_pointers_beyond_the_last_tile_are_not_read(schedule: Schedule) -> None:
    """Pointers are incremented after the last tile too, in tensors that end where the last tile does."""
    compiled = compile_schedule(schedule, ARCH, LIMITS)
    assert "_pointer += 32;" in compiled.cuda_source
    expected = ReferenceEvaluator(schedule.op, make_random_input_arrays(schedule.op))
    verdict = verify(schedule, compiled, expected)
    assert verdict.ok, str(verdict)
    assert verdict.launches[0].agreement.blocks == verdict.launches[0].agreement.total_blocks
