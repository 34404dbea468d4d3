"""Record measured schedules to a file, and tune on the file without the device.

Run:     python replay_recording.py
Prints:  what is recorded in build/recording.jsonl.gz, and the winner of two replays of it.

Here a simulated A100 is recorded, and the file says so. On a machine with a GPU, set TARGET to "cuda:0" or
use the kit (`python -m benchmarks.gpu record`, docs/how-to/kit.md). The same file and seed give the same
winner on any machine.
"""

from pathlib import Path

import numpy as np

import ekc
from ekc.devices.recording import RecordingWriter, read_recording
from ekc.ir.analysis.analysis import analyse_program
from ekc.search.space.space import Space

TARGET, FILE, SCHEDULES = "a100", Path("build/recording.jsonl.gz"), 8


def record(op: ekc.Operator, path: Path) -> None:
    """Time and meter legal schedules that are sampled at random."""
    device = ekc.devices.open(TARGET)
    space, random = Space(op, device.limits), np.random.default_rng(0)
    population, _ = space.repair(random, space.sample(random, 4 * SCHEDULES))
    path.parent.mkdir(exist_ok=True)
    with RecordingWriter(path, device) as writer:
        for row in range(min(SCHEDULES, len(population))):
            schedule = space.build_schedule(population, row)
            kernel = ekc.compile(schedule, arch=device.arch).compiled
            figures = analyse_program(schedule.program, device.limits)
            writer.add_schedule(schedule, space.get_structure_name(population, row), figures, kernel)
            writer.add_timing(schedule, device.time(kernel))
            writer.add_metering(schedule, device.meter(kernel))


def main() -> None:
    op = ekc.matmul(64, 64, 64)
    FILE.unlink(missing_ok=True)
    record(op, FILE)
    recording = read_recording(FILE)
    print(f"{FILE}: {recording.origin.description}, {len(recording.rows)} schedules")
    for row in recording.rows:
        latency, energy = row.timings[0].latency_s, row.meterings[0].energy_j
        print(f"  {row.digest}{1e6 * latency:9.2f} us{1e6 * energy:9.1f} uJ")

    for objective in ("latency", "energy"):
        result = ekc.tune(
            op, target=f"recorded:{FILE}", objective=objective, trials=SCHEDULES, seed=0, progress=False
        )
        best = result.best
        print(f"\nleast {objective} of {result.trial_count} replayed, {result.device.label}:")
        print(f"  {best.schedule.digest}{1e6 * best.latency_s:9.2f} us{1e6 * best.energy_j:9.1f} uJ")


if __name__ == "__main__":
    main()
