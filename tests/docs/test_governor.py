"""docs/explanation/governor.md: every command and the Python block work as written, over a scripted NVML."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ekc.cli import main
from tests.docs.blocks import ROOT, blocks, read_commands
from tests.scripted.nvml.boards import ScriptedBoards

PAGE = (ROOT / "docs" / "explanation" / "governor.md").read_text()
COMMANDS = read_commands(PAGE, "sh")


@pytest.fixture
def job() -> Iterator[subprocess.Popen[bytes]]:
    """A process to be governed, while it lasts."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("line", [x for x in COMMANDS if "--simulate" not in x])
def test_command_governs_and_restores_limits(line: str, tmp_path: Path, job: subprocess.Popen[bytes]) -> None:
    boards = ScriptedBoards(tmp_path)
    (tmp_path / "train.py").write_text("import time; time.sleep(1)")
    program, *words = shlex.split(line.replace("4711", str(job.pid)))
    assert program == "ekc"
    words = [sys.executable if word == "python" else word for word in words]
    process = boards.start_python("-m", "ekc", *words)
    if "--pid" in words:
        assert process.stderr is not None
        assert "governing through" in process.stderr.readline()
        job.kill()
    _, err = process.communicate(timeout=120)
    assert (process.returncode, "Traceback" in err, "ungoverned" in err) == (0, False, False)
    assert boards.read_limits() == (None, None, 280_000)


@pytest.mark.parametrize("line", [x for x in COMMANDS if "--simulate" in x])
def test_simulation_prints_a_report(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)[1:]) == 0
    err = capsys.readouterr().err
    assert "(simulated)" in err
    assert "ekc govern: report" in err


def test_python_block_restores_limits(tmp_path: Path) -> None:
    boards = ScriptedBoards(tmp_path)
    (block,) = (x for x in blocks(PAGE) if x.language == "python")
    given = "import time\nbatches = range(5)\ntrain = lambda batch: time.sleep(0.2)\n"
    (tmp_path / "script.py").write_text(given + block.text)
    process = boards.start_python("script.py")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert boards.read_limits() == (None, None, 280_000)
