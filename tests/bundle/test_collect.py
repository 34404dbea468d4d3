"""The kernels that are collected from a record file, and one line for each mistake."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekc.bundle import CollectedBundle, choose_points, collect_bundle, match_board
from ekc.cli import main
from ekc.codegen.library import template_values
from ekc.codegen.library.function_plan import NamedOperator
from ekc.codegen.library.kernels import BundleFunction
from ekc.codegen.library.write import build_texts, write_bundle
from ekc.errors import InvalidInput
from ekc.ir.schedule.schedule import Schedule
from ekc.search.data.selection import SelectionRule
from ekc.search.data.trial import Trial
from tests.bundle.conftest import OPERATORS, cut_digits


def test_each_operator_has_kernels_for_each_board(collected: CollectedBundle) -> None:
    bundle = collected.bundle
    names = [cut_digits(f.name) for f in bundle.functions]
    assert names == ["matmul_float16", "matmul_float32", "softmax_float32"]
    assert bundle.archs == ("sm_80", "sm_90a")
    assert not collected.missing
    for function in bundle.functions:
        for board in bundle.boards:
            own = [k for k in function.shapes[0].kernels if k.board == board]
            roles = [k.role for k in own]
            assert roles == ["both"] or (roles[0], roles[-1]) == ("latency", "energy")
            assert all(k.compiled.arch == board.arch and k.board.source == "simulated" for k in own)
    assert len({k.symbol for k in bundle.kernels}) == len(bundle.kernels)
    for kernel in bundle.kernels:
        assert kernel.symbol.startswith(f"ekc_net_K_{kernel.function}_{kernel.schedule.digest}")
        assert all(launch.name.startswith(kernel.symbol) for launch in kernel.compiled.launches)


def test_targets_and_layers_choose(records: Path) -> None:
    operators = [
        NamedOperator(OPERATORS[0], "layer1.0.conv-1"),
        NamedOperator(OPERATORS[0], "layer1.1.conv-1"),
        NamedOperator(OPERATORS[2], "head"),
    ]
    bundle = collect_bundle("net", records, operators=operators, targets=["h100"]).bundle
    assert [f.name for f in bundle.functions] == ["head", "layer1_0_conv_1", "layer1_1_conv_1"]
    assert {k.board.name for k in bundle.kernels} == {"h100"}
    # Layers of one operator share its kernels.
    assert bundle.functions[1].shapes == bundle.functions[2].shapes
    texts = build_texts(bundle)
    assert "Status layer1_1_conv_1(" in texts["include/ekc/net.hpp"]


def make_trial(number: int, latency_us: float, energy_uj: float) -> Trial:
    schedule = Schedule(OPERATORS[0]).split("i", (2 ** (1 + number % 5),))
    return Trial(schedule, "", "ok", latency_us * 1e-6, energy_j=energy_uj * 1e-6, metered=True)


def test_points_are_on_the_front() -> None:
    figures = [(10, 100), (10.2, 95), (10.3, 97), (10.4, 90), (12, 50)]
    trials = [make_trial(i, *pair) for i, pair in enumerate(figures)]
    points = choose_points(trials, SelectionRule("energy", 0.05))
    assert [(c.figures.latency_s, c.role) for c in points] == [
        (trials[0].latency_s, "latency"),
        (trials[1].latency_s, "between"),
        (trials[3].latency_s, "energy"),
    ]
    assert [c.role for c in choose_points(trials[:1], SelectionRule())] == ["both"]


@given(st.lists(st.tuples(st.floats(1, 2), st.floats(1, 2)), min_size=1, max_size=5), st.floats(0, 1))
def test_points_hold_fastest_and_least(figures: list[tuple[float, float]], slowdown: float) -> None:
    trials = [make_trial(i, *pair) for i, pair in enumerate(figures)]
    rule = SelectionRule("energy", slowdown)
    best, fastest = rule.select_winners(trials)
    points = choose_points(trials, rule)
    assert points[0].schedule == fastest.schedule
    assert best.schedule in [c.schedule for c in points]
    energies = [c.figures.energy_j for c in points]
    assert energies == sorted(energies, key=lambda e: -(e or 0))


@pytest.mark.parametrize(
    ("device", "board", "length"),
    [
        ("h100", "NVIDIA H100 80GB HBM3", 4),
        ("a100", "NVIDIA A100-SXM4-80GB", 4),
        ("a100-sxm", "NVIDIA A100-SXM4-80GB", 7),
        ("rtx2080ti", "NVIDIA GeForce RTX 2080 Ti", 9),
        ("a100", "NVIDIA A1000", 0),
        ("h100", "NVIDIA GH100", 0),
        ("h100", "", 0),
        ("", "NVIDIA H100", 0),
    ],
)
def test_boards_match_by_whole_words(device: str, board: str, length: int) -> None:
    assert match_board(device, board) == length


ERRORS = {
    "--name Net": "--name: 'Net' is not in lower case .* try 'net'",
    "--name 1net": "--name: '1net' is not an identifier .* try 'library_1net'",
    "--name explicit": "try 'explicit_kernels'",
    "--name net-2": "try 'net_2'",
    "--name class": "'class' has a meaning in C\\+\\+ already; try 'class_kernels'",
    "--name linux": "try 'linux_kernels'",
    "--name std": "try 'std_kernels'",
    f"--name {'n' * 41}": "41 characters, at most 40",
    "--version 1.2": "--version: '1.2' is not three whole numbers .* try 1.2.0",
    "--version v1.02.3": "try 1.2.3",
    "--targets rtx4090": "no measured schedule on 'rtx4090', only on a100, h100",
    "--targets h1oo": "did you mean 'h100'",
    "--targets a100,": "--targets: 'a100,' names no device between two commas",
    "--max-slowdown -1": "max_slowdown: -1.0 is outside 0 to 10",
    "--model missing.toml": "missing.toml cannot be read",
    "--records missing.db": "missing.db",
}


@pytest.mark.parametrize("options", ERRORS)
def test_mistakes_give_one_line(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str
) -> None:
    given = ["bundle", "--records", str(records), "--name", "net", "--out", str(tmp_path / "out")]
    assert main([*given, *options.split(" ", 1)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(ERRORS[options], error), error
    assert not (tmp_path / "out").exists()


def copy_records(records: Path, folder: Path, change: str) -> Path:
    """A copy of the record file whose rows of a100 are changed."""
    copied = folder / "changed.db"
    shutil.copy(records, copied)
    with closing(sqlite3.connect(copied)) as connection:
        connection.execute(f"update trials set {change} where device = 'a100'")
        connection.commit()
    return copied


def test_real_boards_come_first_and_are_named_by_a_part(records: Path, tmp_path: Path) -> None:
    board = "NVIDIA A100-SXM4-80GB"
    changed = copy_records(records, tmp_path, f"device = '{board}', simulated = 0, driver = '580.1'")
    bundle = collect_bundle("net", changed, targets=["h100", "a100"]).bundle
    assert [(b.name, b.arch, b.source) for b in bundle.boards] == [
        (board, "sm_80", "measured"),
        ("h100", "sm_90a", "simulated"),
    ]
    assert f'{{"{board}", "measured", 80, false, 0}}' in build_texts(bundle)["src/tables.h"]


def test_other_toolchain_is_taken_on_request_only(records: Path, tmp_path: Path) -> None:
    changed = copy_records(records, tmp_path, "nvrtc = '12.0, generator 5'")
    with pytest.raises(InvalidInput, match=r"a100 \(simulated\).*only under .*generator 5.*--any-toolchain"):
        collect_bundle("net", changed, targets=["a100"])
    bundle = collect_bundle("net", changed, targets=["a100"], any_toolchain=True).bundle
    assert all("generator 5" in k.figures.provenance["measured elsewhere"] for k in bundle.kernels)


def test_other_toolchain_is_marked_wherever_figures_are(records: Path, tmp_path: Path) -> None:
    changed = copy_records(records, tmp_path, "nvrtc = '12.0, generator 5'")
    bundle = collect_bundle("net", changed, any_toolchain=True).bundle
    texts = build_texts(bundle)
    marked = re.findall(
        r"a100 \(simulated\), measured elsewhere \(.*generator 5.*\): .* us", texts["include/ekc/net.hpp"]
    )
    own = [k for k in bundle.kernels if k.board.name == "a100"]
    assert len(marked) == len(own)
    assert "h100 (simulated), measured" not in texts["include/ekc/net.hpp"]
    rows = [line for line in texts["src/tables.h"].splitlines() if '"metered", "' in line]
    assert [("generator 5" in row) for row in rows] == [k.board.name == "a100" for k in bundle.kernels]


@pytest.mark.parametrize("kinds", ["kind = 'check'", "1"])
def test_schedules_that_all_failed_are_not_another_toolchain(
    records: Path, tmp_path: Path, kinds: str
) -> None:
    """A check found all wrong, after they were timed or before. Rows of another compiler are there too."""
    wrong = f"status = case when {kinds} then 'wrong result: 3 elements' else status end"
    wrong += f", kind = case when {kinds} and kind <> 'check' then 'failure' else kind end"
    changed = copy_records(records, tmp_path, wrong)
    with closing(sqlite3.connect(changed)) as connection:
        connection.execute(
            "update trials set nvrtc = '12.0' where device = 'a100' and schedule_digest = "
            "(select min(schedule_digest) from trials where device = 'a100' and kind <> 'check')"
        )
        unchecked = "schedule_digest not in (select schedule_digest from trials where kind = 'check')"
        connection.execute(f"delete from trials where device = 'a100' and nvrtc <> '12.0' and {unchecked}")
        connection.commit()
    failed = r"a100 \(simulated\).*: all \d+ schedules that were tried here failed \(\d+ wrong result\)"
    with pytest.raises(InvalidInput, match=failed) as caught:
        collect_bundle("net", changed, targets=["a100"])
    assert "any-toolchain" not in str(caught.value)
    found = collect_bundle("net", changed, targets=["h100"])
    assert not found.missing
    layer = NamedOperator(OPERATORS[0], "fc")
    with pytest.raises(InvalidInput, match=r"fc: matmul.*: all \d+ schedules that were tried here failed"):
        collect_bundle("net", changed, targets=["a100"], operators=[layer])


def test_board_of_unknown_architecture_is_refused(records: Path, tmp_path: Path) -> None:
    changed = copy_records(records, tmp_path, "device = 'Quadro X', simulated = 0")
    with pytest.raises(InvalidInput, match=r"architecture of 'Quadro X' is unknown; .*a100"):
        collect_bundle("net", changed)


def test_operator_that_a_board_lacks_is_listed(records: Path, tmp_path: Path) -> None:
    changed = copy_records(records, tmp_path, "status = status")
    with closing(sqlite3.connect(changed)) as connection:
        lacking = "device = 'h100' and operator like '%softmax%'"
        connection.execute(f"delete from trials where {lacking}")
        connection.commit()
    found = collect_bundle("net", changed)
    assert [re.sub("_[0-9a-f]{8}:", ":", line) for line in found.missing] == [
        "softmax_float32: softmax(X[8, 64] float32): no kernel for h100 (simulated)"
    ]
    assert len(found.bundle.functions) == 3
    found = collect_bundle("net", changed, targets=["h100"])
    assert [cut_digits(f.name) for f in found.bundle.functions] == ["matmul_float16", "matmul_float32"]
    head = [NamedOperator(OPERATORS[2], "head")]
    with pytest.raises(InvalidInput, match=r"softmax.* on h100 .*run ekc tune"):
        collect_bundle("net", changed, targets=["h100"], operators=head)
    # The h100 was measured with other operators, here and not elsewhere.
    message = r"no schedule of the layers on h100 \(simulated\) that was measured .* here; run ekc tune"
    with pytest.raises(InvalidInput, match=message):
        collect_bundle("net", changed, operators=head)


def test_layer_without_a_record_is_named(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = tmp_path / "layers.toml"
    layers.write_text(
        '[[layer]]\nname = "fc"\noperator = "matmul"\nm = 64\nn = 64\nk = 64\n'
        '[[layer]]\nname = "fc2"\noperator = "matmul"\nm = 65\nn = 64\nk = 64\n'
    )
    given = ["bundle", "--records", str(records), "--model", str(layers), "--name", "net"]
    assert main([*given, "--out", str(tmp_path / "out")]) == 2
    assert (
        "fc2: matmul(A[65, 64] float32, B[64, 64] float32): no measured schedule" in capsys.readouterr().err
    )


def test_layers_of_a_file_become_functions(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = tmp_path / "layers.toml"
    table = '[[layer]]\nname = "{}"\nmodel = "net"\noperator = "matmul"\nm = 64\nn = 64\nk = 64\n'
    layers.write_text(table.format("attention.query") + table.format("attention.key"))
    given = ["bundle", "--records", str(records), "--model", str(layers), "--name", "net", "--json"]
    assert main([*given, "--out", str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)["functions"]
    assert [f["name"] for f in found] == ["attention_key", "attention_query"]
    assert found[0]["kernels"] == found[1]["kernels"]


def test_kernels_are_split_into_files(collected: CollectedBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build_texts(collected.bundle)
    monkeypatch.setattr(template_values, "KERNELS_PER_FILE", 2)
    texts = build_texts(collected.bundle)
    sources = [path for path in texts if path.endswith(".cu")]
    assert {"src/net_sm_80.cu", "src/net_sm_80_2.cu"} <= set(sources)
    assert _list_launchers(texts) == _list_launchers(whole)
    for path in sources:
        assert path in texts["CMakeLists.txt"]
        assert path in texts["Makefile"]
        assert len(_list_launchers({path: texts[path]})) <= 2


def _list_launchers(texts: dict[str, str]) -> list[str]:
    """Definitions of launchers in the files of kernels, without the numbers within the file."""
    sources = [text for path, text in texts.items() if path.endswith(".cu")]
    lines = [line for text in sources for line in text.splitlines()]
    return sorted(
        line.split("{")[0] for line in lines if line.startswith("const ekc::net::runtime::Launcher")
    )


def test_folder_of_another_bundle_is_refused(collected: CollectedBundle, tmp_path: Path) -> None:
    write_bundle(collected.bundle, tmp_path)
    write_bundle(collected.bundle, tmp_path)
    with pytest.raises(InvalidInput, match="holds the library net; choose another folder for web"):
        write_bundle(replace(collected.bundle, name="web"), tmp_path)


def test_command_prints_and_writes(records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["bundle", "--records", str(records), "--name", "net", "--out", str(tmp_path)]
    assert main([*given, "--targets", "a100"]) == 0
    text = capsys.readouterr().out
    assert "a100 (simulated)" in text
    assert "h100" not in text
    assert not (tmp_path / "src/net_sm_90a.cu").exists()
    assert main([*given, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    names = [cut_digits(f["name"]) for f in facts["functions"]]
    assert names == ["matmul_float16", "matmul_float32", "softmax_float32"]
    assert all(Path(path).exists() for path in facts["written"])
    assert (tmp_path / "src/net_sm_90a.cu").exists()
    assert main([*given, "--targets", "a100"]) == 0
    assert not (tmp_path / "src/net_sm_90a.cu").exists()


def test_function_numbers_do_not_depend_on_others(collected: CollectedBundle) -> None:
    function = collected.bundle.functions[0]
    alone = BundleFunction(function.name, function.signature, function.shapes)
    assert alone.id == function.id
    assert len({f.id for f in collected.bundle.functions}) == 3


def test_schedule_of_another_operator_is_left_out_with_a_warning(records: Path, tmp_path: Path) -> None:
    changed = copy_records(records, tmp_path, "status = status")
    with closing(sqlite3.connect(changed)) as connection:
        other = "(select schedule from trials where operator like '%softmax%' limit 1)"
        where = "device = 'a100' and operator like '%float16%'"
        connection.execute(f"update trials set schedule = {other} where {where}")
        connection.commit()
    with pytest.warns(UserWarning, match="left out: it is not one of matmul"):
        found = collect_bundle("net", changed)
    assert [cut_digits(line.split(":")[0]) for line in found.missing] == ["matmul_float16"]


def test_timed_kernels_count_without_metered_ones(records: Path, tmp_path: Path) -> None:
    changed = copy_records(records, tmp_path, "status = status")
    with closing(sqlite3.connect(changed)) as connection:
        connection.execute("delete from trials where kind = 'metering'")
        connection.commit()
    bundle = collect_bundle("net", changed, targets=["a100"]).bundle
    figures = [kernel.figures for kernel in bundle.kernels]
    assert len(figures) == 3
    assert {(f.energy_j, f.energy_source) for f in figures} == {(None, "unknown")}
    fastest = collect_bundle("net", records, targets=["a100"]).bundle.kernels[0].figures.latency_s
    assert fastest == pytest.approx(bundle.kernels[0].figures.latency_s, rel=0.05)
