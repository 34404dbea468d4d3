"""`ekc tune --layers FILE`: the layers of a network one after another, and one table of them all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ekc.cli.operators import KINDS, build
from ekc.cli.output import log, say, say_json, writable
from ekc.errors import InvalidInput, NothingLegal
from ekc.search.layers import Layer, read_layers
from ekc.search.result import INTERRUPTED
from ekc.search.summary import figure, source_of, speed_up, unit_of
from ekc.search.text_table import text_table

if TYPE_CHECKING:
    from ekc.cli.tune import Options
    from ekc.ir.operator import Operator
    from ekc.search.result import TuningResult


@dataclass(frozen=True)
class Tuned:
    """One layer and what tuning it gave."""

    layer: Layer
    result: TuningResult
    paths: tuple[Path, ...]


def tune_layers(file: Path, options: Options, out: Path, as_json: bool) -> int:
    """Tune every layer of a file; the exit status. One without a legal schedule does not stop the rest."""
    # Every layer is built before the first is tuned: a slip in the last costs no time.
    layers = [(layer, _operator(file, layer)) for layer in read_layers(file, frozenset(KINDS) - {"einsum"})]
    options.check()
    writable(out)
    done: list[Tuned] = []
    failed = 0
    for number, (layer, op) in enumerate(layers, 1):
        log(f"layer {number} of {len(layers)}: {layer.name}")
        try:
            result = options.tune(op)
        except NothingLegal as problem:
            failed += 1
            log(f"ekc: layer {layer.name}: {problem}")
            continue
        done.append(Tuned(layer, result, result.export(_folder(out, layer, op))))
        if result.stopped == INTERRUPTED:
            log(f"ekc: interrupted after {number} of {len(layers)} layers")
            break
    if as_json:
        say_json({"layers": [_json(t) for t in done]})
    else:
        say(_table(done))
        say(f"\nwrote {len(done)} kernels under {out}")
    return 2 if failed else 0


def _operator(file: Path, layer: Layer) -> Operator:
    try:
        return build(layer.operator_kind, layer.arguments)
    except InvalidInput as problem:
        raise InvalidInput(f"{file}: layer {layer.name}: {problem}") from problem


def _folder(out: Path, layer: Layer, op: Operator) -> Path:
    """A folder of its own for each shape: layers of one model may share a name."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "_", f"{layer.uses[0].model} {layer.name}").strip("_.")
    return out / f"{name}-{op.digest[:8]}"


def _json(tuned: Tuned) -> dict[str, Any]:
    uses = [vars(use) for use in tuned.layer.uses]
    layer = {"name": tuned.layer.name, "count": tuned.layer.count, "uses": uses}
    return layer | tuned.result.to_json() | {"exported": [str(p) for p in tuned.paths]}


def _table(done: list[Tuned]) -> str:
    """Each shape once, with the number of times it occurs in the file."""
    latency, unit_s = unit_of([t.result.best.latency_s for t in done], "s")
    energy, unit_j = unit_of([t.result.best.energy_j for t in done], "J")
    figures = (f"latency [{unit_s}]", "power [W]", f"energy [{unit_j}]", "source", "of roofline", "vs naive")
    rows = [
        (
            t.layer.uses[0].model,
            t.layer.name,
            str(t.layer.count),
            figure(t.result.best.latency_s, latency),
            figure(t.result.best.power_w),
            figure(t.result.best.energy_j, energy),
            source_of(t.result.best),
            f"{100 * t.result.roofline_share:.1f}%",
            speed_up(t.result.baseline, t.result.best),
        )
        for t in done
    ]
    labels = {t.result.device.label for t in done}
    title = f"Best schedules on {', '.join(sorted(labels))}; latency and energy of one call"
    return text_table(("model", "layer", "times", *figures), rows, title, labels=2) + "\n\n" + _totals(done)


def _totals(done: list[Tuned]) -> str:
    """One pass of each model: every layer as often as it occurs."""
    models = dict.fromkeys(use.model for t in done for use in t.layer.uses)
    return "\n".join(_total(model, done) for model in models)


def _total(model: str, done: list[Tuned]) -> str:
    uses = [(t.result.best, use.count) for t in done for use in t.layer.uses if use.model == model]
    seconds = sum((best.latency_s or 0.0) * count for best, count in uses)
    joules = sum((best.energy_j or 0.0) * count for best, count in uses)
    calls = sum(count for _, count in uses)
    return f"{model or 'all layers'}: {calls} calls, {seconds * 1e3:.4g} ms, {joules:.4g} J in sum"
