"""Every file that a command reads, with contents of all kinds: it is read, or refused in one line."""

from __future__ import annotations

import codecs
import gzip
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import ekc
from ekc.cli import main
from ekc.errors import RecordError
from ekc.governor.live.pretrained import check_model
from ekc.governor.predict.model import BoostedModel
from ekc.search.sketches.naive import make_naive_schedule
from tests.devices.recording.made import record

MV = ekc.matvec(8, 8)
RESULTS = [
    {"configuration": {"a": n}, "invalidity": "correct", "measurements": [{"name": "time", "value": n + 1}]}
    for n in range(6)
]
TEXTS: dict[str, tuple[str, list[str]]] = {
    "schedule": (make_naive_schedule(MV).to_json(), ["show", "--schedule", "f"]),
    "layers": (
        '[[layer]]\nname = "one"\noperator = "matvec"\nm = 8\nk = 8\nepilogue = "relu(y"\n',
        ["tune", "--layers", "f", "--quiet"],
    ),
    "t4": (
        json.dumps({"schema_version": "1.0.0", "results": RESULTS}, indent=1),
        ["recording", "search", "f", "--trials", "3", "--json"],
    ),
    "model": (
        json.dumps({"models": {}}),
        ["govern", "--simulate", "compute", "--card", "h200", "--model", "f"],
    ),
}
"""Well-formed texts. Layers and the model are refused for their contents, so that nothing runs."""


def _marked(data: bytes) -> bytes:
    return codecs.BOM_UTF8 + data


def _with_crlf(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


SAME: dict[str, Callable[[bytes], bytes]] = {
    "byte-order mark": _marked,
    "CRLF": _with_crlf,
    "both": lambda data: _marked(_with_crlf(data)),
}
BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "a mark alone": lambda data: codecs.BOM_UTF8,
    "blanks": lambda data: b" \n\n",
    "cut short": lambda data: data[: len(data) // 2],
    "binary": lambda data: bytes(range(256)),
    "zeros": lambda data: bytes(100),
    "a zero": lambda data: data[:20] + b"\0" + data[20:],
    "Latin-1": lambda data: "ä".encode("latin-1") + data,
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "deep": lambda data: b"[" * 100_000,
    "null": lambda data: b"null",
    "a long number": lambda data: b'{"format": ' + b"1" * 5000 + b"}",
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _ran(command: list[str], data: bytes, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    Path("f").write_bytes(data)
    status = main(command)
    return (status, *capsys.readouterr())


@pytest.mark.parametrize("change", SAME)
@pytest.mark.parametrize("kind", TEXTS)
def test_byte_order_mark_and_crlf_change_nothing(
    kind: str, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text, command = TEXTS[kind]
    assert _ran(command, SAME[change](text.encode()), capsys) == _ran(command, text.encode(), capsys)


@pytest.mark.parametrize("change", BROKEN)
@pytest.mark.parametrize("kind", TEXTS)
def test_unreadable_file_is_one_line(kind: str, change: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, command = TEXTS[kind]
    status, out, err = _ran(command, BROKEN[change](text.encode()), capsys)
    assert (status, out) == (2, "")
    assert err.startswith("ekc: ")
    assert err.count("\n") == 1
    assert kind == "schedule" or " f" in err, "the line names the file"


def test_governor_model_is_read_with_byte_order_mark() -> None:
    """The refusal is about the content, not about the byte order mark."""
    text = json.dumps({"format": 0, "features": [], "models": {}})
    for data in (text.encode(), _marked(text.encode())):
        Path("m").write_bytes(data)
        check_model("m")
        with pytest.raises(RecordError, match="trained for another version of ekc"):
            BoostedModel.load(Path("m"))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return gzip.decompress(record(tmp_path_factory.mktemp("recording") / "r.gz", 3).read_bytes())


def test_recording_is_read_with_byte_order_mark_and_crlf(
    recording: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = _ran(["recording", "show", "f"], gzip.compress(recording), capsys)
    assert plain[0] == 0
    for change in SAME.values():
        assert _ran(["recording", "show", "f"], gzip.compress(change(recording)), capsys) == plain


def test_bad_recording_is_one_line(recording: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    for data in (recording, _marked(recording)):
        _, _, err = _ran(["recording", "show", "f"], data, capsys)
        assert err == "ekc: f is not compressed, as a recording is; gzip it\n"
    for name, change in BROKEN.items():
        for data in (change(recording), gzip.compress(change(recording))):
            status, out, err = _ran(["recording", "show", "f"], data, capsys)
            assert err.count("\n") == 1
            assert (status, out) == (2, "") or name == "cut short"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("records") / "t.db"
    ekc.tune(MV, target="a100", trials=1, progress=False, records=file)
    return file


DAMAGE = [
    ("created", "", "explain best fastest --records f --target a100"),
    ("created", b"\xff", "best matvec 8 8 --records f --target a100"),
    ("operator", "{", "explain best fastest --records f --target a100"),
    ("operator", "[" * 100_000, "explain best fastest --records f --target a100"),
    ("clock_regime", b"\xff\xfe", "best matvec 8 8 --records f --target a100"),
    ("payload", "[" * 100_000, "best matvec 8 8 --records f --target a100"),
]


@pytest.mark.parametrize(("column", "value", "command"), DAMAGE)
def test_damaged_row_is_one_line(
    column: str, value: object, command: str, records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(records, "f")
    with sqlite3.connect("f") as connection:
        connection.execute(f"update trials set {column} = ?", (value,))
    connection.close()
    assert main(command.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith("ekc: f is damaged: ")
    assert err.count("\n") == 1


def test_broken_record_files_are_one_line(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for change in (c for name, c in BROKEN.items() if name not in ("UTF-16", "a zero")):
        status, _, err = _ran(
            ["best", "matvec", "8", "8", "--records", "f"], change(records.read_bytes()), capsys
        )
        assert status == 2
        assert err.count("\n") == 1
