"""Fidelity of simulated devices: predictions against recordings of real GPUs.

    python -m benchmarks.simulator.fidelity --data DIR [--json FILE] [--seed N] [--rows N] [--sample-only]
        [--best N] [--shapes N] [--trials N] [--only PART] [--cache DIR] [--write-docs]

CLBlast configurations become schedules of ekc (clblast.py). Of each recording a stratified sample goes
through NVRTC and ptxas, and every other row through the analysis with a register estimate (estimated.py).
Half of the sampled configurations, by a hash of their names, fit the free constants of the latency model,
the other half scores; each figure is compared with a trivial predictor. The fastest kernels of each
recording are scored apart (top.py). The error of the simulator is split into a part that similar
kernels share and a part of each kernel alone (residual.py). Then products of bfloat16 are tuned for the
simulated h200, and their fastest kernels are compared with recorded kernels of a library (h200.py). No GPU is
needed; every prediction is simulated."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.script import DATA, Arguments, make_main, use_compile_cache
from benchmarks.simulator import h200, residual, top, write_docs
from benchmarks.simulator.power import score_all
from benchmarks.simulator.rows import (
    LATENCY,
    SHIPPED,
    Pairs,
    Recording,
    Work,
    compile_work,
    compute_works,
    estimate_work,
    fit,
    get_recorded,
    is_unfitted,
    pair_rows,
    predict_constant,
    predict_times,
    read,
    run,
    sample_stratified,
    score,
    score_by_tile,
)
from ekc.codegen import nvrtc

RANK_BARS = {"a100": 0.9, "rtx3090": 0.75, "rtx2080ti": 0.75}
ERROR_BAR = 0.25
PARTS = ("clblast", "top", "residual", "h200")
SCORED = ("shipped", "refitted", "own clock")


def make_latency_line(
    recording: Recording, how: str, pairs: Pairs, learn: NDArray[np.bool_], fits: dict[str, tuple[Any, float]]
) -> dict[str, Any]:
    """Scores on the rows that were not learnt from."""
    held = [pair for pair, used in zip(pairs, learn, strict=True) if not used]
    real = get_recorded(held)
    found = {name: score(predict_times(recording.spec, held, *fitted), real) for name, fitted in fits.items()}
    if not recording.clock_share:
        # The device as a whole: arguments for its top clock, it finds the one that its power cap allows.
        states = [run(recording.spec, work, recording.spec.boost_mhz) for _, work in held]
        found["own clock"] = score(np.array([state.latency_s for state in states]), real)
    shipped = found["shipped"]
    middle = predict_constant(get_recorded(pairs), learn)[~learn]
    is_ranked = shipped["spearman"] >= RANK_BARS[recording.device]
    return {
        "what": f"latency, {recording.device} (simulated)",
        "how": how,
        **found,
        "trivial": {
            "minus thread tile": score_by_tile(held),
            "constant": score(middle, real),
        },
        "bar": {"spearman": RANK_BARS[recording.device], "median_error": ERROR_BAR},
        "pass": is_ranked and shipped["median_error"] <= ERROR_BAR,
    }


def measure_clblast(data: Path, count: int, seed: int, whole: bool) -> dict[str, Any]:
    """Score the latency and power models on CLBlast kernels."""
    begun = time.perf_counter()
    everything = {one.device: read(data, one) for one in LATENCY}
    samples = {one.device: sample_stratified(everything[one.device], count, seed) for one in LATENCY}
    compiled = {one.device: compute_works(one.spec, samples[one.device], compile_work) for one in LATENCY}
    pairs = {one.device: pair_rows(samples[one.device], compiled[one.device]) for one in LATENCY}
    learn = {
        device: np.array([not is_unfitted(row.one) for row, _ in found]) for device, found in pairs.items()
    }
    fitted = fit(
        [
            (one, [p for p, used in zip(pairs[one.device], learn[one.device], strict=True) if used])
            for one in LATENCY
        ]
    )
    lines, registers, plots = [], [], {}
    for n, one in enumerate(LATENCY):
        found, both = pairs[one.device], {"shipped": SHIPPED, "refitted": fitted}
        fits = {name: (values.rates, values.clock_shares[n]) for name, values in both.items()}
        lines.append(
            make_latency_line(one, f"{len(compiled[one.device])} compiled", found, learn[one.device], fits)
        )
        plots[one.device] = (predict_times(one.spec, found, *fits["shipped"]), get_recorded(found))
        registers.append(compare_registers(one, compiled[one.device]))
        if whole:
            rest = everything[one.device]
            guessed = pair_rows(rest, compute_works(one.spec, rest, estimate_work))
            unseen = np.isin([str(row.one) for row, _ in guessed], [str(r.one) for r, _ in found])
            lines.append(make_latency_line(one, "not compiled, estimated", guessed, unseen, fits))
    lines += score_all(data, pairs["a100"], learn["a100"], seed)
    return {
        "lines": lines,
        "registers": registers,
        "shipped": asdict(SHIPPED),
        "fitted": asdict(fitted),
        "rows": count,
        "seed": seed,
        "seconds": time.perf_counter() - begun,
        "plots": plots,
        "pass": all(line["pass"] for line in lines),
    }


def compare_registers(recording: Recording, compiled: dict[Any, Work | None]) -> dict[str, Any]:
    """The register estimate against ptxas."""
    both = [(estimate_work(recording.spec, one), work) for one, work in compiled.items() if work is not None]
    pairs = [(guess.registers, work.registers) for guess, work in both if guess is not None]
    guessed, real = np.array(pairs, dtype=np.float64).T
    return {"device": recording.device, **score(guessed, real)}


def format_score(found: dict[str, Any]) -> str:
    """One score as text."""
    error = found["median_error"]
    off = "no error" if error is None else f"median error {error:.1%}"
    return f"rank {found['spearman']:.2f}, {off} ({found['rows']} rows)"


def format_result(result: dict[str, Any]) -> str:
    """The scores as text."""
    said = [f"{result['rows']} rows of each recording compiled, seed {result['seed']}"]
    for line in result["lines"]:
        said += [f"{line['what']}, {line['how']}: {'pass' if line['pass'] else 'FAIL'} {line['bar']}"]
        said += [f"    {name:18} {format_score(line[name])}" for name in SCORED if name in line]
        said += [f"    {name:18} {format_score(one)}" for name, one in line["trivial"].items()]
    for one in result["registers"]:
        said.append(f"register estimate against ptxas, {one['device']}: {format_score(one)}")
    said.append(f"shipped  {result['shipped']}")
    said.append(f"refitted {result['fitted']}")
    return "\n".join(said)


_MEASURED: dict[str, Callable[[Arguments, Path], dict[str, Any]]] = {
    "clblast": lambda arguments, _: measure_clblast(
        arguments.data, arguments.rows, arguments.seed, not arguments.sample_only
    ),
    "top": lambda arguments, _: top.measure(arguments.data, arguments.best, arguments.seed),
    "residual": lambda arguments, _: residual.measure(arguments.data, arguments.rows, arguments.seed),
    "h200": lambda arguments, place: h200.compare(
        arguments.data, arguments.shapes, arguments.trials, arguments.seed, place / "h200.db"
    ),
}
_TEXTS = {
    "clblast": format_result,
    "top": top.format_result,
    "residual": residual.format_result,
    "h200": h200.format_result,
}


def measure(arguments: Arguments) -> dict[str, Any]:
    """Measure the parts, print the scores, and write the page where arguments."""
    print(f"NVRTC {nvrtc.version()}; all predictions are simulated")
    parts = (arguments.only,) if arguments.only else PARTS
    with use_compile_cache(arguments.cache) as place:
        results = {part: _MEASURED[part](arguments, place) for part in parts}
    plots = results["clblast"].pop("plots") if "clblast" in results else {}
    texts = {part: _TEXTS[part](result) for part, result in results.items()}
    print("\n".join(texts.values()))
    if arguments.write_docs:
        write_docs.write(texts, plots)
    others = {part: results.get(part) for part in PARTS[1:]}
    passed = all(result["pass"] for result in results.values())
    return results.get("clblast", {}) | others | {"pass": passed}


OPTIONS = {
    "--data": DATA,
    "--rows": {"type": int, "default": 500, "help": "rows of each recording to compile"},
    "--best": {"type": int, "default": 60, "help": "best kernels of each estimate to compile"},
    "--shapes": {"type": int, "default": 20, "help": "shapes to tune for the h200, at most 20"},
    "--trials": {"type": int, "default": 64, "help": "trials of each of them"},
    "--only": {"choices": PARTS, "help": "one part; --write-docs keeps what the page says of the others"},
    "--sample-only": {"action": "store_true", "help": "leave out the rows that are not compiled"},
    "--cache": {"type": Path, "help": "folder that keeps compiled kernels and trials; default: none is kept"},
    "--write-docs": {"action": "store_true", "help": "write docs/explanation/simulated-devices.md"},
}
main = make_main(__doc__, measure, {"spearman": RANK_BARS, "median_error": ERROR_BAR}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
