"""Print measured kernels of emmy-ml as CUDA text, for `benchmarks.simulator.foreign`. Needs no GPU.

    python benchmarks/simulator/print_foreign.py CARD FILE.jsonl [--cp-async]

Runs in an environment of its own, without ekc: Python 3.12, `pip install huggingface_hub httpx numpy pyyaml
catboost frozendict`, then `pip install --no-deps emmy-ml==0.3.22` (Apache-2.0). CARD: a100_sm80, h100_sm90 or
rtx4090_sm89. Each measured row becomes one line of JSON: microseconds, CUDA text, grid, block, shared
memory, arguments. A row takes about a second; rows that FILE has are skipped. `--cp-async` prints the rows
that copy by TMA, and those only, with cp.async in its place: not the kernels that were measured.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import signal
from pathlib import Path
from typing import Any

TMA, CP_ASYNC = "smem-tma", "smem-async"
TIMEOUT_S = 60


def print_rows(card: str, target: Path, by_cp_async: bool) -> None:
    """Append the rows of a card to a file."""
    import emmy
    from emmy.compiler import target as compile_target
    from emmy.compiler.pipeline.search.golden import GoldenFile

    logging.disable(logging.WARNING)
    records = Path(emmy.__file__).parent / "compiler/pipeline/search/golden/records"
    golden = GoldenFile.load(records / f"{card}.json")
    compile_target.set_target(tuple(golden.compute_cap))
    known = {json.loads(line)["row"] for line in target.open()} if target.exists() else set()
    signal.signal(signal.SIGALRM, _stop)
    with target.open("a") as file:
        for number, row in enumerate(golden.rows):
            uses_tma = TMA in json.dumps({name: str(value) for name, value in row.knobs.items()})
            if number in known or not row.measured or (by_cp_async and not uses_tma):
                continue
            line = _describe_row(card, number, row) | {"tma_as_cp_async": by_cp_async}
            try:
                signal.alarm(TIMEOUT_S)
                line |= _print_row(golden, row, by_cp_async)
            except Exception as problem:
                line["error"] = f"{type(problem).__name__}: {problem}"[:500]
            finally:
                signal.alarm(0)
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(number, line.get("error", "printed")[:100], line.get("flag") or "", flush=True)


def _stop(*_: Any) -> None:
    raise TimeoutError(f"{TIMEOUT_S} s")


def _describe_row(card: str, number: int, row: Any) -> dict[str, Any]:
    return {
        "row": number,
        "card": card,
        "name": row.name,
        "kernel": row.kernel,
        "bindings": row.bindings,
        "pins": row.pins,
        "knobs": {name: str(value) for name, value in row.knobs.items()},
        "us": row.measurements.emmy_us,
    }


def _print_row(golden: Any, row: Any, by_cp_async: bool) -> dict[str, Any]:
    """CUDA text and launches of a row, and emmy's own check of whether it printed what was measured."""
    from emmy.commands.run import (
        _applied_place_pins,
        _cuda_kernel_names,
        _cuda_knob_dicts,
        _placement_knob_dicts,
    )
    from emmy.compiler.backend.plan import plan_from_graph
    from emmy.compiler.context import Context
    from emmy.compiler.pipeline import CUDA_PASSES, Pipeline
    from emmy.compiler.pipeline.knob import tuning_knob_items
    from emmy.compiler.pipeline.search.pins import pinned_knobs, unreproducible_pin_flag

    knobs = {name: str(value) for name, value in row.knobs.items()}
    if by_cp_async:
        knobs = {name: value.replace(TMA, CP_ASYNC) for name, value in knobs.items()}
    context = Context.from_target(
        tuple(golden.compute_cap),
        gpu_name=golden.gpu_name,
        cold_cache=bool(row.pins.get("COLD_CACHE", False)),
    )
    replay = {**row.pins, "PLACE": "fuse", **dict(tuning_knob_items(knobs))}
    with pinned_knobs(replay):
        graph = golden.kernel(row.kernel).program(row.bindings)
        made = Pipeline.build(CUDA_PASSES).run(graph, ctx=context, db=None)
        flag = unreproducible_pin_flag(
            replay,
            _cuda_knob_dicts(made),
            placement_knobs=_placement_knob_dicts(made),
            kernel_names=_cuda_kernel_names(made),
            applied_place_pins=_applied_place_pins(made),
        )
        plan = plan_from_graph(made)
    symbols = {**plan.symbolic_hints, **row.bindings}
    return {
        "flag": flag,
        "symbols": {name: int(value) for name, value in symbols.items()},
        "launches": [_describe_launch(one, plan, symbols) for one in plan.launches],
        "sources": {name: kernel.source for name, kernel in plan.kernels.items()},
    }


def _describe_launch(launch: Any, plan: Any, symbols: dict[str, Any]) -> dict[str, Any]:
    from emmy.compiler.ir.cuda.ir import resolve_dim

    buffers = {one.name: one for one in plan.buffers}

    def count_bytes(name: str) -> int:
        element = buffers[name].dtype
        width = element.nbytes if isinstance(getattr(element, "nbytes", None), int) else element.np.itemsize
        return int(math.prod(buffers[name].resolve_shape(symbols) or (1,)) * width)

    return {
        "name": launch.kernel_name,
        "grid": [int(resolve_dim(extent, symbols)) for extent in launch.grid],
        "block": [int(resolve_dim(extent, symbols)) for extent in launch.block],
        "shared_bytes": int(launch.smem_bytes),
        "arguments": list(launch.arg_names),
        "argument_bytes": {name: count_bytes(name) for name in launch.arg_names if name in buffers},
        "runtime": [str(one) for one in launch.runtime_args],
        "tma": len(launch.tma_descriptors),
        "indirect": len(launch.indirect_args),
        "serial": len(launch.serial),
        "zero": len(launch.zero_outputs) + len(launch.zero_prologues),
    }


def main() -> int:
    """Parse the options and print the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("card", metavar="CARD")
    parser.add_argument("file", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--cp-async", action="store_true", help="rows with TMA only, by cp.async")
    options = parser.parse_args()
    print_rows(options.card, options.file, options.cp_async)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
