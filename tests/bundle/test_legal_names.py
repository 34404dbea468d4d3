"""Names that C++ gives a meaning, and libraries whose names run into each other, in real builds."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

import ekc
import ekc.ir.operators as o
from ekc.codegen.library.build import KernelChoice, build_library, export
from ekc.codegen.library.function_plan import NamedOperator
from ekc.codegen.library.kernels import Bundle, KernelFigures, TargetBoard
from ekc.codegen.library.legal_names import check_bundle_name
from ekc.codegen.library.naive_kernels import estimate_tolerance
from ekc.codegen.library.write import write_bundle
from ekc.errors import InvalidInput
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule
from tests.codegen.helpers import export_sample, must_run

A100, H100 = TargetBoard("a100", "sm_80", True), TargetBoard("h100", "sm_90a", True)
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")
WORDS = """
alignof and_eq asm bitand char8_t compl concept const_cast consteval constinit co_await decltype dynamic_cast
explicit friend mutable noexcept nullptr or_eq requires static_assert thread_local typeid typename wchar_t xor
runtime fake offsetof major errno linux A X Y C bias half list detail Status std
"""


def make_bundle(name: str, layers: list[str], board: TargetBoard = A100) -> Bundle:
    """A library of one operator under the names of layers, without figures."""
    op = ekc.softmax((2, 4))
    choice = KernelChoice(make_naive_schedule(op), KernelFigures(1e-5, 1e-3))
    return build_library(name, [NamedOperator(op, layer) for layer in layers], {op.digest: [choice]}, board)


def run_host_test(folder: Path, name: str) -> str:
    flags = ("-std=c++20", *WARNINGS, "-Iinclude", "-Isrc")
    must_run("g++", *flags, f"tests/{name}_host_test.cpp", f"src/{name}.cpp", "-o", "test", folder=folder)
    return must_run("./test", folder=folder)


def test_words_of_cpp_may_be_names_of_layers(tmp_path: Path) -> None:
    write_bundle(make_bundle("words", WORDS.split()), tmp_path, cubin=True)
    assert "all right" in run_host_test(tmp_path, "words")


@pytest.mark.parametrize(
    "word", ["alignof", "explicit", "xor", "co_await", "offsetof", "linux", "std", "ekc"]
)
def test_words_of_cpp_are_no_names_of_libraries(word: str) -> None:
    with pytest.raises(InvalidInput, match=f"--name: '{word}' has a meaning .* try '{word}_kernels'"):
        check_bundle_name(word)


def test_words_of_cpp_may_be_names_of_tensors_and_axes(tmp_path: Path) -> None:
    op = o.compute(
        "typeid",
        axes={"explicit": 8},
        inputs=dict.fromkeys(("typename", "nullptr", "typeid_float32", "friend"), (8,)),
        body=lambda typename, nullptr, typeid_float32, friend, explicit: (
            typename[explicit] + nullptr[explicit] * typeid_float32[explicit] + friend[explicit]
        ),
    )
    export_sample(Schedule(op).bind("explicit", "thread.x"), tmp_path)
    assert "all right" in run_host_test(tmp_path, "typeid_library")


def test_host_test_of_a_library_for_one_architecture_alone(tmp_path: Path) -> None:
    write_bundle(make_bundle("hopper", ["head"], H100), tmp_path, cubin=True)
    assert "all right" in run_host_test(tmp_path, "hopper")


def test_symbols_of_libraries_differ() -> None:
    """Library and function may be cut in several ways."""
    names = [
        *(("res", "layer1_fc"), ("res_layer1", "fc"), ("res_k", "k_fc"), ("res", "k_k_fc")),
        *(("res_k_k", "fc"), ("res", "K_fc"), ("res", "N_fc")),
    ]
    symbols = [{k.symbol for k in make_bundle(name, [layer]).kernels} for name, layer in names]
    for one, other in itertools.combinations(symbols, 2):
        assert not one & other


def test_files_of_the_user_are_kept(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text("project(mine)\n")
    bundle = make_bundle("net", ["head"])
    with pytest.raises(InvalidInput, match=r"has a CMakeLists.txt that ekc did not write; .*such as .*/net"):
        write_bundle(bundle, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["CMakeLists.txt"]
    (tmp_path / "net" / "src" / "net_sm_80.cache").mkdir(parents=True)
    (tmp_path / "net" / "src" / "net_sm_old.cpp").write_bytes(b"\xff")
    write_bundle(bundle, tmp_path / "net")
    assert (tmp_path / "net" / "src" / "net_sm_old.cpp").read_bytes() == b"\xff"


def test_make_installs_into_a_stage_and_a_folder_with_spaces(tmp_path: Path) -> None:
    write_bundle(make_bundle("net", ["head"]), tmp_path / "a b", cubin=True)
    words = ("make", "-j2", "install", "PREFIX=/opt/my kernels", f"DESTDIR={tmp_path}/stage area")
    must_run(*words, folder=tmp_path / "a b")
    installed = tmp_path / "stage area" / "opt" / "my kernels"
    files = {str(p.relative_to(installed)) for p in installed.rglob("*") if p.is_file()}
    assert files == {"lib/libekc_net.a", "include/ekc/net.h", "include/ekc/net.hpp", "share/ekc/net.json"}


def test_tolerance_of_long_axes_takes_little_memory(tmp_path: Path) -> None:
    """A sum of 2^40 terms is not compared; an output of 2^32 elements is sampled."""
    long = ekc.reduce((1 << 40,))
    assert estimate_tolerance(make_naive_schedule(long)).difference == math.inf
    wide = ekc.matmul(1 << 30, 1, 1)
    assert 0 < estimate_tolerance(make_naive_schedule(wide)).difference < 1e-3
    paths = export(
        [KernelChoice(make_naive_schedule(long), KernelFigures())], A100, tmp_path, name="long_sum"
    )
    assert any("infinity()" in p.read_text() for p in paths)
