"""T4 JSON: the export follows the schema, and files of other tuners can be searched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ekc import devices
from ekc.cli import main
from ekc.devices.recording import Recording, RecordingWriter, read_recording
from ekc.errors import InvalidInput
from ekc.search.replay.replay import replay_search
from ekc.search.replay.t4 import from_t4, to_t4
from ekc.search.replay.table_space import TableSpace
from tests.devices.recording.helpers import OP, record, schedules

INVALID = ("timeout", "compile", "runtime", "correctness", "constraints", "correct")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return read_recording(record(tmp_path_factory.mktemp("t4") / "small.jsonl.gz", count=6))


def test_export_follows_schema(recording: Recording) -> None:
    data = json.loads(json.dumps(to_t4(recording, OP)))
    assert data["schema_version"] == "1.0.0"
    assert "(simulated), recorded" in data["ekc"]["device"]
    for result, row in zip(data["results"], recording.find_rows(OP), strict=True):
        assert {"configuration", "times", "invalidity", "correctness"} <= set(result)
        assert result["invalidity"] in INVALID
        assert result["invalidity"] == ("correct" if row.timings else "compile")
        if row.timings:
            figures = {m["name"]: (m["value"], m["unit"]) for m in result["measurements"]}
            assert figures["time"] == (1e3 * row.find_timing().latency_s, "ms")
            assert len(result["times"]["runtimes"]) == row.find_timing().samples
            assert ("energy" in figures) == bool(row.meterings)


def test_exported_rows_are_read_as_table(recording: Recording) -> None:
    text = json.dumps(to_t4(recording, OP))
    table = from_t4(text)
    real = [1e3 * r.find_timing().latency_s if r.timings else np.nan for r in recording.find_rows(OP)]
    np.testing.assert_allclose(table.figures, real)
    joules = from_t4(text, "energy").figures
    assert np.isfinite(joules).sum() == sum(bool(r.meterings) for r in recording.find_rows(OP))
    tried = replay_search(table, TableSpace(table), len(real), seed=0)
    assert np.nanmin(table.figures[tried]) == table.best_figure


def test_export_needs_one_of_several_operators(recording: Recording) -> None:
    with pytest.raises(InvalidInput, match=r"holds several operators, name one of matmul.*; matvec"):
        to_t4(recording)


def _theirs(**changes: Any) -> str:
    """Make a file as another tuner writes it."""
    results = [
        {
            "timestamp": "2024-01-01",
            "configuration": {"block_size_x": x, "method": method, "tile": 1},
            "times": {"compilation": 100.0, "runtimes": [x / 10]},
            "invalidity": "correct" if x < 512 else "runtime",
            "correctness": 1,
            "measurements": [{"name": "time", "value": x / 10 + (method == "slow"), "unit": "ms"}],
            "objectives": ["time"],
        }
        for x in (64, 128, 256, 512)
        for method in ("fast", "slow")
    ]
    return json.dumps({"schema_version": "1.0.0", "results": results} | changes)


def _time(value: float, unit: str = "ms") -> dict[str, Any]:
    return {"name": "time", "value": value, "unit": unit}


def _result(x: int = 1, **changes: Any) -> dict[str, Any]:
    made = {"configuration": {"x": x}, "invalidity": "correct", "measurements": [_time(x)]}
    return made | changes


def test_unmeasured_schedule_is_not_exported(tmp_path: Path) -> None:
    file, (schedule, structure) = tmp_path / "killed.jsonl.gz", schedules()[0]
    with RecordingWriter(file, devices.open("a100")) as writer:
        writer.add_schedule(schedule, structure, {}, None)
    assert to_t4(read_recording(file))["results"] == []


def test_file_of_another_tuner_is_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = from_t4(_theirs())
    assert table.decision_names == ("block_size_x", "method")
    assert table.best_figure == 6.4
    assert np.isnan(table.figures[-2:]).all()
    file = tmp_path / "theirs.json"
    file.write_text(_theirs())
    assert main(["recording", "search", str(file), "--trials", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        **{"figure": "time", "unit": "ms", "rows": 8, "trials": 8, "found": 6.4, "best": 6.4}
    }
    assert main(["recording", "search", str(file), "--trials", "8"]) == 0
    message = capsys.readouterr().out
    assert message.startswith("time 6.4 ms after 8 of 8 rows")
    assert "the best of all is 6.4 ms" in message
    assert main(["recording", "search", str(file), "--seed", "-1"]) == 2
    assert "--seed" in capsys.readouterr().err


def test_search_minimises_chosen_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The widest block that works takes longest, and least energy."""
    data = json.loads(_theirs())
    for result in data["results"]:
        joules = 1024 / result["configuration"]["block_size_x"]
        result["measurements"].append({"name": "energy", "value": joules, "unit": "J"})
    file = tmp_path / "theirs.json"
    file.write_text(json.dumps(data))
    assert main(["recording", "search", str(file), "--figure", "energy", "--trials", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["figure"], found["found"], found["best"]) == ("energy", 4.0, 4.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "needs schema_version"),
        (_theirs(schema_version="2.0.0"), "schema_version is '2.0.0'"),
        (_theirs(results=[{"times": {}}]), "result 0 has no configuration"),
        (_theirs(results=[]), "T4"),
        (_theirs(results=[_result(measurements={"time": 1.0})]), "measurements of result 0 are no list"),
        (_theirs(results=[_result(measurements=["time"])]), "measurements of result 0 are no list"),
        (_theirs(results=[_result()]), "there is nothing to choose"),
        (_theirs(results=[_result(configuration={})] * 2), "there is nothing to choose"),
        (
            _theirs(results=[_result(), _result(2, measurements=[_time(1, "s")])]),
            "several units, 'ms' and 's'",
        ),
    ],
)
def test_bad_file_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as problem:
        from_t4(text)
    assert "\n" not in str(problem.value)


def test_missing_measurement_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"no result that worked has a figure 'energy' .* measured: time$"):
        from_t4(_theirs(), "energy")


@pytest.mark.parametrize(
    "nothing", [None, [], [{"name": "time", "unit": "ms"}], [{"name": "time", "value": None}]]
)
def test_result_without_figure_is_a_failure(nothing: Any) -> None:
    table = from_t4(_theirs(results=[_result(1), _result(2, measurements=nothing)]))
    assert np.isnan(table.figures).tolist() == [False, True]
