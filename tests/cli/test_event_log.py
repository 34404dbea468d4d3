"""`ekc tune --log-json FILE`, and output without a terminal: stdout has the result alone."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import ekc
from ekc.cli import main
from tests.devices.recording.made import record

TUNE = ["tune", "matmul", "16", "24", "8", "--target", "a100", "--trials", "2", "--out", "o"]
LAYERS = """
[[layer]]
name = "one"
model = "net"
operator = "matvec"
m = 16
k = 16
[[layer]]
name = "two"
model = "other"
operator = "softmax"
shape = [4, 8]
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _events(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def test_events_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    from ekc.search.data.events import EVENTS, STAGES

    Path("run.jsonl").write_text('{"event": "start"}\n{"event": "end"}\n')
    assert main([*TUNE, "--json", "--log-json", "run.jsonl"]) == 0
    out, err = capsys.readouterr()
    result, events = json.loads(out), _events("run.jsonl")
    assert {e["event"] for e in events} <= set(EVENTS)
    assert {e["stage"] for e in events} <= set(STAGES)
    assert [e["event"] for e in (events[0], events[1], events[-1])] == ["start", "forecast", "end"]
    assert {e["device"] for e in events} == {"a100 (simulated)"}
    assert sum(e["event"] == "trial" for e in events) == result["trial_count"] == 2
    for name in ("latency_s", "power_w", "energy_j", "digest", "metered"):
        assert events[-1]["best"][name] == result["best"][name]
    assert "matmul on a100 (simulated): 2/2 trials" in err


def test_lines_are_plain_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": "20", "TTY_COMPATIBLE": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main([*TUNE, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["trial_count"] == 2
    assert "\x1b" not in err
    assert "..." not in err
    assert re.search(r"^ +\d+ s  matmul on a100 \(simulated\): 2/2 trials.*; done$", err, re.MULTILINE)


def test_quiet_run_still_logs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TUNE, "--json", "--quiet", "--log-json", "run.jsonl"]) == 0
    assert capsys.readouterr().err == ""
    assert [e["event"] for e in _events("run.jsonl")].count("forecast") == 0
    assert _events("run.jsonl")[-1]["event"] == "end"


def test_layers_write_one_log_with_names_and_failures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("net.toml").write_text(LAYERS)
    tune = ekc.tune

    def fail_softmax(op: ekc.Operator, **options: Any) -> Any:
        if op.name == "softmax":
            monkeypatch.setattr("ekc.search.loop.finals.Finals.pick_finalists", lambda *_: [])
        return tune(op, **options)

    monkeypatch.setattr(ekc, "tune", fail_softmax, raising=False)
    layers = ["tune", "--layers", "net.toml", "--target", "a100", "--trials", "2", "--json", "--out", "o"]
    assert main([*layers, "--log-json", "run.jsonl"]) == 2
    out, err = capsys.readouterr()
    result, events = json.loads(out), _events("run.jsonl")
    assert [layer["name"] for layer in result["layers"]] == ["one"]
    ends = [(e["layer"], e["model"], e["operator"], e["event"]) for e in events if e["stage"] == "end"]
    assert ends == [("one", "net", "matvec", "end")]
    assert (events[-1]["layer"], events[-1]["event"]) == ("two", "error")
    assert events[-1]["text"] == result["failed"][0]["reason"]
    assert "matvec on a100 (simulated): 2/2 trials" in err


def test_quiet_layers_print_failures_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(op: ekc.Operator, **_: Any) -> Any:
        raise ekc.EkcError(f"no kernel of {op.name}")

    monkeypatch.setattr(ekc, "tune", fail, raising=False)
    Path("net.toml").write_text(LAYERS)
    layers = ["tune", "--layers", "net.toml", "--target", "a100", "--out", "o"]
    lines = ["ekc: layer one: no kernel of matvec", "ekc: layer two: no kernel of softmax"]
    assert main([*layers, "--quiet"]) == 2
    assert capsys.readouterr().err.splitlines() == lines
    assert main(layers) == 2
    assert len(capsys.readouterr().err.splitlines()) == 4


def test_replay_writes_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    record(Path("r.gz"))
    replay = ["tune", "matmul", "32", "32", "32", "--target", "recorded:r.gz", "--trials", "3", "--json"]
    assert main([*replay, "--log-json", "run.jsonl"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["trial_count"] == 3
    assert _events("run.jsonl")[-1]["tried"] == 3
    assert "replay of" in err
    assert "3/3 trials" in err


def test_unwritable_log_is_refused_before_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TUNE, "--log-json", "nowhere/run.jsonl"]) == 2
    assert capsys.readouterr().err == (
        "ekc: --log-json: nowhere/run.jsonl cannot be written (No such file or directory)\n"
    )
    assert not Path("o").exists()


@pytest.mark.parametrize("option", ["--records", "--warm-start"])
def test_log_never_replaces_measurements(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.db").write_bytes(b"SQLite format 3\0 rows")
    assert main([*TUNE, option, "t.db", "--log-json", "./t.db"]) == 2
    assert capsys.readouterr().err == "ekc: --log-json: t.db is a file of measurements; name another one\n"
    assert Path("t.db").read_bytes() == b"SQLite format 3\0 rows"


NO_EVENT_LOGS = {
    "t.db": b"SQLite format 3\0 rows",
    "net.toml": LAYERS.encode(),
    "list.json": b'["event"]\n',
    "other.jsonl": b'{"name": "start"}\n{"event": "end"}\n',
    "blank.txt": b"\n",
    "half.jsonl": b'{"event": "sta',
}


@pytest.mark.parametrize("name", NO_EVENT_LOGS)
def test_other_file_is_refused_under_any_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(name).write_bytes(NO_EVENT_LOGS[name])
    Path("link").hardlink_to(name)
    for file in (name, "link"):
        assert main([*TUNE, "--log-json", file]) == 2
        assert capsys.readouterr().err == (
            f"ekc: --log-json: {file} exists and is no event log; choose another name\n"
        )
    assert Path(name).read_bytes() == NO_EVENT_LOGS[name]
    assert not Path("o").exists()


@pytest.mark.parametrize("name", ["new.db", "new.db-wal", "new.db-shm", "new.db-journal"])
def test_log_takes_no_name_of_a_database_file(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TUNE, "--records", "new.db", "--log-json", name]) == 2
    assert capsys.readouterr().err == f"ekc: --log-json: {name} is a file of measurements; name another one\n"
    assert not list(Path().iterdir())


def test_log_is_no_link_to_an_empty_database(capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.db").touch()
    Path("link").hardlink_to("t.db")
    assert main([*TUNE, "--records", "t.db", "--log-json", "link"]) == 2
    assert capsys.readouterr().err == "ekc: --log-json: link is a file of measurements; name another one\n"


def test_log_without_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TUNE, "--log-json", ""]) == 2
    assert capsys.readouterr().err == (
        "ekc: --log-json: '' names no file; give a name, or - for standard output\n"
    )


@pytest.mark.parametrize(("name", "stream"), [("-", 1), ("/dev/stdout", 1), ("/dev/stderr", 2)])
def test_standard_stream_takes_the_events(name: str, stream: int, capfd: pytest.CaptureFixture[str]) -> None:
    os.write(stream, b"of an earlier command\n")
    assert main([*TUNE, "--json", "--quiet", "--log-json", name]) == 0
    lines = capfd.readouterr()[stream - 1].splitlines()
    assert lines.pop(0) == "of an earlier command"
    if stream == 1:
        assert json.loads(lines.pop())["trial_count"] == 2
    events = [json.loads(line)["event"] for line in lines]
    assert (events[0], events[-1]) == ("start", "end")
    assert not Path("-").exists()


def test_full_disk_ends_the_log_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TUNE, "--json", "--log-json", "/dev/full"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["trial_count"] == 2
    assert err.count("cannot be written any more (No space left on device)") == 1


def test_long_recording_search_logs_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ekc.search.progress.PROGRESS_INTERVAL_S", 0.0)
    one = {"invalidity": "correct", "times": {"runtimes": []}, "correctness": 1, "objectives": ["time"]}
    results = [
        one | {"configuration": {"a": n}, "measurements": [{"name": "time", "value": 1 + n, "unit": "ms"}]}
        for n in range(20)
    ]
    Path("t4.json").write_text(json.dumps({"schema_version": "1.0.0", "results": results}))
    assert main(["recording", "search", "t4.json", "--trials", "9", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["trials"] == 9
    assert "9/9 trials" in err
