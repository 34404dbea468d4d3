"""Jobs under a driver that fails: are the limits back, are status and output those of the job, and was it
governed all the same?

    python -m benchmarks.governor.driver_errors [--jobs 100] [--parallel 20] [--quick] [--seed 0]

Real processes of `ekc govern -- COMMAND` under a scripted NVML (files that all processes share, see
tests/scripted/nvml): no GPU is touched. Each job gets one kind of failure and one error of NVML, in turn:

| kind | calls that fail | error |
|---|---|---|
| `3 %` | 3 % of all calls | one that may pass: timeout, unknown error, no data and so on |
| `3 %, set first` | the same; a call that sets a limit does so before it fails | the same |
| `settings, set first` | a third of the calls that set a limit, which do so before they fail | the same |
| `outage` | all calls, for some seconds | the same |
| `settings to the end` | all calls that set a limit, until 2 s after the job's end | the same |
| `3 %, lasting error` | 3 % of all calls | not supported, no permission, GPU is lost |
| `lost` | all calls, from some time until the job's end | GPU is lost |

Columns:

- `jobs`: the number of jobs;
- `back`: those whose limits were back in time, with no lease left;
- `by --restore`: those that needed `ekc govern --restore` for that, which is right only where a message on
  stderr named it;
- `status`: those whose governor ended with the status of the job;
- `output`: those with the output of the job, and nothing but messages of ekc on stderr;
- `governed`: those whose control loop has set a limit, and did not end before the job. The first four kinds
  must be governed.

With `--quick`, jobs last seconds under a loop that sets random limits every few milliseconds
(`tests/governor/restless_govern.py`). An outage may end that loop, so `governed` only says that it has set a
clock.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pynvml

from benchmarks.common.script import Arguments, Column, format_lines, make_main
from benchmarks.governor.kills import has_set_clock
from tests.scripted.nvml.boards import ROOT, ScriptedBoards

PASSING = ("TIMEOUT", "UNKNOWN", "IN_USE", "NO_DATA", "MEMORY", "INSUFFICIENT_RESOURCES", "IRQ_ISSUE")
LASTING = ("NOT_SUPPORTED", "NO_PERMISSION", "GPU_IS_LOST")
KINDS = {
    "3 %": PASSING,
    "3 %, set first": PASSING,
    "settings, set first": PASSING,
    "outage": PASSING,
    "settings to the end": PASSING,
    "3 %, lasting error": LASTING,
    "lost": ("GPU_IS_LOST",),
}
GOVERNED = ("3 %", "3 %, set first", "settings, set first", "outage")
"""Kinds under which a job must be governed."""
LATER = ("outage", "settings to the end", "lost")
"""Kinds whose failures do not begin with the job."""
JOB = "import sys, time; print('begun', flush=True); time.sleep({}); print('job done'); sys.exit({})"
BACK_S, GUARD_S = 5.0, 20.0
"""Seconds in which limits must be back after the end of the job; of its guard, after that of the failure."""
NEVER = 1e12
MESSAGE = re.compile(r"ekc (govern|guard): \S.*|  [a-z ]{15} \S.*")
"""A line of the governor or its guard for people, or a row of the report."""


@dataclass(frozen=True)
class Scale:
    """Lengths of a run in seconds."""

    job_s: float
    begin_s: tuple[float, float]
    """Range of the time at which a failure begins that does not hold from the start: after the start of the
    governor, in a quick run after its first setting."""
    outage_s: tuple[float, float]


FULL, QUICK = Scale(110.0, (0.0, 12.0), (0.5, 8.0)), Scale(8.0, (0.0, 0.5), (0.2, 1.0))


@dataclass
class Case:
    """The outcome of one job."""

    kind: str
    error: str
    back_s: float
    """Seconds from the end of the job, or of a failure that outlasts it, until the limits were back."""
    by_restore: bool
    asked_to_restore: bool
    """Whether the output says that limits may not be back."""
    status_right: bool
    output_right: bool
    is_governed: bool
    text: str
    """The governor's text on stderr, where a job failed a check."""

    @property
    def is_right(self) -> bool:
        """Whether all that is asked of this kind holds."""
        is_back = self.back_s < float("inf") and (self.asked_to_restore or not self.by_restore)
        is_governed = self.is_governed or self.kind not in GOVERNED
        return is_back and self.status_right and self.output_right and is_governed


def run_job(kind: str, error: str, seed: int, is_quick: bool) -> Case:
    """Run one job under one kind of failure."""
    rng, scale = random.Random(seed), QUICK if is_quick else FULL
    status = rng.choice([0, 0, 7])
    with tempfile.TemporaryDirectory() as folder:
        boards = ScriptedBoards(Path(folder))
        start_s = time.time()
        begins_later = is_quick and kind in LATER
        if not begins_later:
            fail_calls(boards, kind, error, scale, rng, start_s)
        command = [sys.executable, "-c", JOB.format(scale.job_s, status)]
        events = boards.folder / "events"
        head = ["-m", "ekc", "govern", "--json", str(events), "--"]
        words = [str(ROOT / "tests" / "governor" / "restless_govern.py")] if is_quick else head
        process = boards.start_python(*words, *command, start_new_session=True)
        if begins_later:
            boards.wait_for(has_set_clock, scale.job_s)
            fail_calls(boards, kind, error, scale, rng, start_s)
        out, err = process.communicate()
        boards.update_script(lost=False)
        waits_for_guard = kind == "settings to the end"
        if not waits_for_guard:
            boards.update_script(trouble=None)
        back_s = boards.wait_for(ScriptedBoards.is_restored, GUARD_S if waits_for_guard else BACK_S)
        by_restore = back_s == float("inf")
        if by_restore:
            boards.update_script(trouble=None)
            boards.start_python("-m", "ekc", "govern", "--restore").communicate()
            back_s = 0.0 if boards.is_restored() else back_s
        return Case(
            kind,
            error,
            back_s,
            by_restore,
            asked_to_restore="--restore" in err or "may stay" in err,
            status_right=process.returncode == status,
            output_right=out == "begun\njob done\n" and all(map(_is_message, err.splitlines())),
            is_governed=_is_governed(boards, events, is_quick),
            text=err,
        )


def fail_calls(
    boards: ScriptedBoards, kind: str, error: str, scale: Scale, rng: random.Random, start_s: float
) -> None:
    """Script the failures of one job; its governor starts at `start_s`, Unix time in seconds."""
    begin_s = time.time() + rng.uniform(*scale.begin_s)
    trouble: dict[str, Any] = {"code": getattr(pynvml, f"NVML_ERROR_{error}"), "share": 0.03, "from": 0.0}
    trouble |= {"until": NEVER, "only_set": False, "takes_effect": kind.endswith("set first")}
    if kind == "settings, set first":
        trouble |= {"share": 0.34, "only_set": True}
    elif kind == "outage":
        trouble |= {"share": 1.0, "from": begin_s, "until": begin_s + rng.uniform(*scale.outage_s)}
    elif kind == "settings to the end":
        # The job begins some time after its governor; the failure ends about 2 s after the job.
        end_s = start_s + scale.job_s + 3.0
        trouble |= {"share": 1.0, "only_set": True, "from": max(begin_s, end_s - 60.0), "until": end_s}
    elif kind == "lost":
        trouble |= {"share": 1.0, "from": begin_s}
    boards.update_script(trouble=trouble)


def _is_governed(boards: ScriptedBoards, events: Path, is_quick: bool) -> bool:
    """Whether the control loop has set a limit, and did not end before the job."""
    if is_quick:
        return has_set_clock(boards)
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    is_set = any(x["event"] == "Applied" and x["settings"]["sm_mhz"] is not None for x in lines)
    reports = lines[-1].get("reports") if lines else None
    return is_set and bool(reports) and all(one["problem"] is None for one in reports or ())


def _is_message(line: str) -> bool:
    """Whether a line of stderr is a message of ekc that reports no bug."""
    return MESSAGE.fullmatch(line) is not None and "a bug in ekc" not in line


def measure(arguments: Arguments) -> dict[str, Any]:
    """Run all jobs and print the table."""
    kinds = [list(KINDS)[n % len(KINDS)] for n in range(arguments.jobs)]
    errors = [KINDS[kind][n // len(KINDS) % len(KINDS[kind])] for n, kind in enumerate(kinds)]
    seeds = [arguments.seed * 10_000 + n for n in range(arguments.jobs)]
    with ThreadPoolExecutor(arguments.parallel) as pool:
        quick = [arguments.quick] * arguments.jobs
        cases = list(pool.map(run_job, kinds, errors, seeds, quick))
    lines = [_judge_kind(kind, [x for x in cases if x.kind == kind]) for kind in dict.fromkeys(kinds)]
    print(format_lines(COLUMNS, lines, f"scripted NVML, {arguments.jobs} jobs, seed {arguments.seed}\n"))
    for case in cases:
        if not case.is_right:
            print(f"\nwrong: {case.kind}, {case.error}, {asdict(case)}\n{case.text}")
    return {"lines": lines}


def _judge_kind(kind: str, cases: list[Case]) -> dict[str, Any]:
    return {
        "kind": kind,
        "jobs": len(cases),
        "back": sum(x.back_s < float("inf") for x in cases),
        "by_restore": sum(x.by_restore for x in cases),
        "status": sum(x.status_right for x in cases),
        "output": sum(x.output_right for x in cases),
        "governed": sum(x.is_governed for x in cases),
        "pass": all(x.is_right for x in cases),
    }


COLUMNS = (
    Column("kind", "kind"),
    Column("jobs", "jobs"),
    Column("back", "back"),
    Column("by --restore", "by_restore"),
    Column("status", "status"),
    Column("output", "output"),
    Column("governed", "governed"),
    Column("", "pass"),
)
OPTIONS = {
    "--jobs": {"type": int, "default": 100},
    "--parallel": {"type": int, "default": 20, "help": "jobs at a time, default %(default)s"},
    "--quick": {"action": "store_true", "help": "jobs of some seconds"},
}
main = make_main(__doc__, measure, {"back_s": BACK_S, "back_of_guard_s": GUARD_S}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
