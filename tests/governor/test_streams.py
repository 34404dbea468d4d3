"""Exit status of `ekc govern` for commands that do not start, and its output in pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ekc.governor.live.governed_job import CommandJob, CommandStartError
from ekc.processes.process_facts import list_process_family
from tests.governor.helpers import python_command, run_govern, wait_until
from tests.scripted.nvml.boards import ScriptedBoards

RESTLESS_SCRIPT = str(Path(__file__).with_name("restless_govern.py"))
UNKNOWN = 999
SETTERS = (
    "nvmlDeviceSetPowerManagementLimit",
    "nvmlDeviceResetGpuLockedClocks",
    "nvmlDeviceResetMemoryLockedClocks",
    "nvmlDeviceSetMemoryLockedClocks",
)


def make_file(folder: Path, name: str, text: str, mode: int) -> str:
    file = folder / name
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def test_commands_that_do_not_start_have_the_statuses_of_shells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    make_file(tmp_path, "no-program", "#!/no/such/program\n", 0o755)
    commands = {
        "no-such-command": (127, "No such file"),
        "": (127, "No such file"),
        str(tmp_path / "none"): (127, "No such file"),
        str(tmp_path): (126, "Permission denied"),
        make_file(tmp_path, "not-executable", "#!/bin/sh\n", 0o644): (126, "Permission denied"),
        "not-executable": (126, "Permission denied"),
        "no-program": (126, "the program that its first line names does not exist"),
        make_file(tmp_path, "no-format", "no program", 0o755): (126, "Exec format error"),
        str(tmp_path / "no-format" / "below"): (126, "Not a directory"),
    }
    for command, (status, words) in commands.items():
        with pytest.raises(CommandStartError, match=words) as caught:
            CommandJob([command])
        assert caught.value.exit_status == status, command


def test_command_that_does_not_start_is_one_line(one: ScriptedBoards) -> None:
    status, out, err = run_govern(one, "--", "no-such-command", "word")
    assert (status, out) == (127, "")
    assert err == "ekc: cannot run 'no-such-command': No such file or directory\n"


def test_reader_of_the_output_ends_with_the_job(one: ScriptedBoards) -> None:
    """The guard once held stderr open for a minute where nothing could be put back."""
    words = [sys.executable, RESTLESS_SCRIPT, *python_command("import time; time.sleep(120)")[1:]]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        streams = {"stdout": reader.stdin, "stderr": reader.stdin}
        governor = subprocess.Popen(words, env=one.environment, **streams)
        reader.stdin.close()
        wait_until(lambda: not one.are_limits_back())
        one.update_script(fail=dict.fromkeys(SETTERS, UNKNOWN))
        members = list_process_family(governor.pid)
        (guard,) = [x for x in members if b"clocks.guard" in Path(f"/proc/{x}/cmdline").read_bytes()]
        for pid in members - {guard}:
            os.kill(pid, signal.SIGKILL)
        governor.wait()
        text = reader.stdout.read().decode()
        assert Path(f"/proc/{guard}").exists()
    assert "it is tried again for a minute" in text
    assert one.has_lease()
    one.update_script(fail={})
    wait_until(one.is_restored)


@pytest.mark.exhaustive
def test_pipeline_ends_with_the_job(one: ScriptedBoards) -> None:
    words = f"{sys.executable} -m ekc govern --gpu 0 -- sh -c 'sleep 2; echo done' 2>&1 | cat"
    done = subprocess.run(
        ["sh", "-c", words], env=one.environment, capture_output=True, timeout=60, text=True
    )
    assert "done\n" in done.stdout
    assert "ekc govern: report" in done.stdout
