"""Readers of record files, `ekc best` and `ekc export` above all; `--any-toolchain`."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

import ekc
from ekc import devices
from ekc.codegen.generate import describe_toolchain
from tests.cli.conftest import CommandLine
from tests.runtime.test_atomic import matvec_shared
from tests.search.helpers import tune

OP, SIZE = ekc.matmul(32, 32, 32), "matmul 32 32 32"
WHERE = "--records t.db --target h100"
COMMANDS = (
    f"best {SIZE}",
    f"export {SIZE} --out o",
    f"run {SIZE}",
    f"show {SIZE}",
    f"check {SIZE}",
    f"explain naive best {SIZE}",
)
commands = pytest.mark.parametrize("command", COMMANDS, ids=lambda line: str(line).split()[0])


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record file of a short run on h100."""
    file = tmp_path_factory.mktemp("records") / "t.db"
    tune(OP, target="h100", trials=4, records=file)
    return file


@pytest.fixture
def records(tuned: Path, cli: CommandLine) -> Path:
    """A copy of the record file, t.db."""
    return Path(shutil.copy(tuned, "t.db"))


@pytest.fixture
def old(records: Path) -> Path:
    """t.db as a run with an older NVRTC would have left it."""
    with sqlite3.connect(records) as connection:
        connection.execute("update trials set nvrtc = '13.0, generator 3'")
    connection.close()
    return records


def test_best_show_and_export_read_a_record_file(cli: CommandLine, records: Path) -> None:
    assert "h100 (simulated)" in cli(f"best {SIZE} {WHERE}").out
    best = cli.json(f"best {SIZE} {WHERE}")
    assert best["metered"]
    assert cli.json(f"show {SIZE} {WHERE}")["digest"] == best["digest"]
    exported = cli.json(f"export {SIZE} {WHERE} --out o")["exported"]
    assert "o/src/matmul_sm_90a.cu" in exported
    assert "h100 (simulated)" in Path("o/include/ekc/matmul.hpp").read_text()
    assert cli.json("show --schedule o/matmul.json")["digest"] == best["digest"]
    cli(f"run {SIZE} {WHERE}")


def test_best_follows_the_objective(cli: CommandLine, records: Path) -> None:
    by_energy, by_latency = "--max-slowdown 10", "--objective latency"
    fast = cli.json(f"best {SIZE} {WHERE} {by_latency}")["digest"]
    multiply_energy(records, fast)
    thrifty = cli.json(f"best {SIZE} {WHERE} {by_energy}")["digest"]
    assert thrifty != fast
    for chosen, digest in ((by_energy, thrifty), (by_latency, fast)):
        assert cli.json(f"best {SIZE} {WHERE} {chosen}")["digest"] == digest
        assert cli.json(f"export {SIZE} {WHERE} {chosen} --out o")["digest"] == digest
        assert cli.json(f"explain {digest} best {WHERE} {chosen}")["difference_j"] == 0
    assert "by latency" in Path("o/src/matmul_sm_90a.cu").read_text()
    assert "best by latency (B)" in cli(f"explain naive best {SIZE} {WHERE} {by_latency}").out
    assert "by energy, at most 1000 % slower" in cli(f"best {SIZE} {WHERE} {by_energy}").out


def multiply_energy(records: Path, digest: str) -> None:
    """Multiply power and energy of a recorded schedule by ten."""
    with sqlite3.connect(records) as connection:
        query = "select id, payload from trials where kind = 'metering' and schedule_digest = ?"
        for number, text in connection.execute(query, (digest,)).fetchall():
            payload = json.loads(text)
            payload |= {name: 10 * payload[name] for name in ("power_w", "energy_j")}
            connection.execute("update trials set payload = ? where id = ?", (json.dumps(payload), number))
    connection.close()


def test_best_notes_atomic_sums(cli: CommandLine) -> None:
    given = matvec_shared(2048, columns=4096)
    tune(given.op, trials=1, start=[given], objective="latency", records="t.db")
    out = cli("best matvec 64 4096 --records t.db --target a100").out
    assert '.atomic("y")' in out
    assert "results differ from run to run by rounding" in " ".join(out.split())


def test_export_without_figures_notes_it(cli: CommandLine) -> None:
    assert "ekc: the naive kernel, as neither" in cli(f"export {SIZE} --out o").err
    assert "not measured" in Path("o/include/ekc/matmul.hpp").read_text()


def test_folder_of_another_library_is_refused_before_the_work(cli: CommandLine) -> None:
    cli("export matmul 8 8 8 --out o")
    for command in ("export", "tune --trials 2"):
        name, options = command.split()[0], command.partition(" ")[2]
        found = cli(f"{name} matmul 16 8 8 --out o --name wide {options}", status=2)
        assert found.err.endswith("ekc: o holds the library matmul; choose another folder for wide\n")


def test_embedded_machine_code(cli: CommandLine) -> None:
    cli("export matmul 8 8 8 --cubin --name eight")
    assert "std::uint64_t cubin_0[]" in Path("ekc-out/eight/src/eight_sm_80.cpp").read_text()


# Measured under other conditions


@commands
def test_commands_without_any_toolchain_describe_the_file(command: str, old: Path, cli: CommandLine) -> None:
    line = cli.refusal(f"{command} {WHERE}")
    assert f"was made with NVRTC {describe_toolchain()}; it holds " in line
    assert " with NVRTC 13.0, generator 3; --any-toolchain " in line


@commands
def test_any_toolchain_takes_the_schedule(command: str, old: Path, cli: CommandLine) -> None:
    cli(f"{command} {WHERE} --any-toolchain")
    answer = cli.json(f"{command} {WHERE} --any-toolchain")
    schedule = ekc.best(OP, old, "h100", any_toolchain=True).schedule.digest
    assert answer.get("digest", answer.get("digest_b")) == schedule
    if "origin" in answer:
        assert ", measured elsewhere: h100 (simulated), NVRTC 13.0, generator 3, " in answer["origin"]


def test_figures_measured_elsewhere_are_marked(old: Path, cli: CommandLine) -> None:
    out = cli(f"best {SIZE} {WHERE} --any-toolchain").out
    assert "Measured elsewhere: these figures are not of this device and toolchain." in out
    assert "measured elsewhere: h100 (simulated), NVRTC 13.0, generator 3, " in out
    assert f"afresh for {devices.open('h100').arch} with NVRTC {describe_toolchain()}" in out
    cli(f"export {SIZE} {WHERE} --any-toolchain --out o")
    source = Path("o/src/matmul_sm_90a.cu").read_text()
    assert "// device: h100 (simulated), NVRTC 13.0, generator 3, " in source
    assert "mJ a call (metered elsewhere)" in source
    assert "// result: not executed" in source


def test_figures_of_these_conditions_are_not_marked(records: Path, cli: CommandLine) -> None:
    assert "elsewhere" not in cli(f"best {SIZE} {WHERE} --any-toolchain").out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (f"show {SIZE} --any-toolchain", "add --records FILE"),
        ("explain naive abcd1234 --records r.db --any-toolchain", "neither A nor B is best or fastest"),
    ],
)
def test_any_toolchain_without_choice_is_refused(command: str, words: str, cli: CommandLine) -> None:
    assert words in cli.refusal(command)
