"""Strategies of Kernel Tuner on a table, in its simulation mode; `quality.py` starts it.

    python kernel_tuner_replay.py < job.json > traces.json

Needs `kernel_tuner` alone, not ekc. The job: names, settings, figures (null for a failure), strategies,
seeds, trials. The answer: per strategy and seed the rows in the order in which they were first evaluated.
Constraints are given as the set of the table's rows, so that no strategy tries what was not recorded.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

KERNEL = "recorded"


def write_cache(job: dict[str, Any], folder: Path) -> Path:
    """The table in the format of Kernel Tuner's cache."""
    entries = {}
    for setting, figure in zip(job["settings"], job["figures"], strict=True):
        entry: dict[str, Any] = dict(zip(job["names"], setting, strict=True))
        entry["time"] = "RuntimeFailedConfig" if figure is None else figure
        if figure is None:
            entry["__error__"] = "RuntimeFailedConfig"
        entry |= dict.fromkeys(("compile_time", "verification_time", "benchmark_time"), 0.0)
        entries[",".join(map(str, setting))] = entry
    params = {name: sorted({s[i] for s in job["settings"]}) for i, name in enumerate(job["names"])}
    file = folder / "cache.json"
    whole = {
        "device_name": "recorded",
        "kernel_name": KERNEL,
        "problem_size": [1],
        "tune_params_keys": job["names"],
        "tune_params": params,
        "objective": "time",
        "cache": entries,
    }
    file.write_text(json.dumps(whole))
    return file


def run_strategy(job: dict[str, Any], file: Path, strategy: str, seed: int) -> list[int]:
    """Rows of the table in the order in which one run evaluated them first."""
    import kernel_tuner
    import numpy as np

    random.seed(seed)
    np.random.seed(seed)
    rows = {tuple(s): i for i, s in enumerate(job["settings"])}
    params = {name: sorted({s[i] for s in job["settings"]}) for i, name in enumerate(job["names"])}

    # Not a lambda: Kernel Tuner would parse its text.
    def is_recorded(setting: dict[str, Any]) -> bool:
        return tuple(setting[name] for name in job["names"]) in rows

    results, _ = kernel_tuner.tune_kernel(
        KERNEL,
        "void recorded() {}",
        1,
        [],
        params,
        restrictions=is_recorded,
        lang="C",
        strategy=strategy,
        strategy_options={"max_fevals": job["trials"]},
        cache=str(file),
        simulation_mode=True,
        objective="time",
        objective_higher_is_better=False,
        quiet=True,
    )
    tried = [rows[tuple(r[n] for n in job["names"])] for r in results]
    return list(dict.fromkeys(tried))[: job["trials"]]


def main() -> None:
    """Read the job, write the traces; what Kernel Tuner prints goes to stderr."""
    job = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        file = write_cache(job, Path(folder))
        found = {s: [run_strategy(job, file, s, seed) for seed in job["seeds"]] for s in job["strategies"]}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
