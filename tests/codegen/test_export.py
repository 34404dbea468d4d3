"""A library of one kernel: it describes the kernel, survives odd names, and fails in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ekc
import ekc.ir.operators as o
from ekc.codegen.library.build import KernelChoice, export
from ekc.codegen.library.kernels import KernelFigures, TargetBoard
from ekc.codegen.library.legal_names import make_library_name
from ekc.errors import InvalidInput
from ekc.ir.schedule.schedule import Schedule
from tests.codegen import samples
from tests.codegen.helpers import WARNINGS, export_sample, must_run, needs_nvcc

A100 = TargetBoard("a100", "sm_80", True)


def list_files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_files_describe_the_kernel(tmp_path: Path) -> None:
    schedule = samples.matvec(40, 100, dtype="float16")
    facts = {"device": "a100 (simulated), 1275 MHz", "note": "1.25 mJ */ #error\n"}
    figures = KernelFigures(12.5e-6, 1.25e-3, True, facts)
    paths = export([KernelChoice(schedule, figures)], A100, tmp_path)
    assert [p.relative_to(tmp_path) for p in paths[:1]] == [Path("src/matvec_sm_80.cu")]
    assert {str(p.relative_to(tmp_path)) for p in paths} == list_files(tmp_path)
    header = (tmp_path / "include/ekc/matvec.hpp").read_text()
    for line in ("A: A of float16, rank 2, read", "y: y of float16, rank 1, written", "(40, 100)"):
        assert f"///   {line}" in header
    assert "///       a100 (simulated): 12.5 us, 1.25 mJ (metered)\n" in header
    source = paths[0].read_text()
    assert "// a100 (simulated), matvec_float16, 40x100\n" in source
    assert "// device: a100 (simulated), 1275 MHz\n// note: 1.25 mJ * / #error\n" in source
    (record,) = json.loads((tmp_path / "matvec.json").read_text())["kernels"]
    assert record["provenance"] == facts
    assert (record["latency_s"], record["energy_j"]) == (12.5e-6, 1.25e-3)
    assert (record["source"], record["energy_source"]) == ("simulated", "metered")
    assert record["launches"][0]["grid"] == [10, 1, 1]
    assert Schedule.from_json(json.dumps(record["schedule"])) == schedule


@pytest.mark.parametrize(
    ("figures", "text", "source"),
    [
        (KernelFigures(), "not measured", "unknown"),
        (KernelFigures(1e-5), "10 us\n", "unknown"),
        (KernelFigures(1e-5, 2e-3), "10 us, 2 mJ (predicted)\n", "predicted"),
    ],
)
def test_missing_figures_are_said_to_be(
    tmp_path: Path, figures: KernelFigures, text: str, source: str
) -> None:
    export([KernelChoice(samples.copy(3, 64), figures)], A100, tmp_path)
    assert f"a100 (simulated): {text}" in (tmp_path / "include/ekc/copy.hpp").read_text()
    (record,) = json.loads((tmp_path / "copy.json").read_text())["kernels"]
    assert (record["latency_s"], record["energy_j"]) == (figures.latency_s, figures.energy_j)
    assert record["energy_source"] == source
    # Selection, with no figure to compare, still finds the kernel.
    flags = ("-std=c++17", *WARNINGS, "-Iinclude", "-Isrc")
    must_run("g++", *flags, "tests/copy_host_test.cpp", "src/copy.cpp", "-o", "host_test", folder=tmp_path)
    assert "all right" in must_run("./host_test", folder=tmp_path)


def test_second_export_replaces_the_first(tmp_path: Path) -> None:
    small, large = samples.copy(3, 64), samples.copy(3, 128)
    export_sample(small, tmp_path / "a" / "b")
    before = list_files(tmp_path)
    export_sample(large, tmp_path / "a" / "b")
    assert list_files(tmp_path) == before
    assert "(3, 128)" in (tmp_path / "a" / "b" / "include/ekc/copy.hpp").read_text()
    with pytest.raises(InvalidInput, match=r"holds the library copy; choose another folder for other"):
        export_sample(large, tmp_path / "a" / "b", "other")


def test_sources_of_the_other_form_are_removed(tmp_path: Path) -> None:
    choice = KernelChoice(samples.copy(3, 64), KernelFigures())
    export([choice], A100, tmp_path)
    (tmp_path / "src/copy_sm_80_mine.cpp").write_text("// Not a file of ekc.\n")
    export([choice], A100, tmp_path, cubin=True)
    sources = {p.name for p in (tmp_path / "src").iterdir()}
    assert sources >= {"copy_sm_80.cpp", "copy_sm_80_mine.cpp"}
    assert "copy_sm_80.cu" not in sources


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nothing"])
def test_unwritable_folder_is_refused_in_one_line(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(InvalidInput, match=r"cannot write into .*; choose another folder") as caught:
        export_sample(samples.copy(3, 64), tmp_path / place)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "file").read_text() == "kept"


def test_failed_export_leaves_no_partial_file(tmp_path: Path) -> None:
    (tmp_path / "src" / "copy_sm_80.cu").mkdir(parents=True)
    with pytest.raises(InvalidInput, match="Is a directory"):
        export_sample(samples.copy(3, 64), tmp_path)
    assert not list_files(tmp_path)


CALLER = """
#include <cmath>
#include <cstdio>
#include <ekc/named.hpp>
bool call(const float* a, float* c)
{
    const ekc::named::named_float32_extents extents{8};
    return ekc::named::named_float32(extents, a, a, a, a, a, a, a, c).ok();
}
"""


@needs_nvcc
def test_names_of_tensors_do_not_collide(tmp_path: Path) -> None:
    """Neither with names of the library nor with macros."""
    op = o.compute(
        "named",
        axes={"EOF": 8},
        inputs=dict.fromkeys(("status", "workspace", "M_PI", "NULL", "linux", "options_", "Status"), (8,)),
        body=lambda status, workspace, M_PI, NULL, linux, options_, Status, EOF: (
            status[EOF] + workspace[EOF] * M_PI[EOF] + NULL[EOF] * linux[EOF] + options_[EOF] * Status[EOF]
        ),
    )
    source = export_sample(Schedule(op).bind("EOF", "thread.x"), tmp_path)
    (tmp_path / "main.cpp").write_text(CALLER)
    must_run("g++", "-std=gnu++17", *WARNINGS, "-Iinclude", "-fsyntax-only", "main.cpp", folder=tmp_path)
    flags = ("-arch=sm_80", "-std=c++17", "-Werror", "all-warnings", "-c")
    must_run("nvcc", *flags, source, "-o", "kernel.o", folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("matmul", "matmul"),
        ("act_D", "act_d"),
        ("2layers.toml", "library_2layers_toml"),
        ("class", "class_library"),
        ("linux", "linux_library"),
        ("_", "library"),
        ("Ünïcode", "n_code"),
        ("x" * 60, "x" * 40),
        ("__a__b__", "a_b"),
    ],
)
def test_names_of_libraries_are_made_legal(text: str, name: str) -> None:
    assert make_library_name(text) == name


@pytest.mark.parametrize("name", ["Matmul", "a-b", "", "a__b", "std", "int"])
def test_given_name_is_checked(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match=r"--name: .* try '"):
        export_sample(samples.copy(3, 64), tmp_path, name)
    assert not list_files(tmp_path)


def test_result_exports_its_best_kernel(tmp_path: Path) -> None:
    result = ekc.tune(ekc.matmul(16, 16, 16), target="h100", trials=2, progress=False)
    paths = result.export(tmp_path, name="small", cubin=True)
    assert paths[0] == tmp_path / "src" / "small_sm_90a.cpp"
    (record,) = json.loads((tmp_path / "small.json").read_text())["kernels"]
    assert record["digest"] == result.best.schedule.digest
    assert (record["board"], record["arch"], record["energy_j"]) == ("h100", "sm_90a", result.best.energy_j)
    assert record["provenance"] == result.provenance()
