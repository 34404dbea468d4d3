"""The six operators of the main job, tuned on the simulated a100, and every kept kernel verified.

    python -m benchmarks.search.tune_table [--json FILE] [--only NAME] [--trials N] [--seed N]

Kept are the best, the fastest and every kernel of the latency-energy front. Each must compile for
sm_80 and sm_90; executed on the CPU under a sanitizer, the PTX of both must agree with a float64
reference on chosen blocks of the full-size grid. Last, the winner for MM 4096^3 against the schedule that
DESIGN.md writes by hand, both timed on the same simulated device.
"""

from __future__ import annotations

from typing import Any

import ekc
from benchmarks.common.operators import OPERATORS
from benchmarks.common.script import Arguments, Column, format_lines, make_main
from ekc import devices
from ekc.codegen.generate import compile_schedule
from ekc.devices.analytic_prior import ANALYTIC
from ekc.errors import EkcError
from ekc.ir.comparison.compare import make_random_input_arrays
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.runtime.verify import verify
from ekc.search.data.trial import Trial
from ekc.search.tuning_result import TuningResult

TARGET = "a100"
ARCHITECTURES = ("sm_80", "sm_90")
BAR = 20.0
"""Times faster than the naive schedule, where that one is starved."""
STARVED = 0.05
"""A naive schedule below this share of the roofline is memory- or compute-starved, if the operator is not so
small that starting a kernel takes longer than its work."""
BY_HAND = "MM 4096^3 by hand"
COLUMNS = (
    Column("operator", "operator"),
    Column("best [us]", "best_latency_s", ".2f", 1e6),
    Column("fastest [us]", "fastest_latency_s", ".2f", 1e6),
    Column("naive [us]", "naive_latency_s", ".1f", 1e6),
    Column("speed-up", "speedup", ".1f"),
    Column("energy [mJ]", "energy_j", ".3f", 1e3),
    Column("power [W]", "power_w", ".0f"),
    Column("roofline", "roofline_share", ".0%"),
    Column("trials", "trials"),
    Column("metered", "metered"),
    Column("failed", "failed"),
    Column("kept", "kept"),
    Column("right", "right"),
    Column("s", "seconds", ".0f"),
)
OPTIONS = {
    "--only": {"choices": (*OPERATORS, BY_HAND), "metavar": "NAME", "help": "one line alone"},
    "--trials": {"type": int, "default": 128},
    "--side": {"type": int, "default": 4096, "help": "of the matmul written by hand"},
}


def make_hand_schedule(side: int) -> ekc.Schedule:
    """The schedule of DESIGN.md's example: shared and register tiles, vthreads, double buffering."""
    return (
        ekc.Schedule(ekc.matmul(side, side, side))
        .split("i", (2, 16, 4))
        .split("j", (2, 16, 4))
        .split("k", (8,))
        .reorder("i.0", "j.0", "k.0", "i.2", "j.2", "k.1", "i.1", "i.3", "j.1", "j.3")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.2", "thread.y")
        .bind("j.2", "thread.x")
        .bind("i.1", "vthread")
        .bind("j.1", "vthread")
        .cache_write("C", "register", vector=4)
        .cache_read("A", "shared", at="k.0", vector=4, order=(1, 0), pad=4)
        .cache_read("B", "shared", at="k.0", vector=4)
        .cache_read("A.shared", "register", at="k.1", vector=4)
        .cache_read("B.shared", "register", at="k.1", vector=4)
        .pipeline("k.0", stages=2)
        .unroll("k.1")
    )


def list_kept(result: TuningResult) -> list[Trial]:
    """Best, fastest and the front, each schedule once."""
    return list({t.schedule.digest: t for t in (result.best, result.fastest, *result.pareto)}.values())


def find_problems(op: ekc.Operator, trials: list[Trial]) -> list[str]:
    """Find what is wrong with kept kernels: empty if all compile everywhere and execute right."""
    expected, problems = ReferenceEvaluator(op, make_random_input_arrays(op)), []
    for trial in trials:
        name = f"{trial.schedule.digest} ({trial.structure})"
        for arch in ARCHITECTURES:
            try:
                verdict = verify(trial.schedule, compile_schedule(trial.schedule, arch), expected)
            except EkcError as problem:
                problems.append(f"{name} for {arch}: {str(problem).splitlines()[0]}")
                continue
            if not verdict.ok:
                problems.append(f"{name} for {arch}: {verdict}")
    return problems


def measure_operator(name: str, op: ekc.Operator, trials: int, seed: int) -> dict[str, Any]:
    """Tune one operator and verify its kept kernels."""
    result = ekc.tune(op, target=TARGET, trials=trials, seed=seed, progress=False)
    best, naive = result.best, result.baseline
    assert best.latency_s is not None
    assert result.fastest.latency_s is not None
    kept = list_kept(result)
    problems = find_problems(op, kept)
    speedup = naive.latency_s / best.latency_s if naive.latency_s else None
    least_s = result.roof.least_s
    starved = least_s > ANALYTIC.launch_latency_s and (
        naive.latency_s is None or least_s / naive.latency_s < STARVED
    )
    return {
        "operator": name,
        "best_latency_s": best.latency_s,
        "fastest_latency_s": result.fastest.latency_s,
        "naive_latency_s": naive.latency_s,
        "speedup": speedup,
        "fastest_speedup": naive.latency_s / result.fastest.latency_s if naive.latency_s else None,
        "naive_starved": starved,
        "energy_j": best.energy_j,
        "fastest_energy_j": result.fastest.energy_j,
        "power_w": best.power_w,
        "roofline_share": result.roofline_share,
        "roofline_bound": result.roof.bound,
        "structure": best.structure,
        "digest": best.schedule.digest,
        "trials": result.trial_count,
        "metered": result.metered_count,
        "failed": sum(not t.ok for t in result.trials),
        "failures": sorted({t.status.splitlines()[0] for t in result.trials if not t.ok}),
        "kept": len(kept),
        "problems": problems,
        "right": f"{len(problems)} WRONG" if problems else "all",
        "seconds": result.seconds,
        "bar": {"speedup": BAR if starved else None, "problems": 0},
        "pass": not problems and (not starved or (speedup is not None and speedup >= BAR)),
    }


def compare_with_hand(side: int, trials: int, seed: int) -> dict[str, Any]:
    """Compare the winner of a square matmul with the schedule written by hand."""
    schedule, device = make_hand_schedule(side), devices.open(TARGET)
    hand = device.time(compile_schedule(schedule, device.arch, device.limits)).latency_s
    line = measure_operator(f"MM {side}^3", schedule.op, trials, seed)
    line["hand_latency_s"] = hand
    line["bar"] |= {"latency_s": hand}
    line["pass"] = line["pass"] and line["fastest_latency_s"] <= hand
    return line


def list_notes(line: dict[str, Any]) -> list[str]:
    """List the facts that the table has no room for."""
    notes = [f"{line['operator']}: {problem}" for problem in (*line["problems"], *line["failures"])]
    if "hand_latency_s" in line:
        hand, fastest = line["hand_latency_s"], line["fastest_latency_s"]
        notes.append(
            f"{line['operator']}: by hand {hand * 1e6:.1f} us, tuned {fastest * 1e6:.1f} us "
            f"(fastest), {line['best_latency_s'] * 1e6:.1f} us (best): {hand / fastest:.2f} times as fast"
        )
    if not line["naive_starved"]:
        notes.append(f"{line['operator']}: the naive schedule is not starved; no speed-up is asked for")
    if not line["pass"]:
        fastest = line["fastest_speedup"] or 0
        notes.append(f"{line['operator']}: FAIL (the fastest is {fastest:.1f} times as fast as the naive)")
    return notes


def measure(arguments: Arguments) -> dict[str, Any]:
    """Tune each operator, verify the kept kernels, and print the table."""
    label, lines = devices.open(TARGET).label, []
    for name, make in OPERATORS.items():
        if arguments.only in (None, name):
            lines.append(measure_operator(name, make(), arguments.trials, arguments.seed))
    if arguments.only in (None, BY_HAND):
        lines.append(compare_with_hand(arguments.side, arguments.trials, arguments.seed))
    print(f"device {label}, {arguments.trials} trials, seed {arguments.seed}")
    print(format_lines(COLUMNS, lines))
    print("\n".join(note for line in lines for note in list_notes(line)))
    print(
        f"kept kernels compiled for {' and '.join(ARCHITECTURES)}; their PTX was executed on the CPU, under\n"
        "a sanitizer, and compared with a reference on chosen blocks. Every figure of speed is simulated."
    )
    return {"device": label, "lines": lines}


main = make_main(__doc__, measure, {"speedup": BAR, "problems": 0}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
