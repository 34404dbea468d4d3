"""Recording files: they read back completely, a cut costs the last event only, and other files are
refused."""

from __future__ import annotations

import gzip
import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ekc import devices
from ekc.codegen.generate import compile_schedule
from ekc.devices.recording import RecordingWriter, read_recording
from ekc.devices.recording.reader import pack_line, unpack_members
from ekc.errors import DeviceError, RecordError
from ekc.search.database.database import RecordStore
from tests.devices.recording.full_disk import no_room_beyond
from tests.devices.recording.helpers import COUNT, OP, OTHER, TARGET, schedules


def test_recording_reads_back_completely(recorded: Path) -> None:
    device, found = devices.open(TARGET), read_recording(recorded)
    assert found.operators == (OP, OTHER)
    assert [r.digest for r in found.find_rows(OP)] == [s.digest for s, _ in schedules()]
    for row, (schedule, structure) in list(zip(found.find_rows(OP), schedules(), strict=True))[:3]:
        kernel = compile_schedule(schedule, device.arch, device.limits)
        assert row.schedule == schedule
        assert row.structure == structure
        assert row.resources == kernel.resources
        assert [tuple(x["grid"]) for x in row.launches] == [x.grid for x in kernel.launches]
        timing = device.time(kernel)
        assert row.find_timing().latency_s == timing.latency_s
        assert row.find_timing().conditions == timing.conditions
        assert row.find_timing().samples_s == pytest.approx(timing.samples_s, rel=1e-6)
        assert len(row.find_timing().samples_s) == timing.samples
    metered = found.find_rows(OP)[0]
    assert metered.find_metering().samples == len(metered.find_metering().samples_w)
    assert found.find_rows(OP)[-1].failure == "compile: made up for the test"


def test_recording_of_a_simulation_says_so(recorded: Path) -> None:
    device = devices.open(f"recorded:{recorded}")
    assert device.simulated
    assert device.label.startswith("a100 (simulated), recorded 20")
    assert (device.name, device.driver) == ("a100", devices.open(TARGET).driver)


def test_rows_are_small(recorded: Path) -> None:
    # 400 rows with their samples stay far under 16 MB.
    assert recorded.stat().st_size / COUNT < 10_000


def test_one_measurement_does_not_count_as_repeats(recorded: Path) -> None:
    once, twice = read_recording(recorded).find_rows(OP)[0], read_recording(recorded).find_rows(OP)[2]
    assert once.find_timing(0) == once.find_timing(1)
    with pytest.raises(DeviceError, match="was not timed so often"):
        once.find_timing(2)
    assert twice.find_timing(2) != twice.find_timing(1)
    with pytest.raises(DeviceError, match="was not timed so often"):
        twice.find_timing(3)
    with pytest.raises(DeviceError, match="was not metered in this recording"):
        read_recording(recorded).find_rows(OP)[1].find_metering()


def test_schedule_under_another_digest_is_refused(recorded: Path) -> None:
    one, other, *_ = read_recording(recorded).rows
    with pytest.raises(RecordError, match=f"{one.digest} .* reads back as {other.digest}: another ekc"):
        _ = replace(one, schedule_json=other.schedule_json).schedule


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"format": "ekc recording", "version": 2, "ekc_version": "9.9"}, "format 2; this is ekc .* reads"),
        ({"format": "other", "version": 1}, "does not say 'ekc recording'"),
        ([1, 2], "line 1 is no JSON object"),
        (
            {"format": "ekc recording", "version": 1, "ekc_version": "0", "created": ""},
            "not describe a device",
        ),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, line: object, message: str) -> None:
    file = tmp_path / "x.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(line).encode()))
    with pytest.raises(RecordError, match=message) as problem:
        read_recording(file)
    assert "\n" not in str(problem.value)


def test_missing_file_is_refused(tmp_path: Path, recorded: Path) -> None:
    with pytest.raises(RecordError, match=r"cannot be read: No such file.*did you mean .*small\.jsonl\.gz"):
        read_recording(recorded.with_name("smal.jsonl.gz"))
    (tmp_path / "text").write_text("hello")
    with pytest.raises(RecordError, match="is not a recording of ekc, or is damaged"):
        read_recording(tmp_path / "text")
    with RecordStore(tmp_path / "records.db"):
        pass
    with pytest.raises(RecordError, match="is a file of --records and no recording"):
        read_recording(tmp_path / "records.db")
    with pytest.raises(RecordError, match="names no file"):
        devices.open("recorded:")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0.0, 1.0))
def test_cut_costs_the_last_event_only(recorded: Path, tmp_path: Path, share: float) -> None:
    data = recorded.read_bytes()
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(data[: int(share * len(data))])
    whole = unpack_members(data).text.splitlines()
    kept = unpack_members(cut.read_bytes()).text.splitlines()
    assert kept == whole[: len(kept)]
    if not kept:
        # Without the complete first line the device of the file is unknown.
        with pytest.raises(RecordError):
            read_recording(cut)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(read_recording(cut).rows) <= len(read_recording(recorded).rows)
    with RecordingWriter(cut, devices.open(TARGET)) as writer:
        writer.add_schedule(schedules()[0][0], "again", {}, None)
    read_recording(cut)


def test_disk_that_fills_up_costs_the_last_event_only(tmp_path: Path) -> None:
    file, (schedule, structure) = tmp_path / "full.jsonl.gz", schedules()[0]
    with no_room_beyond(20), pytest.raises(RecordError, match="cannot be written"):
        RecordingWriter(file, devices.open(TARGET))
    with RecordingWriter(file, devices.open(TARGET)) as writer:
        writer.add_schedule(schedule, structure, {}, None)
        with no_room_beyond(file.stat().st_size + 20), pytest.raises(RecordError, match="cannot be written"):
            writer.add_check(schedule, "not kept")
        writer.add_check(schedule, "kept")
    (row,) = read_recording(file).rows
    assert row.checked == "kept"


def test_cut_is_warned_of(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(recorded.read_bytes()[:-7])
    with pytest.warns(UserWarning, match="the last event was cut short"):
        read_recording(tmp_path / "cut")


def _changed(recorded: Path, event: str, **fields: object) -> bytes:
    """The recording with some fields of its first line, or of its first event of a kind, changed."""
    lines = [json.loads(line) for line in unpack_members(recorded.read_bytes()).text.splitlines()]
    place = next(line for line in lines if line.get("event", "head") == event)
    for path, value in fields.items():
        *within, name = path.split("__")
        inner = place
        for key in within:
            inner = inner[key]
        inner[name] = value
    return b"".join(pack_line(json.dumps(line).encode() + b"\n") for line in lines)


@pytest.mark.parametrize(
    ("event", "field", "value", "message"),
    [
        ("head", "created", 5, "created is 5"),
        ("head", "device__simulated", "no", "simulated is 'no'"),
        ("head", "device__simulated", False, "simulated is True, the first line says otherwise"),
        ("head", "device__peaks__dram_bytes_per_s", "many", "dram_bytes_per_s is 'many'"),
        ("head", "device__peaks__dram_bytes_per_s", 0, "dram_bytes_per_s is 0; it must be"),
        ("head", "device__peaks__flops_by_type", {"float32": "many"}, "float32 is 'many'"),
        ("head", "device__limits__sms", "many", "sms is 'many'"),
        ("schedule", "operator", -1, "operator is -1"),
        ("schedule", "figures", {"x": "many"}, "could not convert string to float"),
        ("schedule", "structure", 5, "structure is 5"),
        ("timing", "repeat", "0", "repeat is '0'"),
        ("timing", "repeat", True, "repeat is True"),
        ("timing", "timing__conditions__simulated", False, "simulated is False, the first line says"),
        ("metering", "metering__conditions__simulated", False, "simulated is False, the first line says"),
        ("failure", "status", 5, "status is 5"),
    ],
)
def test_changed_event_is_refused_in_one_line(
    recorded: Path, tmp_path: Path, event: str, field: str, value: object, message: str
) -> None:
    (tmp_path / "bad").write_bytes(_changed(recorded, event, **{field: value}))
    with pytest.raises(RecordError, match=message) as problem:
        read_recording(tmp_path / "bad")
    assert "\n" not in str(problem.value)


def test_event_of_too_many_brackets_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deep").write_bytes(pack_line(b"[" * 200_000 + b"\n"))
    with pytest.raises(RecordError, match="is not a recording of ekc, or is damaged"):
        read_recording(tmp_path / "deep")


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_members_are_packed_and_unpacked(lines: list[bytes]) -> None:
    data = b"".join(pack_line(line) for line in lines)
    assert unpack_members(data).text == b"".join(lines) == (gzip.decompress(data) if data else b"")
    assert unpack_members(data).complete_bytes == len(data)


@pytest.mark.parametrize("before_the_next", [1, 4, 5, 8])
def test_damage_is_refused(recorded: Path, tmp_path: Path, before_the_next: int) -> None:
    """Damage of a member shows in the checksum and length at its end. The time of packing at its beginning is
    not checked."""
    data = bytearray(recorded.read_bytes())
    data[data.index(b"\x1f\x8b\x08\x00", len(data) // 2) - before_the_next] ^= 0xFF
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(RecordError, match="damaged"):
        read_recording(tmp_path / "bad")


def test_file_is_continued_by_the_same_device_only(recorded: Path, tmp_path: Path) -> None:
    file = tmp_path / "more.jsonl.gz"
    file.write_bytes(recorded.read_bytes())
    device = devices.open(TARGET)
    first = schedules()[0][0]
    with RecordingWriter(file, device) as writer:
        writer.add_schedule(first, "naive", {}, None)  # is there already
        writer.add_check(first, "looked right")
    assert len(read_recording(file).rows) == len(read_recording(recorded).rows)
    assert read_recording(file).rows[0].checked == "looked right"
    with pytest.raises(RecordError, match=r"is of name 'a100', h100 \(simulated\) has 'h100'"):
        RecordingWriter(file, devices.open("h100"))
    with pytest.raises(RecordError, match="cannot be written"):
        RecordingWriter(tmp_path / "no" / "where", device)
