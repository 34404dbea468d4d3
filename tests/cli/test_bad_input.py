"""Bad input on the command line: one clear line on stderr, status 2, no traceback, nothing lost."""

from __future__ import annotations

import hashlib
import json
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ekc
from ekc.cli import main
from ekc.search.database.database import RecordStore

TINY = "tune matmul 16 16 16 --trials 4 --quiet"


def refused(capsys: pytest.CaptureFixture[str], command: str) -> str:
    """The line with which a command is refused."""
    capsys.readouterr()
    status = main(shlex.split(command))
    out, err = capsys.readouterr()
    assert status == 2, (out, err)
    assert out == ""
    assert err.startswith("ekc: ")
    assert err.count("\n") == 1, err
    return err


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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
        ("einsum 'aB,Bc->ac' 4x4 4x4", "is the name of a tensor"),
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
        ("matmul 4 4 4 --epilogue 'c + bias' --input bias:4", "is not written as bias=768"),
        ("matmul 4 4 4 --epilogue 'c + bias' --input bias=4 --input bias=1", "bias is given twice"),
        ("matmul 4 4 4 --epilogue 'c + bias' --input bias=5", "does not broadcast"),
        ("matmul 4 4 4 --input bias=4", "inputs are those of an epilogue"),
        ("matmux 4 4 4", "did you mean 'matmul'"),
        ("", "which operator?"),
        ("--layers nowhere.toml", "nowhere.toml cannot be read"),
        ("matmul 4 4 4 --layers nowhere.toml", "leave OPERATOR out"),
        ("--layers nowhere.toml --name 2x2", "--name: '2x2' is not an identifier"),
        ("matmul 4 4 4 --name 2x2", "--name: '2x2' is not an identifier"),
    ],
)
def test_bad_operators_and_options_are_refused(
    capsys: pytest.CaptureFixture[str], command: str, words: str
) -> None:
    assert words in refused(capsys, f"tune {command} --quiet")


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
    ],
)
def test_unused_options_are_refused(capsys: pytest.CaptureFixture[str], command: str, words: str) -> None:
    assert words in refused(capsys, command)


def test_exclusive_options_leave_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, "tune matmul 16 16 16 --trials 8 --effort quick --out o --records r.db")
    assert list(Path().iterdir()) == []


def test_missing_gpu_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from ekc.devices import nvml

    if not isinstance(nvml.count_gpus(), nvml.GpuAbsence):
        pytest.skip("this machine has a GPU")
    assert "use a simulated device" in refused(capsys, f"{TINY} --target cuda:0")


def test_missing_nvrtc_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert "pip install nvidia-cuda-nvrtc" in refused(capsys, TINY)
    assert main(["doctor"]) == 1
    assert "NVRTC cannot be loaded" in capsys.readouterr().out


def test_output_folder_is_checked_before_tuning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("file").write_text("not a folder")
    monkeypatch.setattr(
        "ekc.cli.tune_arguments.TuneArguments.run_tuning", lambda *_: pytest.fail("tuning began")
    )
    assert "cannot write into file/here" in refused(capsys, f"{TINY} --out file/here")
    assert "cannot write into file/here" in refused(capsys, "export matmul 8 8 8 --out file/here")


LAYER = '[[layer]]\nname = "{name}"\noperator = "{operator}"\nm = {m}\nn = 8\nk = 8\n'


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"operator": "matmux"}, "no operator 'matmux'"),
        ({"m": 0}, "layer last: extent of axis i: 0"),
        ({"operator": "matvec"}, "layer last: matvec: no argument 'n'"),
        ({"m": "[1"}, "bad.toml, line"),
    ],
)
def test_mistake_in_the_last_layer_is_found_before_tuning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, layer: dict[str, object], words: str
) -> None:
    monkeypatch.setattr(
        "ekc.cli.tune_arguments.TuneArguments.run_tuning", lambda *_: pytest.fail("tuning began")
    )
    good = {"name": "first", "operator": "matmul", "m": 8}
    Path("bad.toml").write_text(LAYER.format(**good) + LAYER.format(**{**good, "name": "last", **layer}))
    assert words in refused(capsys, "tune --layers bad.toml --quiet")


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A record file with a short tuning run in it."""
    path = tmp_path / "tuning.db"
    ekc.tune(ekc.matmul(16, 16, 16), target="a100", trials=2, records=path, progress=False)
    return path


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def _newer(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("pragma user_version = 99")
    connection.close()


def _foreign(path: Path) -> None:
    path.write_text("these are not records, but somebody's notes\n" * 40)


@pytest.mark.parametrize(
    ("spoil", "words"), [(_truncated, "cut short"), (_newer, "newer ekc"), (_foreign, "not an SQLite file")]
)
def test_unusable_record_file_is_not_changed(
    capsys: pytest.CaptureFixture[str], records: Path, spoil: object, words: str
) -> None:
    spoil(records)  # type: ignore[operator]
    before = _digest(records)
    for command in (f"{TINY} --records {records}", f"best matmul 16 16 16 --records {records}"):
        assert words in refused(capsys, command)
    assert _digest(records) == before


def test_locked_record_file_keeps_its_rows(capsys: pytest.CaptureFixture[str], records: Path) -> None:
    with RecordStore(records, create=False) as store:
        rows = len(list(store.read_rows()))
    other = sqlite3.connect(records, isolation_level=None)
    other.execute("begin immediate")
    assert "locked by another process" in refused(capsys, f"{TINY} --records {records} --seed 5")
    other.execute("rollback")
    other.close()
    with RecordStore(records, create=False) as store:
        assert len(list(store.read_rows())) == rows


def test_record_file_without_the_operator_is_refused(
    capsys: pytest.CaptureFixture[str], records: Path
) -> None:
    assert "no metered schedule" in refused(capsys, f"best matmul 17 17 17 --records {records}")
    assert "there is no record file" in refused(capsys, "best matmul 16 16 16 --records none.db")


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
def test_bad_schedule_file_is_refused(capsys: pytest.CaptureFixture[str], text: str, words: str) -> None:
    Path("s.json").write_text(text)
    for command in ("show", "run", "check", "export"):
        assert words in refused(capsys, f"{command} --schedule s.json")


def test_missing_schedule_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot be read" in refused(capsys, "show --schedule none.json")
    Path("bytes.json").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in refused(capsys, "show --schedule bytes.json")


def test_unknown_arch_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nearest: sm_80" in refused(capsys, "check matmul 16 16 16 --arch sm_81")


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


@pytest.mark.parametrize(
    "command",
    ["tune matmul 0 4 4", "tune matmul 4 4 4 --target nope", "tun", "best matmul 4 4 4", "show --schedule x"],
)
def test_installed_command_prints_one_line(command: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "import sys; from ekc.cli import main; sys.exit(main())", *command.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith("ekc: ")
    assert ran.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_interrupt_outside_tune_is_status_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ekc.cli.schedule_source.ScheduleSource.find_schedule", stop)
    assert main(["show", "matmul", "4", "4", "4"]) == 130
    assert capsys.readouterr().err.strip() == "ekc: interrupted"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", "import sys; from ekc.cli import main; sys.exit(main())", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (ran.returncode, ran.stderr) == (2, "ekc: no space is left where the output goes\n")
