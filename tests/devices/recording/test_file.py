"""The file: everything comes back, a cut costs the last event only, and what is no recording is refused."""

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
from ekc.devices.recording import Writer, read
from ekc.devices.recording.members import pack, unpack
from ekc.errors import DeviceError, RecordError
from ekc.search.records.store import RecordStore
from tests.devices.recording.full_disk import no_room_beyond
from tests.devices.recording.made import COUNT, OP, OTHER, TARGET, schedules


def test_everything_comes_back(recorded: Path) -> None:
    device, found = devices.open(TARGET), read(recorded)
    assert found.operators == (OP, OTHER)
    assert [r.digest for r in found.of(OP)] == [s.digest for s, _ in schedules()]
    for row, (schedule, structure) in list(zip(found.of(OP), schedules(), strict=True))[:3]:
        kernel = compile_schedule(schedule, device.arch, device.limits)
        assert row.schedule == schedule
        assert row.structure == structure
        assert row.resources == kernel.resources
        assert [tuple(x["grid"]) for x in row.launches] == [x.grid for x in kernel.launches]
        timing = device.time(kernel)
        assert row.timing().latency_s == timing.latency_s
        assert row.timing().conditions == timing.conditions
        assert row.timing().samples_s == pytest.approx(timing.samples_s, rel=1e-6)
        assert len(row.timing().samples_s) == timing.samples
    metered = found.of(OP)[0]
    assert metered.metering().samples == len(metered.metering().samples_w)
    assert found.of(OP)[-1].failure == "compile: made up for the test"


def test_a_recording_of_a_simulation_says_so(recorded: Path) -> None:
    device = devices.open(f"recorded:{recorded}")
    assert device.simulated
    assert device.label.startswith("a100 (simulated), recorded 20")
    assert (device.name, device.driver) == ("a100", devices.open(TARGET).driver)


def test_rows_are_small(recorded: Path) -> None:
    # 400 rows with their samples stay far under 16 MB.
    assert recorded.stat().st_size / COUNT < 10_000


def test_one_measurement_does_not_count_as_several(recorded: Path) -> None:
    once, twice = read(recorded).of(OP)[0], read(recorded).of(OP)[2]
    assert once.timing(0) == once.timing(1)
    with pytest.raises(DeviceError, match="was not timed so often"):
        once.timing(2)
    assert twice.timing(2) != twice.timing(1)
    with pytest.raises(DeviceError, match="was not timed so often"):
        twice.timing(3)
    with pytest.raises(DeviceError, match="was not metered when"):
        read(recorded).of(OP)[1].metering()


def test_a_schedule_under_another_digest_is_refused(recorded: Path) -> None:
    one, other, *_ = read(recorded).rows
    with pytest.raises(RecordError, match=f"{one.digest} .* reads back as {other.digest}: another ekc"):
        _ = replace(one, schedule_json=other.schedule_json).schedule


@pytest.mark.parametrize(
    ("line", "told"),
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
def test_other_files_are_refused_in_one_line(tmp_path: Path, line: object, told: str) -> None:
    file = tmp_path / "x.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(line).encode()))
    with pytest.raises(RecordError, match=told) as problem:
        read(file)
    assert "\n" not in str(problem.value)


def test_what_is_no_file_is_refused(tmp_path: Path, recorded: Path) -> None:
    with pytest.raises(RecordError, match=r"cannot be read: No such file.*did you mean .*small\.jsonl\.gz"):
        read(recorded.with_name("smal.jsonl.gz"))
    (tmp_path / "text").write_text("hello")
    with pytest.raises(RecordError, match="is not a recording of ekc, or is damaged"):
        read(tmp_path / "text")
    with RecordStore(tmp_path / "records.db"):
        pass
    with pytest.raises(RecordError, match="is a file of --records and no recording"):
        read(tmp_path / "records.db")
    with pytest.raises(RecordError, match="names no file"):
        devices.open("recorded:")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0.0, 1.0))
def test_a_cut_costs_the_last_event_only(recorded: Path, tmp_path: Path, share: float) -> None:
    data = recorded.read_bytes()
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(data[: int(share * len(data))])
    whole = unpack(data).text.splitlines()
    kept = unpack(cut.read_bytes()).text.splitlines()
    assert kept == whole[: len(kept)]
    if not kept:
        # Not even the first line: nobody knows any more whose file it is.
        with pytest.raises(RecordError):
            read(cut)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(read(cut).rows) <= len(read(recorded).rows)
    with Writer(cut, devices.open(TARGET)) as writer:
        writer.schedule(schedules()[0][0], "again", {}, None)
    read(cut)


def test_a_disk_that_fills_up_costs_the_last_event_only(tmp_path: Path) -> None:
    file, (schedule, structure) = tmp_path / "full.jsonl.gz", schedules()[0]
    with no_room_beyond(20), pytest.raises(RecordError, match="cannot be written"):
        Writer(file, devices.open(TARGET))
    with Writer(file, devices.open(TARGET)) as writer:
        writer.schedule(schedule, structure, {}, None)
        with no_room_beyond(file.stat().st_size + 20), pytest.raises(RecordError, match="cannot be written"):
            writer.check(schedule, "not kept")
        writer.check(schedule, "kept")
    (row,) = read(file).rows
    assert row.checked == "kept"


def test_a_cut_is_told(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(recorded.read_bytes()[:-7])
    with pytest.warns(UserWarning, match="the last event was cut short"):
        read(tmp_path / "cut")


def _changed(recorded: Path, event: str, **fields: object) -> bytes:
    """The recording, but for some fields of its first line or of its first event of a kind."""
    lines = [json.loads(line) for line in unpack(recorded.read_bytes()).text.splitlines()]
    place = next(line for line in lines if line.get("event", "head") == event)
    for path, value in fields.items():
        *within, name = path.split("__")
        inner = place
        for key in within:
            inner = inner[key]
        inner[name] = value
    return b"".join(pack(json.dumps(line).encode() + b"\n") for line in lines)


@pytest.mark.parametrize(
    ("event", "field", "value", "told"),
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
def test_a_changed_event_is_refused_in_one_line(
    recorded: Path, tmp_path: Path, event: str, field: str, value: object, told: str
) -> None:
    (tmp_path / "bad").write_bytes(_changed(recorded, event, **{field: value}))
    with pytest.raises(RecordError, match=told) as problem:
        read(tmp_path / "bad")
    assert "\n" not in str(problem.value)


def test_an_event_of_too_many_brackets_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deep").write_bytes(pack(b"[" * 200_000 + b"\n"))
    with pytest.raises(RecordError, match="is not a recording of ekc, or is damaged"):
        read(tmp_path / "deep")


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_members_are_packed_and_unpacked(lines: list[bytes]) -> None:
    data = b"".join(pack(line) for line in lines)
    assert unpack(data).text == b"".join(lines) == (gzip.decompress(data) if data else b"")
    assert unpack(data).good == len(data)


@pytest.mark.parametrize("before_the_next", [1, 4, 5, 8])
def test_damage_is_refused(recorded: Path, tmp_path: Path, before_the_next: int) -> None:
    """A member ends with what tells damage, its checksum and its length; of when it was packed, at its
    beginning, nobody would miss a byte."""
    data = bytearray(recorded.read_bytes())
    data[data.index(b"\x1f\x8b\x08\x00", len(data) // 2) - before_the_next] ^= 0xFF
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(RecordError, match="damaged"):
        read(tmp_path / "bad")


def test_a_file_is_continued_by_the_same_device_only(recorded: Path, tmp_path: Path) -> None:
    file = tmp_path / "more.jsonl.gz"
    file.write_bytes(recorded.read_bytes())
    device = devices.open(TARGET)
    first = schedules()[0][0]
    with Writer(file, device) as writer:
        writer.schedule(first, "naive", {}, None)  # is there already
        writer.check(first, "looked right")
    assert len(read(file).rows) == len(read(recorded).rows)
    assert read(file).rows[0].checked == "looked right"
    with pytest.raises(RecordError, match=r"is of name 'a100', h100 \(simulated\) has 'h100'"):
        Writer(file, devices.open("h100"))
    with pytest.raises(RecordError, match="cannot be written"):
        Writer(tmp_path / "no" / "where", device)
