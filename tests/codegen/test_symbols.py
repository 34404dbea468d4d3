"""Two kernels under one name do not get into one program; one kernel is the one of its header."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import ekc
from ekc.codegen import nvrtc
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.export import export, make_kernel_name
from ekc.codegen.generate import assemble_kernel, generate
from ekc.ir.schedule.schedule import Schedule
from tests.codegen import samples

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
NAME = "net"
SCHEDULES = {"one": samples.two_launches(), "two": samples.copy(3, 64)}
WORKSPACE = {"one": "768\n", "two": "0\n"}
"""Bytes that tell which of the two kernels was linked."""
USER = """
#include "{kernel}/net.h"
#ifdef __cplusplus
extern "C"
#endif
int {user}(void) {{ return (int)ekc_net_workspace_bytes(); }}
"""
MAIN = """
#include <stdio.h>
{declarations}
int main(void) {{ printf("%d\\n", {calls}); return 0; }}
"""
LINKED = [("static", ("one", "two")), ("static", ("two", "one"))]
LINKED += [("shared", order) for _, order in LINKED]


def compiled(schedule: Schedule, name: str = NAME) -> CompiledKernel:
    made = generate(schedule, name=name)
    return replace(assemble_kernel(schedule, made, nvrtc.compile(made.source)), name=name)


def run(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def must_run(*command: str | Path, folder: Path) -> str:
    done = run(*command, folder=folder)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both kernels as a static and a shared library, and two users of each, one in C and one in C++."""
    folder = tmp_path_factory.mktemp("libraries")
    # Toolkits before 13 let every library see the kernels of all.
    seen = "--device-entity-has-hidden-visibility"
    older = (f"{seen}=false",) if seen in must_run("nvcc", "--help", folder=folder) else ()
    for kernel, schedule in SCHEDULES.items():
        export(compiled(schedule), schedule, folder / kernel)
        source, made = f"{kernel}/net.cu", f"{kernel}.o"
        must_run(
            "nvcc", "-arch=sm_80", *older, "-Xcompiler", "-fPIC", "-c", source, "-o", made, folder=folder
        )
        must_run("ar", "rcs", f"libstatic_{kernel}.a", made, folder=folder)
        must_run("nvcc", "-shared", made, "-o", f"libshared_{kernel}.so", folder=folder)
        for user, compiler in ((f"{kernel}_c", ("gcc", "-std=c99")), (f"{kernel}_cc", ("g++", "-xc++"))):
            (folder / f"{user}.c").write_text(USER.format(kernel=kernel, user=user))
            must_run(*compiler, "-Wall", "-Werror", "-c", f"{user}.c", "-o", f"{user}.o", folder=folder)
    return folder


def link(
    folder: Path, users: tuple[str, ...], way: str, order: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    """A program of some users, with libraries in an order."""
    declarations = "\n".join(f"int {user}(void);" for user in users)
    calls = " | ".join(f"{user}()" for user in users)
    text = MAIN.format(declarations=declarations, calls=calls)
    (folder / "main.c").write_text(text)
    objects = [f"{user}.o" for user in users]
    wanted = [f"-l{way}_{kernel}" for kernel in order]
    return run(
        *("nvcc", "main.c", *objects, "-L.", *wanted, "-Xlinker", "--no-undefined", "-Xlinker", "-rpath=."),
        *("-o", "main"),
        folder=folder,
    )


@needs_nvcc
@pytest.mark.parametrize(("way", "order"), LINKED)
def test_two_kernels_of_one_name_do_not_link(libraries: Path, way: str, order: tuple[str, str]) -> None:
    language = "c" if order[0] == "one" else "cc"
    done = link(libraries, (f"one_{language}", f"two_{language}"), way, order)
    assert done.returncode != 0
    assert re.search("multiple definition of .ekc_net_is_one_kernel", done.stderr)


@needs_nvcc
@pytest.mark.parametrize(("way", "order"), LINKED)
@pytest.mark.parametrize("kernel", SCHEDULES)
def test_a_program_gets_the_kernel_of_its_header(
    libraries: Path, way: str, order: tuple[str, str], kernel: str
) -> None:
    """Both libraries are there, and each has the name; several users of one kernel may meet."""
    done = link(libraries, (f"{kernel}_c", f"{kernel}_cc"), way, order)
    assert done.returncode == 0, done.stderr
    assert must_run("./main", folder=libraries) == WORKSPACE[kernel]


@needs_nvcc
@pytest.mark.parametrize("way", ["static", "shared"])
@pytest.mark.parametrize("kernel", SCHEDULES)
def test_another_kernel_of_the_name_alone_does_not_link(libraries: Path, way: str, kernel: str) -> None:
    (other,) = SCHEDULES.keys() - {kernel}
    done = link(libraries, (f"{kernel}_c",), way, (other,))
    assert done.returncode != 0
    assert re.search("undefined reference to .ekc_net_workspace_bytes", done.stderr)


@needs_nvcc
def test_a_shared_library_shows_launchers_and_no_kernel(libraries: Path) -> None:
    """A kernel that another library may stand in for would be a mix-up when it is loaded."""
    shown = must_run("nm", "-D", "--defined-only", "libshared_two.so", folder=libraries)
    names = {line.split()[2] for line in shown.splitlines() if "net" in line}
    assert {re.sub("_[0-9a-f]{12}$", "_DIGEST", name) for name in names} == {
        *("ekc_net_launch", "ekc_net_launch_DIGEST"),
        *("ekc_net_workspace_bytes", "ekc_net_workspace_bytes_DIGEST"),
    }


@needs_nvcc
@pytest.mark.parametrize("compiler", [("gcc", "-std=c99", "-pedantic"), ("g++", "-xc++")])
def test_two_kernels_of_one_name_in_one_source_do_not_compile(
    libraries: Path, compiler: tuple[str, ...]
) -> None:
    flags = ("-Wall", "-Wextra", "-Wundef", "-Werror", "-fsyntax-only")
    (libraries / "same.c").write_text('#include "one/net.h"\n#include "one/net.h"\n')
    must_run(*compiler, *flags, "same.c", folder=libraries)
    (libraries / "both.c").write_text('#include "one/net.h"\n#include "two/net.h"\n')
    done = run(*compiler, *flags, "both.c", folder=libraries)
    assert done.returncode != 0
    assert "two kernels are called net: export one of them under another name" in done.stderr


@needs_nvcc
def test_a_user_in_cuda_is_held_to_its_kernel_too(libraries: Path) -> None:
    (libraries / "user.cu").write_text(USER.format(kernel="one", user="user"))
    flags = ("-Werror", "all-warnings", "-Xcompiler", "-Wall")
    must_run("nvcc", "-arch=sm_80", *flags, "-c", "user.cu", "-o", "user.o", folder=libraries)
    assert link(libraries, ("user",), "shared", ("two", "one")).returncode == 0
    assert link(libraries, ("user", "two_c"), "shared", ("two", "one")).returncode != 0


def test_names_say_what_a_kernel_is_and_differ() -> None:
    plain = ekc.matmul(64, 128, 32)
    biased = plain.epilogue(lambda c, bias: c + bias, bias=(128,))
    operators = [
        *(plain, biased, ekc.matmul(64, 128, 32, dtype="float16"), ekc.matmul(64, 128, 32, transpose_b=True)),
        *(ekc.matmul(64, 32, 128), ekc.conv2d(1, 3, 8, 8, out_channels=4, kernel=3), ekc.softmax((4, 9))),
    ]
    names = [make_kernel_name(op) for op in operators]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)
    assert names[0] == f"matmul_64x128x32_{plain.digest[:8]}"
    assert make_kernel_name(biased, "bert") == f"bert_matmul_epilogue_64x128x32_{biased.digest[:8]}"
    assert names[-2].startswith("conv2d_1x4x6x6x3x3x3_")
