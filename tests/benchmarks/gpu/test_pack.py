"""A tiny pack: made, killed and made again, read with checks, measured on another device, compared."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ekc
from benchmarks.gpu import pack as part
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.items import make_matmul
from benchmarks.gpu.kit import Kit
from benchmarks.gpu.packs import __main__ as command
from benchmarks.gpu.packs import compare, make, rule
from benchmarks.gpu.packs.file import (
    PackedKernel,
    PackHead,
    read_pack,
    write_pack,
)
from benchmarks.gpu.packs.predictions import (
    FIGURES,
    FOLDER,
    OperatorPredictions,
    collect_predictions,
    read_predictions,
    write_predictions,
)
from ekc import devices
from ekc.codegen.compiled import CompiledKernel, Launch, Resources
from ekc.devices.recording import read_recording
from ekc.devices.simulated.device import SimulatedDevice
from ekc.errors import RecordError
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.schedule.schedule import Schedule
from ekc.processes.pool import WorkerThreads
from tests.benchmarks.helpers import ROOT
from tests.scripted.cuda.node import ScriptedNode

COUNT = 10
WORDS = ("--small", "--count", str(COUNT), "--device", "h100", "--out")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A pack of ten kernels of a small operator, for the simulated h100."""
    file = tmp_path_factory.mktemp("packs") / "tiny.pack"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "list_small_items", lambda: [make_matmul(64, 64, 64, "float32")])
        # Processes, which take seconds to start, are those of the slow test.
        patch.setattr(make, "_open_pool", lambda: WorkerThreads(1))
        assert command.main((*WORDS, str(file))) == 0
        yield file


def _make_kernel(digest: str, stratum: str = rule.RANDOM, cubin: bytes = b"\x7fELF") -> PackedKernel:
    launch = Launch("ekc_f", (2, 1, 1), (32, 1, 1), 0, ("A", "C"), (64, 64))
    resources = Resources(16, 0, 0, 0, 0)
    return PackedKernel(digest, '{"steps":[]}', "s", stratum, {"fma": 1.5}, (launch,), (resources,), 0, cubin)


def _file(
    times: list[float], joules: list[float], sustained: list[float] | None = None
) -> OperatorPredictions:
    names = tuple(f"{n:016x}" for n in range(len(times)))
    columns = times, sustained or times, joules, times
    figures = dict(zip(FIGURES, map(np.array, columns), strict=True))
    steps, structures = ("{}",) * len(names), ("s",) * len(names)
    return OperatorPredictions("op", names, names, steps, structures, {rule.RANDOM: len(names)}, figures)


def test_strata_add_up() -> None:
    for count in (1000, 24, 10, 1):
        assert sum(rule.count_strata(count).values()) == count
    assert rule.count_strata(1000) == {"naive": 1, "latency": 200, "energy": 200, "near": 350, "random": 249}


def test_rule_takes_the_next_where_a_kernel_fails_or_is_a_repeat() -> None:
    drawn = {n: rule.Drawn(n, "s", rule.RANDOM) for n in "abcdef"}
    lists = {"latency": [drawn["a"], drawn["b"]], "random": [drawn["b"], *(drawn[n] for n in "cdef")]}
    counts = {"latency": 2, "random": 2}
    chosen, missing = make.choose_kernels(lists, counts, {})
    assert not chosen
    assert [one.schedule for one in missing] == list("abcd")

    def compiled(text: str) -> make.Compiled:
        return make.Compiled(_make_kernel(text), None, text)

    done = {
        "a": compiled("1"),
        "b": make.Compiled(None, None, "", "no"),
        "c": compiled("1"),
        "d": compiled("4"),
    }
    chosen, missing = make.choose_kernels(lists, counts, done)
    assert [one.text for one in chosen] == ["1", "4"]
    assert [one.schedule for one in missing] == ["e", "f"], "the search has one less, so one more at random"
    done["e"] = compiled("5")
    chosen, missing = make.choose_kernels(lists, counts, done)
    assert [(one.text, one.kernel.stratum) for one in chosen if one.kernel] == [
        ("1", "latency"),
        ("4", "random"),
        ("5", "random"),
    ]
    assert [one.schedule for one in missing] == ["f"]


def test_small_pack_holds_what_a_gpu_needs(made: Path) -> None:
    found = read_pack(made)
    assert found.head.arch == "sm_90a"
    for number, op in enumerate(found.operators):
        kernels = found.read_kernels(number)
        assert [k.stratum for k in kernels].count(rule.NAIVE) == 1
        assert len({k.digest for k in kernels}) == len(kernels) == COUNT
        for packed in kernels[:3]:
            schedule = packed.make_schedule(op)
            here = ekc.compile(schedule, arch="sm_90a").compiled
            kernel = packed.make_kernel(op, found.head.arch, found.head.nvrtc)
            assert (kernel.cubin, kernel.inputs, kernel.resources) == (
                here.cubin,
                here.inputs,
                here.resources,
            )
            assert kernel.launches == tuple(replace(launch, footprints=()) for launch in here.launches)


def test_predictions_are_those_of_the_model(made: Path) -> None:
    filed, pack = read_predictions(made.parent / "h100.json.gz"), read_pack(made)
    assert filed.conditions["clock"] == "fixed 1980 MHz"
    device = devices.open("h100@no-residual").at_clock(1980)
    for number, claims in enumerate(filed.operators):
        kernels = pack.read_kernels(number)
        assert claims.schedules == tuple(k.digest for k in kernels)
        assert sum(claims.strata.values()) == len(kernels)
        kernel = ekc.compile(kernels[2].make_schedule(pack.operators[number]), arch="sm_90a").compiled
        assert claims.figures["sustained_s"][2] == pytest.approx(device.time(kernel).latency_s, rel=0.01)
        assert claims.first_by_time == claims.schedules[int(np.argmin(claims.figures["sustained_s"]))]


def test_second_run_makes_the_same_pack(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = made.read_bytes()
    words = (*WORDS, str(made))
    assert command.main(words) == 0
    assert made.read_bytes() == before
    assert "h100.json.gz: the same" in capsys.readouterr().out
    assert command.main((*words, "--seed", "1")) == 2
    assert "was begun under other conditions" in capsys.readouterr().err


def test_another_machine_makes_the_same_pack_from_the_predictions(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Searches find other schedules there, and NVRTC gives other code at first."""
    monkeypatch.setattr(make, "_draw_all", lambda *_: pytest.fail("drew schedules"))
    kept, compiles = make.compile_schedule, []

    def compile_otherwise(schedule: Schedule, arch: str, limits: LaunchLimits) -> CompiledKernel:
        compiles.append(schedule.digest)
        return replace(kept(schedule, arch, limits), cubin=b"other code")

    monkeypatch.setattr(make, "compile_schedule", compile_otherwise)
    (tmp_path / "h100.json.gz").write_bytes((made.parent / "h100.json.gz").read_bytes())
    assert command.main((*WORDS, str(tmp_path / "tiny.pack"))) == 0
    assert "h100.json.gz: the same" in capsys.readouterr().out
    assert (tmp_path / "tiny.pack").read_bytes() == made.read_bytes()
    assert len(compiles) == COUNT


def test_code_that_does_not_come_is_counted(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    filed = read_predictions(made.parent / "h100.json.gz")
    (mine,) = filed.operators
    changed = replace(mine, codes=("0" * 16, *mine.codes[1:]))
    write_predictions(tmp_path / "h100.json.gz", filed.conditions, [changed])
    monkeypatch.setattr(make, "MOST_COMPILES", 2)
    assert command.main((*WORDS, str(tmp_path / "tiny.pack"))) == 1
    assert f"{COUNT} of {COUNT} filed schedules, 1 with other code" in capsys.readouterr().out


@pytest.mark.parametrize("at", [5, 60, 400, -1])
def test_changed_byte_of_a_pack_is_noticed(made: Path, tmp_path: Path, at: int) -> None:
    data = bytearray(made.read_bytes())
    data[at] ^= 1
    (tmp_path / "x.pack").write_bytes(data)
    with pytest.raises(RecordError, match=r"x\.pack"):
        read_pack(tmp_path / "x.pack")
    (tmp_path / "x.pack").write_bytes(made.read_bytes()[:-9])
    with pytest.raises(RecordError, match="damaged"):
        read_pack(tmp_path / "x.pack")


def test_changed_prediction_is_noticed(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "h100.json.gz"
    write_predictions(path, {"device": "h100"}, [_file([1.0, 2.0], [3.0, 4.0])])
    assert read_predictions(path).find("op").figures["energy_j"].tolist() == [3.0, 4.0]
    text = gzip.decompress(path.read_bytes()).replace(b"3.0", b"2.9")
    path.write_bytes(gzip.compress(text))
    with pytest.raises(RecordError, match="its SHA-256 is another"):
        read_predictions(path)


def test_differences_from_filed_predictions_are_named(made: Path) -> None:
    filed = read_predictions(made.parent / "h100.json.gz")
    plan = make.Plan("h100", (make_matmul(64, 64, 64, "float32"),), COUNT, 0)
    assert not command.list_differences(filed, plan, filed.operators)
    (mine,) = filed.operators
    other = replace(mine, codes=("0" * 16, *mine.codes[1:]), schedules=(*mine.schedules[:-1], "1" * 16))
    (line,) = command.list_differences(filed, plan, [other])
    assert line.endswith(f"{COUNT - 1} of {COUNT} filed schedules, 1 with other code")
    turned = replace(mine, schedules=mine.schedules[::-1], codes=mine.codes[::-1])
    assert command.list_differences(filed, plan, [turned])[0].endswith("another order")
    for factor, expected in ((1.004, []), (1.02, ["other figures, by up to 2.0%"])):
        joules = mine.figures["energy_j"] * np.where(np.arange(COUNT) == 3, factor, 1.0)
        slower = replace(mine, figures=dict(mine.figures) | {"energy_j": joules})
        lines = command.list_differences(filed, plan, [slower])
        assert [line.split(": ")[1] for line in lines] == expected
    older = replace(filed, conditions=dict(filed.conditions) | {"nvrtc": "12.0"})
    assert "nvrtc: filed '12.0', now" in command.list_differences(older, plan, filed.operators)[0]


def test_every_row_is_measured_once_and_can_be_replayed(made: Path, tmp_path: Path) -> None:
    """The h200 runs the pack of the h100: it differs from the predictions as a GPU would."""
    words = ("pack", "--pack", str(made), "--device", "h200", "--minutes", "5", "--out", str(tmp_path))
    assert main(words) == 0
    recording = read_recording(tmp_path / "recording.jsonl.gz")
    assert len(recording.rows) == COUNT
    assert all(set(row.timings) == {0} and set(row.meterings) == {0, 1} for row in recording.rows)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert not [row for row in rows if "sustained_s" in row], "the meterings have the times"
    compared = [row for row in rows if "comparison" in row]
    assert [row["comparison"]["time"]["kernels"] for row in compared] == [COUNT]
    assert set(compared[0]["answers"]) == set(compare.QUESTIONS)
    before = (tmp_path / "recording.jsonl.gz").read_bytes()
    assert main(words) == 0
    assert (tmp_path / "recording.jsonl.gz").read_bytes() == before
    op = read_pack(made).operators[0]
    result = ekc.tune(op, target=f"recorded:{tmp_path / 'recording.jsonl.gz'}", trials=8, progress=False)
    assert result.metered_count


def test_interrupted_part_goes_on_and_measures_nothing_twice(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    ends = [4, 14, 26]

    def interrupt(name: str, measure: Callable[..., Any]) -> Callable[..., Any]:
        def measured(device: SimulatedDevice, kernel: CompiledKernel, **options: Any) -> Any:
            if ends and len(begun) == ends[0]:
                ends.pop(0)
                raise KeyboardInterrupt
            begun.append(name)
            return measure(device, kernel, **options)

        return measured

    for name in ("time", "run_hot"):
        monkeypatch.setattr(SimulatedDevice, name, interrupt(name, getattr(SimulatedDevice, name)))
    words = ("pack", "--pack", str(made), "--device", "h200", "--minutes", "5", "--out", str(tmp_path))
    statuses = []
    while not statuses or statuses[-1]:
        statuses.append(main(words))
    assert statuses == [130] * 3 + [0]
    recording = read_recording(tmp_path / "recording.jsonl.gz")
    assert [len(row.meterings) for row in recording.rows] == [part.ROUNDS] * COUNT
    assert begun.count("time") == COUNT
    kept = begun.count("run_hot") - part.ROUNDS * COUNT
    assert 1 <= kept <= 4, "each run warms up by one slice, which it drops"


def test_board_without_power_keeps_the_times(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = SimulatedDevice.run_hot
    blind = {"power_w": math.nan, "estimator": "power readings"}
    monkeypatch.setattr(SimulatedDevice, "run_hot", lambda *a, **k: replace(window(*a, **k), **blind))
    words = ("pack", "--pack", str(made), "--device", "h200", "--minutes", "5", "--out", str(tmp_path))
    assert main(words) == 0
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    slices = [row["item"] for row in rows if "sustained_s" in row]
    assert len(slices) == len(set(slices)) == COUNT * part.ROUNDS
    compared = [row["comparison"] for row in rows if "comparison" in row][-1]
    assert compared["sustained"]["kernels"] == COUNT
    assert compared["energy"] is None


def test_pack_of_other_kernels_is_refused(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.pack").write_bytes(made.read_bytes())
    filed = read_predictions(made.parent / "h100.json.gz")
    other = [replace(one, codes=("0" * 16, *one.codes[1:])) for one in filed.operators]
    write_predictions(tmp_path / "h100.json.gz", filed.conditions, other)
    words = (
        "pack",
        "--pack",
        str(tmp_path / "tiny.pack"),
        "--device",
        "h200",
        "--out",
        str(tmp_path / "out"),
    )
    assert main(words) == 1
    assert f"1 of {COUNT} kernels are not those of the predictions" in capsys.readouterr().out


def test_part_without_a_pack_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", "--device", "h100", "--out", str(tmp_path)]) == 0
    assert "not run: no pack is named: --pack FILE" in capsys.readouterr().out


def test_most_telling_kernels_are_timed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "TELLING", 2)
    filed = _file([5.0, 1.0, 4.0, 3.0, 2.0], [5.0, 4.0, 1.0, 3.0, 2.0])
    strata = (rule.NAIVE, rule.LATENCY, rule.NEAR, rule.NEAR, rule.RANDOM)
    kernels = [_make_kernel(d, s) for d, s in zip(filed.schedules, strata, strict=True)]
    order = [int(digest, 16) for digest in part.order_timings(kernels, filed)]
    assert order[:4] == [1, 2, 4, 0]
    assert sorted(order) == [0, 1, 2, 3, 4]


def test_meterings_begin_with_the_first_choices_and_spread() -> None:
    fastest = [str(n) for n in range(64)]
    order = part.order_meterings(fastest, ("7", "none"))
    assert order[:5] == ["7", "0", "2", "1", "6"]
    assert sorted(order) == sorted(fastest)


def _measure(filed: OperatorPredictions, seconds: list[float], joules: list[float]) -> compare.Measured:
    times = dict(zip(filed.schedules, seconds, strict=True))
    return compare.Measured(times, times, dict(zip(filed.schedules, joules, strict=True)))


def test_answers_are_right_on_planted_truths() -> None:
    random = np.random.default_rng(0)
    seconds = (1.0 + 0.002 * np.arange(24)).tolist()
    joules = (2.0 + 0.02 * random.permutation(24)).tolist()
    prior = replace(_file(seconds, joules), figures=dict(_file(seconds, joules).figures))
    prior.figures["prior_s"] = random.permutation(np.array(seconds))  # type: ignore[index]
    right = compare.answer(compare.compare(prior, _measure(prior, seconds, joules)))
    assert right == dict.fromkeys(compare.QUESTIONS, "yes")
    flat = compare.answer(compare.compare(prior, _measure(prior, seconds, seconds)))
    assert (flat["spread"], flat["energy rank"], flat["energy choice"]) == ("no", "no", "no")
    slow = compare.answer(compare.compare(prior, _measure(prior, [2 - s for s in seconds], joules)))
    assert slow["rank"] == "no"
    few = compare.answer(compare.compare(prior, compare.Measured({prior.schedules[0]: 1.0})))
    assert set(few.values()) == {"open"}


@pytest.mark.slow
def test_killed_run_goes_on_to_the_same_pack(made: Path, tmp_path: Path) -> None:
    file = tmp_path / "tiny.pack"
    words = ["-m", "benchmarks.gpu.packs", *WORDS, str(file)]
    for seconds in (4.0, 7.0, 11.0):
        begun = subprocess.Popen([sys.executable, *words], cwd=ROOT, start_new_session=True)
        time.sleep(seconds)
        os.killpg(begun.pid, 9)
        begun.wait()
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    op = read_pack(made).operators[0]
    found, expected = read_pack(file), read_pack(made)
    assert op in found.operators
    assert found.read_kernels(found.operators.index(op)) == expected.read_kernels(0)


def test_committed_predictions_are_of_this_rule() -> None:
    files = sorted(FOLDER.glob("*.json.gz"))
    for file in files:
        filed = read_predictions(file)
        assert file.stat().st_size < 200_000
        assert filed.conditions["rule"] == rule.describe_rule(0, command.COUNT)
        for claims in filed.operators:
            assert len(set(claims.schedules)) == len(claims.schedules) == command.COUNT


def test_gpu_runs_the_packed_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a scripted driver: kernels of the pack are loaded, timed, metered and recorded; none is compiled."""
    item = make_matmul(16, 16, 16, "float32")
    plan = make.Plan("a100", (item,), 3, 0)
    drawn = rule.draw_random(item.op, "a100", 0, 3).drawn
    compiled = [make.compile_drawn(one, "a100") for one in drawn]
    chosen, _ = make.choose_kernels(
        {rule.RANDOM: drawn},
        {rule.RANDOM: 3},
        dict(zip((one.schedule for one in drawn), compiled, strict=True)),
    )
    kernels = [one.kernel for one in chosen if one.kernel]
    facts = plan.conditions
    head = PackHead(
        "a100",
        facts["arch"],
        facts["nvrtc"],
        0,
        "",
        "",
        ({"name": item.name, "operator": item.op.to_json()},),
    )
    write_pack(tmp_path / "x.pack", head, [kernels])
    claims = collect_predictions(item.name, kernels, [one.prediction for one in chosen if one.prediction])
    write_predictions(tmp_path / "a100.json.gz", facts, [claims])
    node = ScriptedNode()
    monkeypatch.setattr(devices, "open", lambda target: node.open(target, launch_s=5e-3))
    monkeypatch.setattr(Kit, "compile_kernel", None)
    words = ("pack", "--pack", str(tmp_path / "x.pack"), "--minutes", "5", "--out", str(tmp_path / "out"))
    assert main(words) == 0
    recording = read_recording(tmp_path / "out/recording.jsonl.gz")
    assert not recording.origin.simulated
    assert [row.digest for row in recording.rows if row.timings and row.meterings] == [
        row.digest for row in recording.rows
    ]
    assert {row.digest for row in recording.rows} == {kernel.digest for kernel in kernels}
    assert sum(bool(row.checked) for row in recording.rows) >= part.CHECKED
    assert {t.conditions.nvrtc for row in recording.rows for t in row.timings.values()} == {facts["nvrtc"]}
