"""Bad input on the command line: one clear line on stderr, status 2, no traceback, nothing lost."""

from __future__ import annotations

import codecs
import gzip
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ekc
from ekc.devices import nvml
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.database.database import RecordStore
from tests.cli.conftest import CommandLine, Printed
from tests.devices.recording.helpers import record

TINY = "tune matmul 16 16 16 --trials 4 --quiet"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("matmul 0 4 4", "at least 1; use 1"),
        ("matmul -5 4 4", "-5, at least 1"),
        ("matmul 4 4 2.5", "2.5 is not a whole number"),
        ("matmul 4 4 nan", "nan is not a whole number"),
        ("matmul 99999999999999999999 4 4", "at most 1099511627776"),
        (f"matmul {'9' * 5000} 4 4", "is not a whole number"),
        ("matmul 1099511627776 1099511627776 4", "at most 2**40"),
        ("matmul four 4 4", "'four' is not a whole number"),
        ("matmul 4 4", "k missing"),
        ("matmul 4 4 4 4", "takes 3 extents"),
        ("matmul 4 4 4 --groups 2", "no argument 'groups'; arguments are m, n, k"),
        ("conv2d 1 4 8 8 --n 1 --out-channels 4", "n is given twice"),
        ("matmul 4 4 4 --dtype float46", "; nearest is"),
        ("matmul 4 4 4 --out-dtype int99", "int99"),
        ("matmul 4 4 4 --dtype float16 --acc-dtype float16", "use 'float32'"),
        ("matmul 4 4 200000 --dtype int8", "use 131071 terms"),
        ("matmul 4 4 4 --target a1000", "did you mean 'a100'"),
        ("matmul 4 4 4 --target cuda:zero", "the index must be a number"),
        ("matmul 4 4 4 --objective speed", "choices are energy, latency, edp"),
        ("matmul 4 4 4 --clocks fast", "choices are fixed, search"),
        ("matmul 4 4 4 --clocks serach", "nearest is 'search'"),
        ("matmul 4 4 4 --effort quik", "choices are quick, standard, full; nearest is 'quick'"),
        ("matmul 4 4 4 --trials 0", "at least 1; use 1"),
        ("matmul 4 4 4 --trials many", "not a valid integer"),
        ("matmul 4 4 4 --seed -1", "-1, at least 0"),
        ("matmul 4 4 4 --max-slowdown -1", "outside 0 to 10"),
        ("matmul 4 4 4 --time-budget 0", "not above 0"),
        ("matmul 4 4 4 --workers 0", "--workers"),
        ("matmul 4 4 4 --trails 5", "--trials"),
        ("--trails 5 matmul 4 4 4", "No such option '--trails'"),
        ("matmul 4 4 4 --trials 8 --effort quick", "effort and trials: give one"),
        ("conv2d --n 1 --c 4 --h 4 --w 4 --out-channels 4 --kernel 9", "use padding=3"),
        ("conv2d 1 4 8 8 --out-channels 4 --groups 3", "does not divide c=4"),
        ("conv2d 1 4 8 8 --out-channels 4 --padding -1", "-1, at least 0"),
        ("conv2d 1 4 8 8 --out-channels 4 --padding sme", "nor one of same, valid; use 'same'"),
        ("conv2d 1 4 8 8 --out-channels 4 --padding 1:2:3", "neither a number, nor pairs"),
        ("conv2d 1 4 8 8 --out-channels 4 --padding 1:2x1x1", "has 3 entries for 2 image dimensions"),
        ("conv2d 1 4 8 8 --out-channels 4 --stride 1:2", "stride: ((1, 2),) is neither one whole number"),
        ("conv2d 1 4 8 8 --out-channels 4 --kernel 3x3x3", "neither one whole number nor a pair"),
        ("einsum 'ab,bc->a!' 4x4 4x4", "is not of the form"),
        ("einsum 'ab,bc->ac' 4x4 5x4", "is 4 in one place and 5 in another"),
        ("einsum 'ab,bc->ac' 4x 4x4", "is not written as 128x64"),
        ("softmax 4xy", "is not written as 128x64"),
        ("softmax 4x4 --axis 5", "axis: 5 is not from -2 to 1"),
        ("layer_norm 64 512", "takes one shape, got 64 512; did you mean 64x512?"),
        ("reduce 4x4 1", "takes one shape, got 4x4 1; did you mean 4x4x1?"),
        ("softmax 4x4 --axis last", "axis: 'last' is not from -2 to 1"),
        ("layer_norm", "shape missing"),
        ("rms_norm 4x4 --eps -1", "eps: -1 is not a number of at least 0"),
        ("reduce 4x4 --axes 0x2", "axis: 2 is not from -2 to 1"),
        ("reduce 4x4 --combine summ", "nearest is 'sum'"),
        ("conv_transpose2d 1 4 8 8 --out-channels 4 --output-padding 1", "not below its stride or dilation"),
        ("conv2d 1 4 8 8 --out-channels 4 --layout NWHC", "choices are NCHW, NHWC"),
        ("conv3d 1 4 8 8 --out-channels 4", "w missing"),
        ("matmul 4 4 4 --epilogue 'relu(c +'", "is no expression"),
        ("matmul 4 4 4 --epilogue '1/0 + c'", "epilogue: '1/0' divides by 0"),
        ("matvec 4 4 --epilogue 'y * (3e38 * 10)'", "'3e38 * 10' is no number of float32"),
        ("matmul 4 4 4 --epilogue 'relu(c + bias)'", "it names c and bias; the inputs are none"),
        ("matmul 4 4 4 --epilogue c+bias", "if c is the result, add --input bias=SHAPE"),
        ("matmul 4x4x4", "'4x4x4' is not a whole number; write matmul M N K; did you mean matmul 4 4 4?"),
        ("matmul m=4 n=4 k=4", "did you mean matmul 4 4 4?"),
        ("matmul 4 4", "matmul: k missing; write matmul M N K"),
        ("conv2d 1 4 8 8", "--out-channels missing; write conv2d N C H W --out-channels NUMBER"),
        ("softmax 4,8", "'4,8' is not written as 128x64; did you mean 4x8?"),
        ("matmul 4 4 4 --dtype float64", "nearest is 'float32'"),
        ("matmul 4 0 4", "n: 0, at least 1; use 1"),
        ("matmul 4 4 4 --name cutlass", "ptxas compiles a kernel with 'cutlass' in its name differently"),
        ("matmul 4 4 4 --epilogue 'c + bias' --input bias:4", "is not written as bias=768"),
        ("matmul 4 4 4 --epilogue 'c + bias' --input bias=4 --input bias=1", "bias is given twice"),
        ("matmul 4 4 4 --epilogue 'c + bias' --input bias=5", "does not broadcast"),
        ("matmul 4 4 4 --input bias=4", "inputs are those of an epilogue"),
        ("matmux 4 4 4", "did you mean 'matmul'"),
        ("", "which operator?"),
        ("--model nowhere.toml", "nowhere.toml cannot be read"),
        ("matmul 4 4 4 --model nowhere.toml", "leave OPERATOR out"),
        ("--model nowhere.toml --name 2x2", "--name: '2x2' is not an identifier"),
        ("matmul 4 4 4 --name 2x2", "--name: '2x2' is not an identifier"),
    ],
)
def test_bad_operators_and_options_are_refused(cli: CommandLine, command: str, words: str) -> None:
    assert words in cli.refusal(f"tune {command} --quiet")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("explain --recrods x best fastest", "No such option '--recrods'"),
        ("explain best --recrods x fastest", "No such option '--recrods'"),
        ("show --tarket a100 matmul 4 4 4", "No such option '--tarket'"),
        ("recording t4 --oot x file matmul 4 4 4", "No such option '--oot'"),
        ("show matmul 4 4 4 --target zzz", "'zzz'"),
        (
            "export matmul 4 4 4 --objective latency",
            "--objective: it chooses among the schedules of a record",
        ),
        ("show --schedule s.json --max-slowdown 0.1", "--max-slowdown: --schedule names the one schedule"),
        ("best matmul 4 4 4 --records x.db --objective speed", "choices are energy, latency, edp"),
        ("explain best fastest --max-slowdown -1", "outside 0 to 10"),
        ("explain best fastest", "add --records"),
        ("explain best fastest --records none.db", "no record file"),
        ("explain best", "Missing argument"),
        ("tune matmul 16 16 16 --trials 8 --effort quick --out o --records r.db", "give one"),
        ("best matmul 16 16 16 --records none.db", "there is no record file"),
        ("best matmul 4 4 4", "Missing option '--records'"),
        ("show --schedule none.json", "cannot be read"),
        ("check matmul 16 16 16 --arch sm_81", "nearest: sm_80"),
        ("tune matmul 4 4 4 --target nope", "'nope'"),
        ("tune matmul 0 4 4", "at least 1; use 1"),
        ("tun", "No such command 'tun'"),
    ],
)
def test_bad_commands_are_refused_and_leave_no_file(cli: CommandLine, command: str, words: str) -> None:
    assert words in cli.refusal(command)
    assert list(Path().iterdir()) == []


def test_missing_gpu_is_one_line(cli: CommandLine) -> None:
    if not isinstance(nvml.count_gpus(), nvml.GpuAbsence):
        pytest.skip("this machine has a GPU")
    assert "use a simulated device" in cli.refusal(f"{TINY} --target cuda:0")


def test_missing_nvrtc_is_one_line(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert "pip install nvidia-cuda-nvrtc" in cli.refusal(TINY)
    assert "NVRTC cannot be loaded" in cli("doctor", status=1).out


def test_output_folder_is_checked_before_tuning(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("not a folder")
    monkeypatch.setattr("ekc.cli.tune.TuneArguments.run_model", lambda *_: pytest.fail("tuning began"))
    assert "cannot write into file/here" in cli.refusal(f"{TINY} --out file/here")
    assert "cannot write into file/here" in cli.refusal("export matmul 8 8 8 --out file/here")


LAYER = '[[layer]]\nname = "{name}"\noperator = "{operator}"\nm = {m}\nn = 8\nk = 8\n'


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"operator": "matmux"}, "no operator 'matmux'"),
        ({"m": 0}, "layer last: m: 0"),
        ({"operator": "matvec"}, "layer last: matvec: no argument 'n'"),
        ({"m": "[1"}, "bad.toml, line"),
    ],
)
def test_mistake_in_the_last_layer_is_found_before_tuning(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, layer: dict[str, object], words: str
) -> None:
    monkeypatch.setattr("ekc.cli.tune.TuneArguments.run_model", lambda *_: pytest.fail("tuning began"))
    good = {"name": "first", "operator": "matmul", "m": 8}
    Path("bad.toml").write_text(LAYER.format(**good) + LAYER.format(**{**good, "name": "last", **layer}))
    assert words in cli.refusal("tune --model bad.toml --quiet")


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record file with a short tuning run in it."""
    path = tmp_path_factory.mktemp("records") / "tuning.db"
    ekc.tune(ekc.matmul(16, 16, 16), target="a100", trials=2, records=path, progress=False)
    return path


@pytest.fixture
def records(short_run: Path, tmp_path: Path) -> Path:
    """A copy of the record file, to be changed."""
    return Path(shutil.copy(short_run, tmp_path / "tuning.db"))


def change_rows(records: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(records) as connection:
        connection.execute(statement, values)
    connection.close()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1000]), "cut short"),
        (lambda file: change_rows(file, "pragma user_version = 99"), "newer ekc"),
        (lambda file: file.write_text("these are not records, but notes\n" * 40), "not an SQLite file"),
    ],
)
def test_unusable_record_file_is_not_changed(
    cli: CommandLine, records: Path, spoil: Callable[[Path], object], words: str
) -> None:
    spoil(records)
    before = records.read_bytes()
    for command in (f"{TINY} --records {records}", f"best matmul 16 16 16 --records {records}"):
        assert words in cli.refusal(command)
    assert records.read_bytes() == before


def test_locked_record_file_keeps_its_rows(cli: CommandLine, records: Path) -> None:
    with RecordStore(records, create=False) as store:
        rows = len(list(store.read_rows()))
    other = sqlite3.connect(records, isolation_level=None)
    other.execute("begin immediate")
    assert "locked by another process" in cli.refusal(f"{TINY} --records {records} --seed 5")
    other.execute("rollback")
    other.close()
    with RecordStore(records, create=False) as store:
        assert len(list(store.read_rows())) == rows


def test_record_file_without_the_operator_is_refused(cli: CommandLine, records: Path) -> None:
    assert "no metered schedule" in cli.refusal(f"best matmul 17 17 17 --records {records}")


def _schedule(**changes: object) -> str:
    data = json.loads(ekc.Schedule(ekc.matmul(8, 8, 8)).split("i", (4,)).to_json())
    return json.dumps(data | changes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_schedule().replace('"i"', '"i; int x"'), "is not an identifier"),
        (_schedule().replace('"i"', '"while"'), "reserved word"),
        (_schedule(format=99), "format 99"),
        (_schedule(steps=[{"step": "splitt"}]), "nearest is 'split'"),
        (
            _schedule(steps=[{"step": "split", "loop": "z", "factors": [4]}]),
            "split: no loop 'z'; loops are i, j, k; nearest is 'k'",
        ),
        ("{", "is not JSON"),
        ("[]", "needs format, operator and steps"),
    ],
)
def test_bad_schedule_file_is_refused(cli: CommandLine, text: str, words: str) -> None:
    Path("s.json").write_text(text)
    for command in ("show", "run", "check", "export"):
        assert words in cli.refusal(f"{command} --schedule s.json")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ([np.ones((16, 8), np.float32)] * 2, "A has shape (16, 8), needed (16, 16)"),
        ([np.ones((16, 16), np.float64)] * 2, "try A.astype('float32')"),
        ([np.ones((16, 16), np.float32)], "takes 2 arrays"),
    ],
)
def test_bad_arrays_at_call_are_refused(arrays: list[np.ndarray], words: str) -> None:
    kernel = ekc.compile(ekc.Schedule(ekc.matmul(16, 16, 16)))
    with pytest.raises(ekc.InvalidInput) as caught:
        kernel(*arrays)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def run_ekc(*words: str, **streams: object) -> subprocess.CompletedProcess[str]:
    """Run `ekc` in a process of its own."""
    start = [sys.executable, "-c", "import sys; from ekc.cli import main; sys.exit(main())"]
    return subprocess.run([*start, *words], text=True, stderr=subprocess.PIPE, **streams)  # type: ignore[call-overload, no-any-return]


def test_installed_command_prints_one_line() -> None:
    ran = run_ekc("tune", "matmul", "0", "4", "4", stdout=subprocess.PIPE)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("ekc: ")
    assert ran.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        ran = run_ekc("--help", stdout=full)
    assert (ran.returncode, ran.stderr) == (2, "ekc: no space is left where the output goes\n")


def test_interrupt_outside_tune_is_status_130(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ekc.cli.sources.ScheduleSource.find_schedule", stop)
    assert cli("show matmul 4 4 4", status=130).err.strip() == "ekc: interrupted"


# Files with contents of all kinds

RESULTS = [
    {"configuration": {"a": n}, "invalidity": "correct", "measurements": [{"name": "time", "value": n + 1}]}
    for n in range(6)
]
LAYERS = '[[layer]]\nname = "one"\noperator = "matvec"\nm = 8\nk = 8\nepilogue = "relu(y"\n'
TEXTS = {
    "schedule": (make_naive_schedule(ekc.matvec(8, 8)).to_json(), "show --schedule f"),
    "layers": (LAYERS, "tune --model f.toml --quiet"),
    "t4": (
        json.dumps({"schema_version": "1.0.0", "results": RESULTS}, indent=1),
        "recording search f --trials 3 --json",
    ),
}
"""Well-formed texts. Layers are refused for their contents, so that nothing runs."""


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


def write_file(data: bytes) -> None:
    """Write the bytes under each of the names that the commands read."""
    for name in ("f", "f.toml"):
        Path(name).write_bytes(data)


def run_with_file(cli: CommandLine, command: str, data: bytes, status: int) -> Printed:
    """Output of a command that reads these bytes."""
    write_file(data)
    return cli(command, status)


@pytest.mark.parametrize("change", SAME)
@pytest.mark.parametrize(("kind", "status"), [("schedule", 0), ("layers", 2), ("t4", 0)])
def test_byte_order_mark_and_crlf_change_nothing(
    kind: str, status: int, change: str, cli: CommandLine
) -> None:
    text, command = TEXTS[kind]
    plain, changed = (
        run_with_file(cli, command, data, status) for data in (text.encode(), SAME[change](text.encode()))
    )
    assert changed == plain


@pytest.mark.parametrize("change", BROKEN)
@pytest.mark.parametrize("kind", TEXTS)
def test_unreadable_file_is_one_line(kind: str, change: str, cli: CommandLine) -> None:
    text, command = TEXTS[kind]
    write_file(BROKEN[change](text.encode()))
    line = cli.refusal(command)
    assert kind == "schedule" or " f" in line, "the line names the file"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return gzip.decompress(record(tmp_path_factory.mktemp("recording") / "r.gz", 3).read_bytes())


def test_recording_is_read_with_byte_order_mark_and_crlf(recording: bytes, cli: CommandLine) -> None:
    plain = run_with_file(cli, "recording show f", gzip.compress(recording), 0)
    for change in SAME.values():
        assert run_with_file(cli, "recording show f", gzip.compress(change(recording)), 0) == plain


def test_bad_recording_is_one_line(recording: bytes, cli: CommandLine) -> None:
    for data in (recording, _marked(recording)):
        printed = run_with_file(cli, "recording show f", data, 2)
        assert printed.err == "ekc: f is not compressed, as a recording is; gzip it\n"
    for change in BROKEN.values():
        for data in (change(recording), gzip.compress(change(recording))):
            Path("f").write_bytes(data)
            cli.refusal("recording show f")


@pytest.mark.parametrize(
    ("column", "value", "command"),
    [
        ("created", "", "explain best fastest"),
        ("created", b"\xff", "best matmul 16 16 16"),
        ("operator", "{", "explain best fastest"),
        ("operator", "[" * 100_000, "explain best fastest"),
        ("clock_regime", b"\xff\xfe", "best matmul 16 16 16"),
        ("payload", "[" * 100_000, "best matmul 16 16 16"),
    ],
)
def test_damaged_row_is_one_line(
    column: str, value: object, command: str, records: Path, cli: CommandLine
) -> None:
    change_rows(records, f"update trials set {column} = ?", value)
    assert cli.refusal(f"{command} --records tuning.db --target a100").startswith(
        "ekc: tuning.db is damaged: "
    )


@pytest.mark.parametrize("change", [name for name in BROKEN if name not in ("UTF-16", "a zero")])
def test_broken_record_file_is_one_line(change: str, records: Path, cli: CommandLine) -> None:
    records.write_bytes(BROKEN[change](records.read_bytes()))
    cli.refusal("best matmul 16 16 16 --records tuning.db")
