"""docs/how-to/govern.md: the commands that need a GPU and the Python block work, over a scripted NVML.

The other blocks are executed with the site.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks
from tests.scripted.nvml.boards import ScriptedBoards

PAGE = (ROOT / "docs" / "how-to" / "govern.md").read_text()
COMMANDS = re.findall(
    r"^ekc govern .*$", "".join(re.findall(r"^```sh gpu\n(.*?)^```", PAGE, re.M | re.S)), re.M
)


@pytest.fixture
def job() -> Iterator[subprocess.Popen[bytes]]:
    """A process to be governed, while it lasts."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("line", [x for x in COMMANDS if "torchrun" not in x])
def test_command_governs_and_restores_limits(line: str, tmp_path: Path, job: subprocess.Popen[bytes]) -> None:
    boards = ScriptedBoards(tmp_path)
    (tmp_path / "train.py").write_text("import time; time.sleep(1)")
    program, *words = shlex.split(line.replace("4711", str(job.pid)))
    assert program == "ekc"
    words = [sys.executable if word == "python" else word for word in words]
    process = boards.start_python("-m", "ekc", *words)
    if "--pid" in words:
        assert process.stderr is not None
        first = process.stderr.readline()
        assert ("advice" if "--advise" in words else "governing through") in first
        job.kill()
    _, err = process.communicate(timeout=120)
    assert (process.returncode, "Traceback" in err, "ungoverned" in err) == (0, False, False)
    assert boards.read_limits() == (None, None, 280_000)


def test_python_block_restores_limits(tmp_path: Path) -> None:
    boards = ScriptedBoards(tmp_path)
    (block,) = (x for x in blocks(PAGE) if x.language == "python" and "ekc.Governor(" in x.text)
    given = "import time\nbatches = range(5)\ntrain = lambda batch: time.sleep(0.2)\n"
    (tmp_path / "script.py").write_text(given + block.text)
    process = boards.start_python("script.py")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert boards.read_limits() == (None, None, 280_000)
