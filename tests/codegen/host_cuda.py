"""Runs generated CUDA text on the CPU: g++, a shim for CUDA's names, one OS thread for each CUDA thread.

An independent check of what is emitted: index arithmetic, guards, vector moves (alignment is checked), array
bounds, barriers (the thread sanitizer sees a missing one as a race), elements never written (outputs
start as NaN).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.generate import GeneratedSource, generate
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.checks import make_inputs

SHIM = Path(__file__).with_name("host_shim.h")
BOUNDS = (
    "-fsanitize=alignment,bounds,signed-integer-overflow,integer-divide-by-zero",
    "-fno-sanitize-recover=all",
)
RACES = ("-fsanitize=thread",)
_TO_FLOAT = 'asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits));'
_TO_HALF = 'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(f));'
_BRAIN = 'asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h.bits) : "f"(f));'
_TF32 = 'asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(f));'
_MAXIMUM, _MINIMUM = (
    f'asm("{root}.NaN.f32 %0, %1, %2;" : "=f"(chosen) : "f"(a), "f"(b));' for root in ("max", "min")
)
_ASM = {
    # Replaced by C++ as for GPUs that lack the instructions.
    _BRAIN: "",
    _TF32: "",
    _MAXIMUM: "",
    _MINIMUM: "",
    _TO_FLOAT: "f = static_cast<float>(std::bit_cast<_Float16>(h.bits));",
    _TO_HALF: "h.bits = std::bit_cast<unsigned short>(static_cast<_Float16>(f));",
}
_ASYNC = (
    (
        re.compile(r'asm volatile\("cp\.async\.c[ag]\.shared\.global \[%0\], \[%1\], (\d+)(?:, %2)?;" '
                   r': : "r"\((?:shared|to)\), "l"\(from\)(?:, "r"\((.*?)\))?\);'),
        lambda m: f"shim::issue((void*)to, from, {m[1]}, {m[2] or m[1]});",
    ),
    (re.compile(r"const unsigned int shared = .*;"), lambda m: ""),
    (re.compile(r'asm volatile\("cp\.async\.commit_group;"\);'), lambda m: "shim::commit();"),
    (re.compile(r'asm volatile\("cp\.async\.wait_group %0;" : : "n"\(pending\) : "memory"\);'),
     lambda m: "shim::wait(pending);"),
)  # fmt: skip
_PLACES = (
    # Addresses in shared memory are pointers here, which 32 bits cannot hold.
    (
        re.compile(r"unsigned int(?= (?:shared_address|keep_in_register)\(|(?: \w+_address)(?:;|\[))"),
        "std::uintptr_t",
    ),
    (re.compile(r"\((?:unsigned int)(?= (?:address|number|to)\b)"), "(std::uintptr_t"),
    (
        re.compile(r"static_cast<unsigned int>\(__cvta_generic_to_shared\(element\)\)"),
        "(std::uintptr_t)element",
    ),
    (re.compile(r"static_cast<type\*>\(__cvta_shared_to_generic\(address\)\)"), "(type*)address"),
    (re.compile(r'asm volatile\("" : "\+r"\(number\)\);'), ""),
)
_MAIN = """
int main(int, char** arguments)
{
    const std::string folder = arguments[1];
    int failed = 0;
CALLS    return failed;
}
"""


@dataclass(frozen=True)
class HostRun:
    """Output of the text of one schedule, and the expected output."""

    schedule: Schedule
    result: NDArray[Any]
    reference: NDArray[Any]

    def check(self) -> None:
        """Fail with the schedule's text where the result is wrong."""
        suffix = f"\n{self.schedule.to_python()}\non {self.schedule.op}"
        assert np.isfinite(self.result).all(), f"elements never written, or read out of bounds{suffix}"
        if self.result.dtype.kind == "i":
            np.testing.assert_array_equal(self.result, self.reference, err_msg=suffix)
            return
        allowed = {"float16": 2e-3, "bfloat16": 1.6e-2}.get(self.result.dtype.name, 2e-5)
        scale = max(1.0, float(np.abs(self.reference.astype(np.float64)).max()))
        wrong = np.abs(self.result.astype(np.float64) - self.reference.astype(np.float64)).max() / scale
        assert wrong < allowed, f"off by {wrong} of the largest element{suffix}"


def available() -> bool:
    """Whether there is a C++ compiler."""
    return shutil.which("g++") is not None


def run_all(
    schedules: list[Schedule], folder: Path, flags: tuple[str, ...] = BOUNDS, seed: int = 0
) -> list[HostRun]:
    """Compile all schedules into one program, run it on random data, and read the results back."""
    made = [generate(s) for s in schedules]
    parts = [
        '#include "host_shim.h"',
        *(_case(i, s, g) for i, (s, g) in enumerate(zip(schedules, made, strict=True))),
    ]
    calls = "".join(f"    failed += !case_{i}::run(folder);\n" for i in range(len(schedules)))
    source, program = folder / "kernels.cpp", folder / "kernels"
    source.write_text("\n".join([*parts, _MAIN.replace("CALLS", calls)]))
    usual = ("-std=c++20", "-O1", "-g0", "-fno-strict-aliasing", "-pthread", f"-I{SHIM.parent}")
    quiet = ("-Wno-unknown-pragmas", "-Wno-attributes")
    _run(["g++", *usual, *quiet, *flags, str(source), "-o", str(program)])
    inputs = [_store_inputs(i, s, folder, seed) for i, s in enumerate(schedules)]
    _run([str(program), str(folder)])
    return [HostRun(s, _result(i, s, folder), s.op.reference(*inputs[i])) for i, s in enumerate(schedules)]


def _run(command: list[str]) -> None:
    """Run a program; its output is the message of a failure."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command[0]}: {done.returncode}\n{done.stderr[:4000]}"


def _case(number: int, schedule: Schedule, made: GeneratedSource) -> str:
    """The text of one schedule in its own namespace, with a function that runs its launches."""
    text = translate_text(made.source)
    op = schedule.program.op  # With the workspace that steps add: parts of a sum, packed inputs.
    tensors = list(dict.fromkeys(a for launch in made.launches for a in launch.arguments))
    lines = [
        f'    shim::Memory memory_{t}(folder + "/{number}_{t}.bin", {op.tensors[t].bytes});' for t in tensors
    ]
    for launch in made.launches:
        pointers = ", ".join(
            f"reinterpret_cast<{op.tensors[t].dtype.cuda_name}*>(memory_{t}.data())" for t in launch.arguments
        )
        grid, block = (f"{{{', '.join(map(str, shape))}}}" for shape in (launch.grid, launch.block))
        lines.append(f"    shim::launch({grid}, {block}, [&] {{ {launch.name}({pointers}); }});")
    kept = " & ".join(f"memory_{t}.keep()" for t in tensors)
    body = "\n".join([*lines, f"    return {kept};"])
    return f"namespace case_{number} {{\n{text}\nbool run(const std::string& folder)\n{{\n{body}\n}}\n}}\n"


def translate_text(source: str) -> str:
    """CUDA text as C++ that includes the shim."""
    text = source.replace('extern "C" __global__', "__global__")
    for asm, plain in _ASM.items():
        text = text.replace(asm, plain)
    for asm, plain in (*_ASYNC, *_PLACES):
        text = asm.sub(plain, text)
    assert "asm" not in text.split("__global__")[0]
    return text


def _store_inputs(number: int, schedule: Schedule, folder: Path, seed: int) -> list[NDArray[Any]]:
    arrays = make_inputs(schedule.op, seed + number)
    for spec, array in zip(schedule.op.inputs, arrays, strict=True):
        array.tofile(folder / f"{number}_{spec.name}.bin")
    return arrays


def _result(number: int, schedule: Schedule, folder: Path) -> NDArray[Any]:
    (spec,) = schedule.op.outputs
    return np.fromfile(folder / f"{number}_{spec.name}.bin", dtype=spec.dtype.numpy_dtype).reshape(spec.shape)
