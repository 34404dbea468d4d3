"""`ekc explain` by features: a recording, and a GPU with a record file."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import ekc
from ekc import devices
from ekc.codegen.generate import describe_toolchain
from ekc.devices.measurement_json import measurement_to_json
from ekc.devices.recording import read_recording
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.database.database import RecordKey, RecordRow, RecordStore, to_canonical_json
from tests.cli.conftest import CommandLine
from tests.search.helpers import LAW_OP as OP
from tests.search.helpers import MadeUpDevice, record_law

NAMED = "matmul 128 128 128"


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("gpu") / "gpu.jsonl.gz"
    return record_law(file, count=20, metered=16, failed=2)


@pytest.fixture
def made_up_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "open", lambda target: MadeUpDevice())


def filed(recording: Path, path: Path) -> Path:
    """A record file with the figures of the recording."""
    device = MadeUpDevice()
    with RecordStore(path) as store:
        for row in read_recording(recording).rows:
            key = RecordKey(
                *(device.name, device.simulated, device.clock_regime, device.data_policy, device.driver),
                *(describe_toolchain(), to_canonical_json(OP.to_json()), row.digest),
            )
            figures = [("timing", key, timing) for timing in row.timings.values()]
            figures += [("metering", replace(key, window_s=m.window_s), m) for m in row.meterings.values()]
            for kind, of, measured in figures:
                store.add(RecordRow(kind, of, row.schedule_json, "ok", measurement_to_json(measured)))
            if row.failure:
                store.add(RecordRow("failure", key, row.schedule_json, row.failure))
    return path


def test_recording_is_explained_by_features(cli: CommandLine, gpu: Path) -> None:
    where = f"--target recorded:{gpu}"
    out = cli(f"explain naive best {NAMED} {where}").out
    for word in (
        "on Made-up GPU (cuda:0), recorded 20",
        "best by energy (B) against naive (A)",
        "energy [",
        "global memory",
        "unexplained",
        "held out, 5 folds",
        "physics alone: rank",
        "A is measured, B is measured",
        f"learned from 18 timed schedules of {gpu}, 14 of them metered, A and B not among them; 2 failed",
    ):
        assert word in out
    assert "imulated" not in out
    assert all(len(line) <= 100 for line in out.splitlines()[2:] if not line.startswith("learned from"))
    got = cli.json(f"explain naive best {NAMED} {where}")
    assert got["device"] == {"name": "Made-up GPU", "simulated": False}
    assert got["digest_a"] == make_naive_schedule(OP).digest
    assert sum(line["difference_j"] for line in got["lines"]) == pytest.approx(got["difference_j"])
    assert got["difference_j"] == pytest.approx(got["b"]["energy_j"] - got["a"]["energy_j"])
    assert got["learned_from"] == {"source": str(gpu), "timed": 18, "metered": 14, "failed": 2}
    # One operator was metered, so it need not be named; a digest names its schedule, too.
    best = got["digest_b"]
    again = cli.json(f"explain fastest {best[:8]} {where}")
    assert again["digest_b"] == best
    assert again["a"]["latency_s"] <= again["b"]["latency_s"]


def test_gpu_with_record_file_gives_the_same_account(
    cli: CommandLine, gpu: Path, tmp_path: Path, made_up_device: None
) -> None:
    records = filed(gpu, tmp_path / "r.db")
    out = cli(f"explain naive best {NAMED} --records {records} --target cuda:0").out
    assert "on Made-up GPU (cuda:0): best by energy (B) against naive (A)" in out
    got = cli.json(f"explain naive best --records {records} {NAMED} --target cuda:0")
    assert got["learned_from"] == {"source": str(records), "timed": 18, "metered": 14, "failed": 2}
    assert "add --records FILE" in cli.refusal(f"explain naive naive {NAMED} --target cuda:0")


def test_unmeasured_schedule_files_are_explained(cli: CommandLine, tmp_path: Path, gpu: Path) -> None:
    one = tmp_path / "one.json"
    schedule = ekc.Schedule(OP).bind("i", "block.x").bind("j", "thread.x").cache_write("C")
    one.write_text(schedule.to_json())
    out = cli(f"explain {one} best --target recorded:{gpu}").out
    assert "A is predicted: it was never measured there, B is measured" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("best fastest matmul 65 64 64", "has no row of matmul"),
        ("best 12", "is no schedule of"),
        ("zzzz best", "is no schedule of"),
        (f"naive best {NAMED} --records r.db", "leave --records out"),
    ],
)
def test_bad_arguments_with_a_recording_are_refused(
    cli: CommandLine, gpu: Path, words: str, expected: str
) -> None:
    assert expected in cli.refusal(f"explain {words} --target recorded:{gpu}")


def test_ambiguous_digests_are_refused(
    cli: CommandLine, gpu: Path, tmp_path: Path, made_up_device: None
) -> None:
    """Among more than 16 digests, two have the same first digit."""
    digests = sorted(row.digest for row in read_recording(gpu).rows)
    digit, count = Counter(digest[0] for digest in digests).most_common(1)[0]
    first = next(digest for digest in digests if digest[0] == digit)
    records = filed(gpu, tmp_path / "r.db")
    expected = f"'{digit}' begins {count} digests in {records}; give more of {first}"
    assert expected in cli.refusal(f"explain {digit} best {NAMED} --records {records} --target cuda:0")


def test_small_recording_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    none = record_law(tmp_path / "none.jsonl.gz", count=3, metered=0)
    line = cli.refusal(f"explain best fastest --target recorded:{none}")
    assert "nothing was metered on Made-up GPU" in line
    line = cli.refusal(f"explain best fastest {NAMED} --target recorded:{none}")
    assert f"no schedule of matmul was metered in {none}" in line
    few = record_law(tmp_path / "few.jsonl.gz", count=6, metered=6)
    line = cli.refusal(f"explain naive best {NAMED} --target recorded:{few}")
    assert "and 10 are needed to learn from and to judge by; tune it with more --trials" in line
