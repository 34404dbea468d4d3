"""Generated CUDA text: it compiles, computes wide indices in 64 bits, and refuses schedules that break a
rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ekc.ir.operators as o
from ekc.codegen import nvrtc
from ekc.codegen.generate import assemble_kernel, generate
from ekc.errors import ScheduleError
from ekc.ir.schedule.schedule import Schedule
from tests.codegen import samples
from tests.codegen.helpers import compile_sample, drawn, grouped_conv2d, named
from tests.ir.test_refusals import read_mistakes
from tests.ir.warpgroup_examples import HOPPER, half_group_matmul


@pytest.fixture(scope="module")
def design() -> Schedule:
    return samples.matmul(4096, 4096, 4096)


def test_tiled_matmul_has_no_spills_and_wide_accesses(design: Schedule) -> None:
    made = generate(design)
    kernel = assemble_kernel(design, made, nvrtc.compile(made.source, "sm_80"))
    (resources,) = kernel.resources
    assert (resources.spill_store_bytes, resources.spill_load_bytes, resources.stack_bytes) == (0, 0, 0)
    assert resources.shared_bytes == 2 * 4 * (8 * 132 + 8 * 128)
    assert resources.registers <= 128
    assert kernel.launches[0].grid == (32, 32, 1)
    assert kernel.launches[0].block == (16, 16, 1)
    assert kernel.launches[0].arguments == ("A", "B", "C")
    assert kernel.flops == 2 * 4096.0**3
    assert kernel.workspace_bytes == 0
    assert len(re.findall(r"ld\.shared\.v4", kernel.ptx)) >= 4 * 8
    assert re.search(r"ld\.global\S*\.v4", kernel.ptx)
    assert re.search(r"st\.global\S*\.v4", kernel.ptx)
    assert not re.search(r"ld\.shared\.[bfsu]\d", kernel.ptx)
    assert not re.search(r"ld\.global(\.nc)?\.[bfsu]\d", kernel.ptx)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_samples_compile_for_every_architecture(design: Schedule, arch: str) -> None:
    for schedule in (design, samples.matvec(64, 256, dtype="float16")):
        assert nvrtc.compile(generate(schedule).source, arch).cubin


def test_wgmma_text_refuses_other_targets_in_one_line() -> None:
    """Without the check, ptxas would name a line of PTX."""
    source = generate(half_group_matmul(), HOPPER).source
    assert nvrtc.compile(source, "sm_90a").cubin
    for arch in ("sm_90", "sm_100a"):
        with pytest.raises(nvrtc.NvrtcError, match="sm_90a only: compile this file for that target"):
            nvrtc.compile(source, arch)


SAMPLES = {
    "matmul": lambda: samples.matmul(200, 130, 33),
    "conv2d": samples.conv2d,
    "matvec": lambda: samples.matvec(41, 100, dtype="float16"),
    "relu_matmul": samples.relu_matmul,
    "two_launches": samples.two_launches,
    "copy": lambda: samples.copy(3, 264, vector=4),
    "gelu": samples.matmul_gelu,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_compile_without_warnings(name: str) -> None:
    assert "warning" not in nvrtc.compile(generate(SAMPLES[name]()).source).log


def test_each_compute_is_a_launch_with_intermediates_in_workspace() -> None:
    schedule = samples.two_launches()
    kernel = compile_sample(schedule)
    assert [launch.name for launch in kernel.launches] == ["ekc_act_D_0", "ekc_act_D_1"]
    assert [launch.arguments for launch in kernel.launches] == [("A", "C"), ("C", "B", "D")]
    assert kernel.workspace_bytes == 13 * 10 * 4
    assert len(kernel.resources) == 2


@pytest.mark.parametrize(
    ("axes", "k", "inputs", "output"),
    [
        (("round", "lane"), "packed", ("xor", "float4"), "fmaxf"),
        (("i", "i_0"), "k_0_now", ("A_shared", "A"), "A_shared_next"),
        (("element_", "d0"), "typename", ("nullptr", "NULL"), "to_half"),
        (("i", "i_"), "k", ("uint4", "dim3"), "asm"),
        (("linux", "NAN"), "k", ("A", "expf"), "ekc_named"),
        (("element", "thread"), "parity", ("buffer", "round"), "accumulator"),
    ],
)
def test_colliding_names_compile(axes: tuple[str, str], k: str, inputs: tuple[str, str], output: str) -> None:
    assert nvrtc.compile(generate(named(axes, k, inputs, output)).source).cubin


@pytest.mark.parametrize("text", ["Ak,kB->AB", "ak,kD->aD", "Ck,kC->C"])
def test_einsum_letters_of_tensor_names_compile(text: str) -> None:
    assert nvrtc.compile(generate(Schedule(o.einsum(text, (4, 4), (4, 4)))).source).cubin


def test_offsets_beyond_two_to_the_31_are_64_bit() -> None:
    s = samples.copy(2**16 - 1, 2**17)
    text = generate(s).source
    assert f"X[i * {2**17}LL + (j_0 * 32 + j_1) * 1LL]" in text
    assert re.search(r"mul\.wide|mad\.wide|shl\.b64", nvrtc.compile(text).ptx)


def test_long_axis_is_counted_in_64_bits() -> None:
    op = o.compute(
        "long_copy", axes={"i": 2**33 + 1}, inputs={"X": (2**33 + 1,)}, body=lambda X, i: X[i], output="Y"
    )
    text = generate(Schedule(op).split("i", (256,)).bind("i.0", "block.x").bind("i.1", "thread.x")).source
    assert f"if (i_0 * 256LL + i_1 * 1LL < {2**33 + 1})" in text
    assert nvrtc.compile(text).cubin
    assert "for (long long i = 0;" in generate(Schedule(op)).source


def test_axis_longer_than_its_tensor_is_counted_in_64_bits() -> None:
    """In int, an element past 2**31 would pass the guard `i < n`, and be read from before the tensor."""
    n = 2**30
    op = o.compute(
        "concat",
        axes={"i": 3 * n},
        inputs={"A": (n,), "B": (n,), "D": (n,)},
        body=lambda A, B, D, i: A[i] + B[i - n] + D[i - 2 * n],
        dtype="int8",
        out_dtype="int8",
    )
    text = generate(Schedule(op).split("i", (256,)).bind("i.0", "block.x").bind("i.1", "thread.x")).source
    assert f"i_0 * 256LL + i_1 * 1LL < {n} ? static_cast<int>(A[(i_0 * 256LL + i_1 * 1LL) * 1LL])" in text
    assert f"i_0 * 256LL + i_1 * 1LL - {2 * n} >= 0" in text


def test_partial_sum_that_leaves_int_is_64_bit() -> None:
    n = 2**30
    op = o.compute(
        "turned", axes={"i": n, "j": 2}, inputs={"X": (n,)}, body=lambda X, i, j: X[i * 3 + j - 3 * n]
    )
    assert f"i * 3LL + j * 1LL - {3 * n} >= 0" in generate(Schedule(op)).source


def test_long_axis_as_a_value_is_64_bit() -> None:
    op = o.compute("iota", axes={"i": 2**32}, inputs={}, body=lambda i: i * 0.5)
    text = generate(Schedule(op).split("i", (256,)).bind("i.0", "block.x").bind("i.1", "thread.x")).source
    assert "static_cast<float>(i_0 * 256LL + i_1 * 1LL)" in text


def test_quotient_of_a_long_index_in_an_epilogue_is_64_bit() -> None:
    """The index is divided in the epilogue only."""
    op = o.compute(
        "ends", axes={"i": 2**20}, inputs={"X": (2**20,)}, body=lambda X, i: X[i], reduce={"k": 1}
    ).then("Y", axes={"p": 2**20}, inputs={"s": (4,)}, body=lambda C, s, p: C[p] * s[p * 4096 // 2**30])
    text = generate(Schedule(op).cache_write("C").compute_inline("C")).source
    assert f"s[((i * 4096LL) / {2**30})]" in text


def test_fused_reduction_over_long_axes_is_not_unrolled() -> None:
    """Fully unrolled, a group norm's sum over 64 x 56 rows kept NVRTC busy for minutes."""

    def text(c: int, h: int) -> str:
        op = o.compute(
            "norm",
            axes={"n": 4},
            reduce={"c": c, "h": h, "w": 64},
            inputs={"X": (4, c, h, 64)},
            body=lambda X, n, c, h, w: X[n, c, h, w],
            output="total",
        ).then(
            "Y",
            axes={"a": 4, "b": c, "p": h, "q": 64},
            body=lambda X, total, a, b, p, q: X[a, b, p, q] - total[a],
        )
        s = Schedule(op).split("q", (32,)).reorder("a", "b", "p", "q.0", "q.1").bind("q.1", "thread.x")
        return generate(s.bind("a", "block.x").compute_at("total", None)).source

    assert re.search(r"#pragma unroll 1\s+for \(int c = 0; c < 64;", text(64, 56))
    assert re.search(r"#pragma unroll 1\s+for \(int h = 0; h < 56;", text(64, 56))
    assert re.search(r"#pragma unroll\s+for \(int c = 0; c < 2;", text(2, 4))


def test_lane_combination_is_named_in_a_comment() -> None:
    s = Schedule(o.reduce((8, 64), 1, "max")).split("k1", (32,)).bind("k1.1", "thread.x").cache_write("Y")
    assert "// max over 32 lanes" in generate(s).source


def test_grouped_conv2d_has_a_footprint() -> None:
    whole = {f.tensor: f.block_bytes for f in generate(grouped_conv2d()).launches[0].footprints}
    assert whole == {"X": 4 * 4 * 7 * 7, "W": 4 * 4 * 2 * 3 * 3, "Y": 4 * 4 * 7 * 7}


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 8))])
def test_random_schedules_compile(part: int) -> None:
    for schedule in drawn(20)[part::8]:
        made = generate(schedule)
        output = nvrtc.compile(made.source, "sm_80")
        assert set(output.resources) == {launch.name for launch in made.launches}, schedule.to_python()


def matmul(m: int = 8, n: int = 8, k: int = 8, dtype: str = "float32") -> Schedule:
    return Schedule(o.matmul(m, n, k, dtype=dtype))


def matvec_over_lanes(*factors: int, between: bool = False) -> Schedule:
    s = Schedule(o.matvec(8, 128)).split("k", factors).cache_write("y")
    names = [f"k.{i + 1}" for i in range(len(factors))]
    order = (names[0], "i", *names[1:]) if between else ("i", *names)
    s = s.reorder(*order, "k.0").bind("i", "thread.x" if between else "block.x")
    for name in names:
        s = s.bind(name, "thread.x")
    return s


def make_shifted_copy(by: int) -> Schedule:
    op = o.compute("shifted", axes={"i": 8, "j": 8}, inputs={"X": (8, 12)}, body=lambda X, i, j: X[i, j + by])
    return Schedule(op).cache_read("X", "shared", vector=4)


def matvec_with_row_threads(rows: int) -> Schedule:
    s = Schedule(o.matvec(rows, 64)).split("k", (8,)).reorder("k.0", "k.1", "i")
    return s.cache_write("y").bind("k.1", "thread.x").bind("i", "thread.x")


def fuse_softmax(rows: int, columns: int, warps: int) -> Schedule:
    s = Schedule(o.softmax((8, 64))).split("p0", (rows,)).split("p1", (columns,))
    s = s.reorder("p0.0", "p0.1", "p1.1", "p1.0").bind("p0.0", "block.x").bind("p0.1", "thread.x")
    return s.bind("p1.1", "thread.x").compute_at("total", None, warps).compute_at("top", None, warps)


CASES = read_mistakes(Path(__file__).with_name("mistakes.txt"))


@pytest.mark.parametrize("name", CASES)
def test_mistake_is_refused_in_one_line(name: str) -> None:
    text, message = CASES[name]
    with pytest.raises(ScheduleError) as caught:
        generate(eval(text, globals()))
    assert str(caught.value) == message


def test_loop_left_to_the_compiler_has_no_pragma() -> None:
    s = Schedule(o.matmul(64, 64, 64)).split("k", (16,)).reorder("i", "j", "k.0", "k.1").unroll("k.1", 0)
    lines = [line.strip() for line in generate(s.unroll("k.0", 2)).source.splitlines()]
    inner = next(n for n, line in enumerate(lines) if line.startswith("for (int k_1"))
    outer = next(n for n, line in enumerate(lines) if line.startswith("for (int k_0"))
    assert (lines[outer - 1], lines[inner - 1]) == ("#pragma unroll 2", lines[outer])


@pytest.mark.parametrize(
    ("unroll", "pragma"), [(0, "#pragma unroll 4"), (6, "#pragma unroll 6"), (16, "#pragma unroll")]
)
def test_rounds_of_a_copy_are_written_out_as_asked(unroll: int, pragma: str) -> None:
    s = (
        Schedule(o.matmul(64, 64, 64))
        .split("k", (16,))
        .split("i", (32,))
        .reorder("i.0", "j", "k.0", "i.1", "k.1")
    )
    s = s.bind("i.0", "block.x").split("j", (32,)).reorder("i.0", "j.0", "j.1", "k.0", "i.1", "k.1")
    s = (
        s.bind("j.0", "block.y")
        .bind("j.1", "thread.x")
        .cache_write("C")
        .cache_read("A", "shared", at="k.0", unroll=unroll)
    )
    lines = [line.strip() for line in generate(s).source.splitlines()]
    assert lines[lines.index("for (int round = 0; round < 16; ++round) {") - 1] == pragma
