"""C++ libraries of this GPU's kernels: built, checked by their own check programs, and used by a program.

The schedules are those of the part `tune`, or the best of some random ones on the simulated device of the
same architecture. One library embeds machine code, and g++ builds it; the other has CUDA source, and nvcc
builds it. make builds the check program, whose figures are compared with those that ekc measures of the same
kernels. One compiler command builds `library_calls.cpp` with the sources of the library: it selects, replays
a CUDA graph and calls on two streams.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ekc
from benchmarks.common.script import Column, format_lines
from benchmarks.gpu.contenders import Ours, compute_median, measure_in_turn
from benchmarks.gpu.folder import TUNING, Row
from benchmarks.gpu.kit import Budget, Kit, NotRun
from benchmarks.gpu.sampling import sample_schedules
from ekc import devices
from ekc.bundle import collect_bundle, open_model
from ekc.codegen.library.build import KernelChoice, build_library
from ekc.codegen.library.function_plan import NamedOperator
from ekc.codegen.library.kernels import Bundle, KernelFigures, TargetBoard
from ekc.codegen.library.write import write_bundle
from ekc.devices.device import Device
from ekc.devices.simulated.specs import list_names
from ekc.errors import EkcError, InvalidInput
from ekc.ir.operator import Operator
from ekc.processes.pool import count_cores

MINUTES = 2.0
NAME = "kit"
FORMS = {"cubin": True, "nvcc": False}
"""Forms of a library, and whether machine code is embedded."""
CALLS = Path(__file__).with_name("library_calls.cpp")
"""The program that uses a library."""
OPERATORS: tuple[Operator, ...] = (
    ekc.matmul(256, 256, 256),
    ekc.matmul(512, 512, 512, dtype="float16"),
    ekc.softmax((512, 1024)),
    ekc.matvec(1024, 1024),
)
"""Operators where nothing was tuned."""
DRAWN, POPULATION = 6, 48
"""Schedules of each of these that are simulated, and genomes drawn for them."""
TURNS, WINDOWS, WINDOW_S = 3, 1, 1.0
"""Timings and meterings of a kernel by ekc, and seconds of a metering."""
LEAST_S = 60.0
"""Seconds for a program that has begun, at least."""
SKIPPED = 77
"""Exit status of a check program that finds no GPU, or no kernel for it."""

Step = Callable[[Kit, Bundle, Path, Budget], dict[str, Any]]
"""Makes the facts of a row, its status among them, of a library in a folder."""


def run(kit: Kit, budget: Budget) -> None:
    """A row for the check program of each form of the library, and one for the program that uses it."""
    if kit.dry:
        raise NotRun(f"a dry run compiles no library for {kit.label}")
    steps: list[tuple[str, str, Step]] = []
    for form in FORMS:
        steps += [(form, form, _check_library), (f"{form}, calls", form, _use_library)]
    todo = [one for one in steps if kit.folder.find_row("library", one[0]) is None]
    if shutil.which("nvcc") is None:
        for name, form, _ in todo:
            if not FORMS[form]:
                kit.folder.add_row("library", name, "not run", reason="nvcc is not on the PATH")
        todo = [one for one in todo if FORMS[one[1]]]
    if not todo:
        return
    try:
        bundle, origin = _make_bundle(kit)
    except EkcError as problem:
        raise NotRun(str(problem)) from None
    for name, form, step in budget.take_affordable(todo):
        try:
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary) / NAME
                write_bundle(bundle, folder, cubin=FORMS[form])
                kit.folder.add_row("library", name, origin=origin, **step(kit, bundle, folder, budget))
        except EkcError as problem:
            kit.folder.add_row("library", name, str(problem))


def _make_bundle(kit: Kit) -> tuple[Bundle, str]:
    """The library, and where its schedules are from. Raises `EkcError`."""
    records = kit.folder.path / TUNING
    if records.exists():
        # Nothing may be metered in it, and the name of the GPU may be unknown.
        with suppress(InvalidInput):
            found = collect_bundle(NAME, records, targets=[kit.device.name], any_toolchain=True)
            return found.bundle, "schedules: of the part tune"
    model = _find_model(kit.device)
    choices = {op.digest: [_choose_schedule(kit, model, op)] for op in OPERATORS}
    board = TargetBoard(model.name, kit.device.arch, True)
    named = [NamedOperator(op) for op in OPERATORS]
    bundle = build_library(NAME, named, choices, board, kit.device.limits)
    return bundle, f"schedules: best of {1 + DRAWN} on {model.label}"


def _find_model(device: Device) -> Device:
    """The simulated device of a GPU, or one of its architecture. Raises `EkcError` where there is none."""
    with suppress(InvalidInput):
        return open_model(device.name)
    for name in list_names():
        model = devices.open(name)
        if model.arch == device.arch:
            return model
    raise EkcError(f"no simulated device has the architecture {device.arch}: run the part tune before")


def _choose_schedule(kit: Kit, model: Device, op: Operator) -> KernelChoice:
    """The fastest of some schedules on the simulated device. Raises the last problem where none compiles."""
    drawn = sample_schedules(op, kit.device.limits, kit.device.peaks, kit.seed, POPULATION, 1 + DRAWN)
    best: KernelChoice | None = None
    least_s = float("inf")
    last = EkcError(f"{op.name}: there is no schedule")
    for schedule, make in kit.compile_ahead(drawn):
        try:
            kernel = make()
            latency_s = model.time(kernel).latency_s
            if latency_s < least_s:
                energy_j = model.meter(kernel).energy_j
                best = KernelChoice(schedule, KernelFigures(latency_s, energy_j, True))
                least_s = latency_s
        except EkcError as problem:
            last = problem
    if best is None:
        raise last
    return best


def _check_library(kit: Kit, bundle: Bundle, folder: Path, budget: Budget) -> dict[str, Any]:
    """Build a library with make, and check it; facts for its row, without "check" where the check program
    failed. Raises `EkcError` where it cannot be built or is skipped."""
    program = f"build/{NAME}_check"
    build_s = _build(["make", f"-j{count_cores()}", program], folder, budget)
    facts = _run_on_gpu(kit, folder / program, ["--json"], budget)
    if "found" not in facts:
        return {"status": "FAIL", "build_s": build_s, **facts}
    check = facts["found"]
    is_right = all(row["right"] is not False for row in check["kernels"])
    named = [Ours(str(n), kit.device, k.compiled) for n, k in enumerate(bundle.kernels)]
    own = list(measure_in_turn(named, TURNS, WINDOWS, WINDOW_S).values())
    return {"status": "ok" if is_right else "FAIL", "build_s": build_s, "check": check, "own": own}


def _use_library(kit: Kit, bundle: Bundle, folder: Path, budget: Budget) -> dict[str, Any]:
    """Build the program that uses a library by one command, and run it; facts for its row. Raises `EkcError`
    where it cannot be built or is skipped."""
    program = folder / "library_calls"
    build_s = _build(list_build_words(bundle, folder, program), folder, budget)
    facts = _run_on_gpu(kit, program, [], budget)
    functions = facts.get("found", {}).get("functions", ())
    is_right = functions and not any(one[fault] for one in functions for fault in FAULTS)
    status, calls = "ok" if is_right else "FAIL", facts.pop("found", None)
    return {"status": status, "build_s": build_s, "calls": calls, **facts}


FAULTS = ("selection", "graph", "streams")
"""Checks of `library_calls` for each function; a result is null, or names the fault."""


def list_build_words(bundle: Bundle, folder: Path, program: Path) -> list[str]:
    """The command that builds `library_calls` with the sources of a library: its headers, `src/`, no make."""
    sources = [str(CALLS), *map(str, sorted((folder / "src").glob("*.c*"))), f"tests/{NAME}_naive.cpp"]
    flags = ["-std=c++17", "-Iinclude", "-Itests", *sources, "-o", str(program)]
    if any(source.endswith(".cu") for source in sources):
        return ["nvcc", f"-arch={bundle.boards[0].arch}", *os.environ.get("NVCCFLAGS", "-O2").split(), *flags]
    return [os.environ.get("CXX", "g++"), *os.environ.get("CXXFLAGS", "-O2").split(), *flags, "-ldl"]


def _build(words: list[str], folder: Path, budget: Budget) -> float:
    """Build; the seconds. Raises `EkcError`."""
    began = time.monotonic()
    status, said = _run_program(words, folder, budget)
    if status != 0:
        raise EkcError(f"{words[0]} failed: {said}")
    return time.monotonic() - began


def _run_on_gpu(kit: Kit, program: Path, words: list[str], budget: Budget) -> dict[str, Any]:
    """Run a program that writes JSON into the file of its last argument; {"found": content}, or a "reason".
    Raises `EkcError` where it is skipped."""
    file = program.parent / "found.json"
    # A rehearsal on a simulated device builds all, and the programs find no driver.
    is_real = not kit.device.simulated
    visible = {"CUDA_VISIBLE_DEVICES": _name_gpu(kit.gpu, os.environ)} if is_real else {}
    status, said = _run_program([str(program), *words, str(file)], program.parent, budget, visible)
    if status == SKIPPED:
        raise EkcError(said)
    if not file.exists() or not file.stat().st_size:
        return {"reason": f"exit status {status}: {said}"}
    return {"found": json.loads(file.read_text())}


def _run_program(
    words: list[str], folder: Path, budget: Budget, variables: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """(exit status, end of the output) of a program. Raises `EkcError` where it is missing or takes longer
    than the time that is left."""
    seconds = max(budget.compute_left_s(), LEAST_S)
    environment = os.environ | dict(variables or {})
    try:
        done = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except FileNotFoundError:
        raise EkcError(f"{words[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise EkcError(f"{Path(words[0]).name} did not end in {seconds:.0f} s") from None
    return done.returncode, " ".join(f"{done.stdout} {done.stderr}".split())[-300:]


def _name_gpu(number: int, variables: Mapping[str, str]) -> str:
    """Value of CUDA_VISIBLE_DEVICES that makes a GPU the only one, given its number among those visible."""
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    return str(number) if visible is None else visible.split(",")[number]


def make_table(kit: Kit) -> str:
    """One line for each kernel of each library, and one for each program that used it."""
    lines, notes = [], []
    kernels: list[Row] = []
    for row in kit.folder.list_rows("library"):
        if row.get("calls"):
            notes += _describe_calls(row)
            continue
        if "check" not in row:
            notes.append(f"  {row['item']}: {row.get('reason') or row['status']}")
            continue
        found = row["check"]["kernels"]
        kernels += found
        lines += [_make_line(row["item"], one, row["own"][one["kernel"]]) for one in found]
        notes += [f"  {row['item']}, {_name_kernel(one)}: {one['fault']}" for one in found if one["fault"]]
        notes.append(f"  {row['item']}: built in {row['build_s']:.0f} s; {row['origin']}")
    if not lines:
        return "\n".join(["library: nothing was checked", *notes])
    right = sum(one["right"] is True for one in kernels)
    title = f"library: {right} of {len(kernels)} kernels right, on {kit.label}"
    table = format_lines(COLUMNS, lines, title, label_count=3)
    legend = (
        "  us, mJ: by the check program; ekc: the same kernel measured by ekc; ratio: the first over this"
    )
    return "\n".join([table, legend, *notes])


def _describe_calls(row: Row) -> list[str]:
    """Results of the program that uses a library: selection, graph and streams of each function."""
    calls, item = row["calls"], row["item"]
    lines, wrong = [], 0
    for one in calls["functions"]:
        name = f"{one['function']} {'x'.join(map(str, one['extents']))} {one['prefer']}"
        faults = [f"  {item}, {name}: {fault}: {one[fault]}" for fault in FAULTS if one[fault]]
        lines, wrong = lines + faults, wrong + bool(faults)
    count = len(calls["functions"])
    text = f"{count - wrong} of {count} functions give the same from a graph and on two streams"
    times = f"{1e6 * calls['plain_s']:.4g} us by plain calls, {1e6 * calls['graph_s']:.4g} us from a graph"
    built = f"built in {row['build_s']:.0f} s by one command"
    return [f"  {item}: {text}", f"  {item}: all of them once: {times}; {built}", *lines]


def _name_kernel(checked: Row) -> str:
    """Function, extents, and the preference that the kernel serves if it does not serve both."""
    role = "" if checked["role"] == "both" else f" {checked['role']}"
    return f"{checked['function']} {'x'.join(map(str, checked['extents']))}{role}"


COLUMNS = (
    Column("library", "library"),
    Column("kernel", "kernel"),
    Column("result", "right", {True: "right", False: "WRONG", None: "not compared"}.__getitem__),
    Column("us", "latency_s", ".4g", 1e6),
    Column("ekc: us", "own_latency_s", ".4g", 1e6),
    Column("ratio", "latency_s_ratio", ".3f"),
    Column("mJ", "energy_j", ".4g", 1e3),
    Column("ekc: mJ", "own_energy_j", ".4g", 1e3),
    Column("ratio", "energy_j_ratio", ".3f"),
)


def _make_line(form: str, checked: Row, own: Row) -> dict[str, Any]:
    line = checked | {"library": form, "kernel": _name_kernel(checked)}
    for name in ("latency_s", "energy_j"):
        ours = compute_median(value for value, _, _ in own[name])
        line |= {f"own_{name}": ours, f"{name}_ratio": checked[name] and checked[name] / ours}
    return line
