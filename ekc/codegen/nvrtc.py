"""CUDA text to PTX and CUBIN by one NVRTC compile, and the resources that ptxas reports for each kernel.

Needs no GPU and no driver.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ekc.argument_checks import check_text, format_value
from ekc.codegen.compiled import Resources
from ekc.display import format_line
from ekc.errors import CompileError, EkcError, InvalidInput, ToolchainError
from ekc.forks import hold_forks
from ekc.tables import count_nouns

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_OWNER = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_STACK = re.compile(r"(\d+) bytes cumulative stack size")


def parse_log(log: str) -> dict[str, Resources]:
    """Resources by kernel name (mangled, where the source is not `extern "C"`).

    Registers are per thread; `shared_bytes` is static shared memory per block; spills and stack
    are bytes per thread. A log without `ptxas info` lines gives an empty dict.
    """
    found: dict[str, Resources] = {}
    entry, frame = "", (0, 0, 0)
    owner = ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry, frame = match[1], (0, 0, 0)
        elif match := _OWNER.search(line):
            owner = match[1]
        # A called function has its own frame in the log; it is not that of the kernel.
        elif (match := _FRAME.search(line)) and owner == entry:
            frame = (int(match[1]), int(match[2]), int(match[3]))
        elif (match := _REGISTERS.search(line)) and entry:
            found[entry] = Resources(
                registers=int(match[1]),
                shared_bytes=_read_bytes(_SHARED, line),
                spill_store_bytes=frame[1],
                spill_load_bytes=frame[2],
                stack_bytes=max(frame[0], _read_bytes(_STACK, line)),
            )
    return found


def _read_bytes(pattern: re.Pattern[str], line: str) -> int:
    """The number that `pattern` finds, else 0: ptxas leaves out zeros."""
    match = pattern.search(line)
    return int(match[1]) if match else 0


_FILE_NAME = b"kernel.cu"
# Source lines are indented in the log. Names are in quotes and may contain "error".
_ERROR_PATTERN = re.compile(r"^\S[^\"\n]*\berror\b[^\"\n]*:", re.MULTILINE)
_MISSING_HEADER_PATTERN = re.compile(r'could not open source file "([^"]+)"')


class NvrtcError(CompileError):
    """NVRTC or ptxas refused the text. The message shows the first error; `log` is the whole log."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


@dataclass(frozen=True)
class NvrtcOutput:
    """Output of one compile. For about one text in 400, compiles of the same text differ (NVRTC 13.5)."""

    source: str
    arch: str
    ptx: str
    cubin: bytes
    resources: dict[str, Resources]
    """Resources by kernel name, as in the PTX (mangled unless `extern "C"`)."""
    log: str
    """Warnings and `ptxas info` lines, without the compile times."""
    nvrtc_version: str
    """Version of NVRTC, such as "13.5"."""

    def __repr__(self) -> str:
        kernels = ", ".join(self.resources)
        return format_line(self, f"{self.arch}, NVRTC {self.nvrtc_version}: {kernels}")


@hold_forks()
def compile(source: str, arch: str = "sm_80", options: Sequence[str] = ()) -> NvrtcOutput:
    """Compile CUDA C++ text for `arch`; `options` are passed to NVRTC after ekc's own.

    Raises `InvalidInput` for an arch that NVRTC does not know, `NvrtcError` (a `CompileError`)
    for text that it refuses, `EkcError` where NVRTC is not installed.
    """
    check_text("source", source, "CUDA C++")
    check_text("arch", arch, "'sm_80'")
    if not isinstance(options, (list, tuple)):
        raise InvalidInput(
            f"options: {format_value(options)} is not a list of texts; write options=['-lineinfo']"
        )
    for option in options:
        check_text("options", option, "'-lineinfo'")
    nvrtc = _library()
    _check_arch(nvrtc, arch)
    flags = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v", *options]
    with _open_program(nvrtc, source) as program:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
        log = _clean_log(_read_output(nvrtc, program, "ProgramLog"))
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise NvrtcError(_summarize_errors(log or status.name), log)
        return NvrtcOutput(
            source=source,
            arch=arch,
            ptx=_read_output(nvrtc, program, "PTX").rstrip(b"\0").decode(),
            cubin=_read_output(nvrtc, program, "CUBIN"),
            resources=parse_log(log),
            log=log,
            nvrtc_version=version(),
        )


@hold_forks()
def version() -> str:
    """Version of the NVRTC in use, such as "13.5"; `EkcError` where there is none."""
    nvrtc = _library()
    return "{}.{}".format(*_check_status(nvrtc, nvrtc.nvrtcVersion()))


@hold_forks()
def list_supported_archs() -> tuple[str, ...]:
    """The archs that this NVRTC compiles for, oldest first, such as ("sm_75", "sm_80", ...)."""
    return tuple(f"sm_{number}" for number in _list_arch_numbers(_library()))


def _library() -> Any:
    """The binding, with its shared library loaded (the binding loads it at the first call)."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise EkcError(
            f"NVRTC cannot be loaded ({reason}): pip install nvidia-cuda-nvrtc cuda-bindings"
        ) from error
    return nvrtc


def _list_arch_numbers(nvrtc: Any) -> list[int]:
    (numbers,) = _check_status(nvrtc, nvrtc.nvrtcGetSupportedArchs())
    return sorted(numbers)


def _check_arch(nvrtc: Any, arch: str) -> None:
    """Raise `InvalidInput` for an arch unknown to NVRTC; sm_90 and later also have `sm_90a` and `sm_100f`."""
    numbers = _list_arch_numbers(nvrtc)
    if any(re.fullmatch(f"sm_{number}[af]?" if number >= 90 else f"sm_{number}", arch) for number in numbers):
        return
    digits = re.fullmatch(r"(?:sm_|compute_)?(\d+)[af]?", arch)
    wanted = int(digits[1]) if digits else 80
    nearest = min(numbers, key=lambda number: abs(number - wanted))
    names = ", ".join(f"sm_{number}" for number in numbers)
    raise InvalidInput(
        f"arch {arch!r} is unknown to NVRTC {version()}: it compiles for {names}; nearest: sm_{nearest}"
    )


@contextmanager
def _open_program(nvrtc: Any, source: str) -> Iterator[Any]:
    """An NVRTC program that is destroyed however the block ends."""
    (program,) = _check_status(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), _FILE_NAME, 0, [], []))
    try:
        yield program
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _read_output(nvrtc: Any, program: Any, what: str) -> bytes:
    """One of the program's byte strings: "PTX", "CUBIN" or "ProgramLog"."""
    (size,) = _check_status(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program))
    buffer = bytes(size)
    _check_status(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer


def _check_status(nvrtc: Any, answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results of an NVRTC call; `EkcError` if its status is not success."""
    status, *results = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise EkcError(f"NVRTC failed: {status.name}")
    return tuple(results)


def _clean_log(raw: bytes) -> str:
    """The log without NULs (also inside the text) and without the compile times."""
    lines = raw.replace(b"\0", b"").decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if "Compile time =" not in line)


def _summarize_errors(log: str) -> str:
    """The first error with its source line and caret, and the number of errors."""
    if missing := _MISSING_HEADER_PATTERN.search(log):
        return (
            f"{missing[1]} was not found: NVRTC searches no folders and its wheel has no CUDA "
            f'headers as files; pass options=("-I<folder with {missing[1]}>",) or do not include it'
        )
    first = _ERROR_PATTERN.search(log)
    if first is None:
        return log
    # The source line and the caret follow the error; an empty line ends them.
    shown = log[first.start() :].split("\n\n")[0]
    if "^" not in shown:
        shown = shown.splitlines()[0]
    return f"{shown}\n({count_nouns(len(_ERROR_PATTERN.findall(log)), 'error')} in all)"


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
