"""A recording as a device: the search tries recorded schedules only, with the same result every time."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import ekc
from ekc import devices
from ekc.cli import main
from ekc.codegen.generate import compile_schedule
from ekc.devices.analytic_prior import predict_prior
from ekc.devices.device import Prior
from ekc.devices.recording import RecordedDevice, read_recording
from ekc.devices.recording.reader import pack_line, unpack_members
from ekc.errors import DeviceError, InvalidInput, RecordError
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.schedule import Unroll
from ekc.search.loop import compile_job
from ekc.search.tuning_result import TuningResult
from tests.devices.recording.helpers import COUNT, OP, OTHER, TARGET, schedules


def _tuned(recorded: Path, objective: str = "energy", seed: int = 0) -> TuningResult:
    return ekc.tune(OP, target=f"recorded:{recorded}", objective=objective, seed=seed, progress=False)


def test_same_recording_and_seed_give_the_same_run(recorded: Path) -> None:
    one, two = _tuned(recorded), _tuned(recorded)
    assert [t.to_json() for t in one.trials] == [t.to_json() for t in two.trials]
    assert one.best == two.best
    assert one.device.label == f"a100 (simulated), recorded {read_recording(recorded).origin.created[:10]}"
    assert "Simulated" in one.summary()


def test_prior_of_a_recording_is_analytic(recorded: Path) -> None:
    device = RecordedDevice.open(f"recorded:{recorded}")
    quantities = analyse_program(schedules()[3][0].program, device.limits)
    found, expected = device.prior(quantities), predict_prior(quantities, device.peaks)
    for field in fields(Prior):
        np.testing.assert_array_equal(getattr(found, field.name), getattr(expected, field.name))


def test_replay_of_a_real_gpu_does_not_pass_for_a_measurement(recorded: Path, tmp_path: Path) -> None:
    header, *events = map(json.loads, unpack_members(recorded.read_bytes()).text.splitlines())
    header["device"] |= {"simulated": False, "label": "Real GPU (cuda:0)"}
    for event in events:
        if event["event"] in ("timing", "metering"):
            event[event["event"]]["conditions"]["simulated"] = False
    file = tmp_path / "real.jsonl.gz"
    file.write_bytes(b"".join(pack_line(json.dumps(line).encode() + b"\n") for line in (header, *events)))
    found = _tuned(file)
    assert found.to_json()["device"]["label"] == f"Real GPU (cuda:0), recorded {header['created'][:10]}"
    assert "none now, this is a replay; the recording took" in " ".join(found.summary().split())


def test_search_tries_recorded_schedules_only_and_finds_the_best(recorded: Path) -> None:
    rows = {r.digest: r for r in read_recording(recorded).find_rows(OP)}
    found = _tuned(recorded, "latency")
    assert {t.schedule.digest for t in found.trials} == set(rows) - {schedules()[0][0].digest}
    assert found.stopped == "every schedule of the space has been tried"
    timed = {d: r.find_timing().latency_s for d, r in rows.items() if r.timings}
    assert found.fastest.latency_s == min(timed.values())
    failed = [t for t in found.trials if not t.ok]
    assert [t.status for t in failed] == ["compile: made up for the test"]
    assert found.baseline.latency_s == timed[found.baseline.schedule.digest]


def test_energy_search_uses_metered_rows(recorded: Path) -> None:
    found = _tuned(recorded)
    tried = {t.schedule.digest for t in found.trials if t.ok}
    assert tried == {r.digest for r in read_recording(recorded).find_rows(OP)[1:] if r.meterings}
    best = read_recording(recorded).by_digest[found.best.schedule.digest]
    assert found.best.latency_s == best.find_timing(1).latency_s
    assert found.best.energy_j == pytest.approx(best.find_metering().power_w * best.find_timing(1).latency_s)


def test_single_recorded_figure_does_not_count_as_repeats(recorded: Path) -> None:
    best = _tuned(recorded).best
    row = read_recording(recorded).by_digest[best.schedule.digest]
    assert best.latency_interval_s is not None
    if len(row.timings) == 1:
        spread = row.find_timing().interval_s
        assert best.latency_interval_s.high - best.latency_interval_s.low == pytest.approx(
            spread.high - spread.low
        )


def test_finalists_alone_are_compiled(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    real = compile_job.compile_schedule_json

    def spy(schedule: str, *target: object) -> object:
        compiled.append(schedule)
        return real(schedule, *target)  # type: ignore[arg-type]

    monkeypatch.setattr(compile_job, "compile_schedule_json", spy)
    found = _tuned(recorded, "latency")
    assert 0 < len(set(compiled)) < COUNT - 2
    assert found.trial_count == COUNT - 1


def test_missing_row_is_one_line(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(
        RecordError, match=r"has no row of matmul\(A\[8, 8\].*it holds matmul\(A\[32, 32\].*matvec"
    ):
        ekc.tune(ekc.matmul(8, 8, 8), target=f"recorded:{recorded}", progress=False)
    with pytest.raises(RecordError, match="none of them metered; only --objective latency"):
        ekc.tune(OTHER, target=f"recorded:{recorded}", progress=False)
    with pytest.raises(InvalidInput, match="is replayed, so nothing is measured"):
        ekc.tune(OP, target=f"recorded:{recorded}", records=tmp_path / "x.db", progress=False)
    with pytest.raises(InvalidInput, match="has its recorded schedules alone; leave space out"):
        ekc.tune(OP, target=f"recorded:{recorded}", space=[Unroll("k", 2)], progress=False)
    with pytest.raises(InvalidInput, match="has its recorded schedules alone; leave evolve out"):
        ekc.tune(OP, target=f"recorded:{recorded}", evolve=True, progress=False)
    device = devices.open(f"recorded:{recorded}")
    assert not device.clocks().mhz
    with pytest.raises(DeviceError, match="was recorded at fixed 1275 MHz only"):
        device.at_clock(1000)


def test_kernels_are_known_by_their_schedule(recorded: Path) -> None:
    replayed, simulated = devices.open(f"recorded:{recorded}"), devices.open(TARGET)
    kernel = compile_schedule(schedules()[0][0], simulated.arch, simulated.limits)
    assert replayed.time(kernel).latency_s == simulated.time(kernel).latency_s
    assert replayed.meter(kernel, seconds=9.0).window_s == simulated.meter(kernel).window_s
    strange = compile_schedule(ekc.Schedule(OP).bind("i", "block.x"), simulated.arch, simulated.limits)
    with pytest.raises(DeviceError, match=r"was not recorded; .* holds 13 schedules"):
        replayed.time(strange)


def test_command_line_replays_a_recording(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tune", "matmul", "32", "32", "32", "--target", f"recorded:{recorded}", "--out", str(tmp_path)]
    assert main(words) == 0
    header = capsys.readouterr()
    assert "a100 (simulated), recorded" in header.err
    assert "a100 (simulated), recorded" in header.out
    assert main(["recording", "show", str(recorded)]) == 0
    assert "a100 (simulated), recorded" in capsys.readouterr().out
    assert main(["tune", "matmul", "8", "8", "8", "--target", f"recorded:{recorded}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
