"""`ekc tune --log-json FILE`, and output without a terminal: stdout has the result alone."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from ekc.cli import main
from ekc.search.data.candidate import Candidate
from ekc.search.data.events import EVENTS, STAGES
from ekc.search.loop.finals import Finals
from tests.cli.conftest import CommandLine
from tests.devices.recording.helpers import record

TUNE = "tune matvec 16 24 --target a100 --trials 2 --out o"
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


def _events(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def test_events_are_one_line_each(cli: CommandLine) -> None:
    Path("run.jsonl").write_text('{"event": "start"}\n{"event": "end"}\n')
    out, err = cli(f"{TUNE} --json --log-json run.jsonl")
    result, events = json.loads(out), _events("run.jsonl")
    assert {e["event"] for e in events} <= set(EVENTS)
    assert {e["stage"] for e in events} <= set(STAGES)
    assert [e["event"] for e in (events[0], events[1], events[-1])] == ["start", "stage", "end"]
    assert {e["device"] for e in events} == {"a100 (simulated)"}
    assert sum(e["event"] == "trial" for e in events) == result["trial_count"] == 2
    for name in ("latency_s", "power_w", "energy_j", "digest", "metered"):
        assert events[-1]["best"][name] == result["best"][name]
    assert "matvec on a100 (simulated): 2/2 trials" in err


def test_lines_are_plain_without_a_terminal(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": "20", "TTY_COMPATIBLE": "1"}.items():
        monkeypatch.setenv(name, value)
    out, err = cli(f"{TUNE} --json")
    assert json.loads(out)["trial_count"] == 2
    assert "\x1b" not in err
    assert "..." not in err
    assert re.search(r"^ +\d+ s  matvec on a100 \(simulated\): 2/2 trials.*; done$", err, re.MULTILINE)


def test_quiet_run_still_logs(cli: CommandLine) -> None:
    assert cli(f"{TUNE} --json --quiet --log-json run.jsonl").err == ""
    assert _events("run.jsonl")[-1]["event"] == "end"


def test_layers_write_one_log_with_names_and_failures(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("net.toml").write_text(LAYERS)
    pick_finalists = Finals.pick_finalists

    def find_none_of_softmax(finals: Finals, candidates: list[Candidate]) -> list[Candidate]:
        return [] if finals.op.name == "softmax" else pick_finalists(finals, candidates)

    monkeypatch.setattr(Finals, "pick_finalists", find_none_of_softmax)
    layers = "tune --model net.toml --target a100 --trials-per-layer 2 --json --out o"
    out, err = cli(f"{layers} --log-json run.jsonl", status=2)
    result, events = json.loads(out), _events("run.jsonl")
    assert [layer["name"] for layer in result["layers"]] == ["one"]
    ends = [(e["layer"], e["model"], e["operator"], e["event"]) for e in events if e["stage"] == "end"]
    assert ends == [("one", "net", "matvec", "end")]
    assert (events[-1]["layer"], events[-1]["event"]) == ("two", "error")
    assert events[-1]["text"] == result["failed"][0]["reason"]
    assert {(e["planned"], e["layer"]) for e in events} == {(4, "one"), (4, "two")}
    assert "one on a100 (simulated): 2/4 trials" in err


def test_quiet_model_prints_failures_alone(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Finals, "pick_finalists", lambda *_: [])
    Path("net.toml").write_text(LAYERS)
    err = cli("tune --model net.toml --target a100 --trials 2 --out o --quiet", status=2).err
    assert err.startswith(
        "ekc: net: no layer has a kernel; one: matvec on a100 (simulated): no schedule works"
    )
    assert "; two: softmax on a100 (simulated): no schedule works" in err
    assert err.count("\n") == 1


def test_replay_writes_a_log(cli: CommandLine) -> None:
    record(Path("r.gz"))
    replay = "tune matmul 32 32 32 --target recorded:r.gz --trials 3 --json"
    out, err = cli(f"{replay} --log-json run.jsonl")
    assert json.loads(out)["trial_count"] == 3
    assert _events("run.jsonl")[-1]["tried"] == 3
    assert "matmul on a100 (simulated), recorded " in err
    assert "3/3 trials" in err


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("nowhere/run.jsonl", "nowhere/run.jsonl cannot be written (No such file or directory)"),
        ("''", "'' names no file; give a name, or - for standard output"),
        *(
            (f"new.db{end}", f"new.db{end} is a file of measurements; name another one")
            for end in ("", "-wal", "-shm", "-journal")
        ),
    ],
)
def test_bad_log_name_is_refused_before_the_run(file: str, words: str, cli: CommandLine) -> None:
    assert cli.refusal(f"{TUNE} --records new.db --log-json {file}") == f"ekc: --log-json: {words}\n"
    assert not list(Path().iterdir())


@pytest.mark.parametrize(("file", "name"), [("./t.db", "t.db"), ("link", "link")])
@pytest.mark.parametrize("data", [b"", b"SQLite format 3\0 rows"])
def test_log_never_replaces_measurements(file: str, name: str, data: bytes, cli: CommandLine) -> None:
    Path("t.db").write_bytes(data)
    Path("link").hardlink_to("t.db")
    line = cli.refusal(f"{TUNE} --records t.db --log-json {file}")
    assert line == f"ekc: --log-json: {name} is a file of measurements; name another one\n"
    assert Path("t.db").read_bytes() == data


NO_EVENT_LOGS = {
    "t.db": b"SQLite format 3\0 rows",
    "net.toml": LAYERS.encode(),
    "list.json": b'["event"]\n',
    "other.jsonl": b'{"name": "start"}\n{"event": "end"}\n',
    "blank.txt": b"\n",
    "half.jsonl": b'{"event": "sta',
}


@pytest.mark.parametrize("name", NO_EVENT_LOGS)
def test_other_file_is_refused_under_any_name(name: str, cli: CommandLine) -> None:
    Path(name).write_bytes(NO_EVENT_LOGS[name])
    Path("link").hardlink_to(name)
    for file in (name, "link"):
        line = cli.refusal(f"{TUNE} --log-json {file}")
        assert line == f"ekc: --log-json: {file} exists and is no event log; choose another name\n"
    assert Path(name).read_bytes() == NO_EVENT_LOGS[name]
    assert not Path("o").exists()


@pytest.mark.parametrize(("name", "stream"), [("-", 1), ("/dev/stdout", 1), ("/dev/stderr", 2)])
def test_standard_stream_takes_the_events(
    name: str, stream: int, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.write(stream, b"of an earlier command\n")
    assert main([*TUNE.split(), "--json", "--quiet", "--log-json", name]) == 0
    lines = capfd.readouterr()[stream - 1].splitlines()
    assert lines.pop(0) == "of an earlier command"
    if stream == 1:
        assert json.loads(lines.pop())["trial_count"] == 2
    events = [json.loads(line)["event"] for line in lines]
    assert (events[0], events[-1]) == ("start", "end")
    assert not Path("-").exists()


def test_full_disk_ends_the_log_alone(cli: CommandLine) -> None:
    out, err = cli(f"{TUNE} --json --log-json /dev/full")
    assert json.loads(out)["trial_count"] == 2
    assert err.count("cannot be written any more (No space left on device)") == 1


def test_long_recording_search_logs_progress(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ekc.search.progress.PROGRESS_INTERVAL_S", 0.0)
    one = {"invalidity": "correct", "times": {"runtimes": []}, "correctness": 1, "objectives": ["time"]}
    results = [
        one | {"configuration": {"a": n}, "measurements": [{"name": "time", "value": 1 + n, "unit": "ms"}]}
        for n in range(20)
    ]
    Path("t4.json").write_text(json.dumps({"schema_version": "1.0.0", "results": results}))
    out, err = cli("recording search t4.json --trials 9 --json")
    assert json.loads(out)["trials"] == 9
    assert "9/9 trials" in err
