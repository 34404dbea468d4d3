"""Files that a recording continues: those of its own device alone, one writer at a time."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

import ekc
from ekc import devices
from ekc.devices.recording import RecordingWriter, read_recording
from ekc.errors import RecordError
from ekc.ir.schedule.naive import make_naive_schedule
from tests.devices.recording.helpers import TARGET, schedules
from tests.scripted.cuda.node import ScriptedNode
from tests.scripted.nvml.card import Card

NOISE = os.urandom(5000)


@pytest.mark.parametrize(
    "content",
    [gzip.compress(NOISE)[:-10], gzip.compress(b"valuable") + gzip.compress(NOISE)[:-10], b"hello"],
)
def test_file_that_is_no_recording_is_not_changed(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "photos.gz"
    file.write_bytes(content)
    with pytest.raises(RecordError, match=r"photos\.gz (is not a|has no complete first line)") as refused:
        RecordingWriter(file, devices.open(TARGET))
    assert "\n" not in str(refused.value)
    assert file.read_bytes() == content


def test_cut_recording_of_another_device_is_not_changed(recorded: Path, tmp_path: Path) -> None:
    file = tmp_path / "cut.gz"
    file.write_bytes(recorded.read_bytes()[:-7])
    with pytest.raises(RecordError, match="begin another file"):
        RecordingWriter(file, devices.open("h100"))
    assert file.read_bytes() == recorded.read_bytes()[:-7]


def test_empty_file_is_begun(tmp_path: Path) -> None:
    (tmp_path / "new.gz").touch()
    RecordingWriter(tmp_path / "new.gz", devices.open(TARGET)).close()
    assert read_recording(tmp_path / "new.gz").rows == ()


def test_second_writer_is_refused(tmp_path: Path) -> None:
    file, device = tmp_path / "two.gz", devices.open(TARGET)
    with (
        RecordingWriter(file, device),
        pytest.raises(RecordError, match="is being written already: wait, or record"),
    ):
        RecordingWriter(file, device)
    RecordingWriter(file, device).close()


def test_file_that_is_deleted_meanwhile_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "gone.gz"
    with RecordingWriter(file, devices.open(TARGET)) as writer:
        file.unlink()
        with pytest.raises(RecordError, match=r"gone\.gz cannot be written: it was deleted meanwhile"):
            writer.add_failure(schedules()[0][0], "device: made up")


def test_another_gpu_of_the_kind_begins_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path / "cache"))
    file, schedule, node = tmp_path / "one.gz", make_naive_schedule(ekc.matmul(4, 8, 4)), ScriptedNode(gpus=2)
    first, second = (node.open(f"cuda:{index}", launch_s=5e-3) for index in (0, 1))
    kernel = ekc.compile(schedule, device=first).compiled
    with RecordingWriter(file, first) as writer:
        writer.add_schedule(schedule, "naive", {}, kernel)
        writer.add_timing(schedule, first.time(kernel))
    RecordingWriter(file, first).close()
    with pytest.raises(RecordError, match=r"is of GPU 0.*-0{12}, .*\(cuda:1\) is 0.*1: begin another file"):
        RecordingWriter(file, second)
    capped = ScriptedNode(card=Card(name="Scripted A100", cap_mw=300_000)).open("cuda:0")
    with pytest.raises(RecordError, match=r"is of power cap 400\.0, .* has 300\.0: begin another file"):
        RecordingWriter(file, capped)
