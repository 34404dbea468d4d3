"""`ekc tune --layers FILE`: the layers of a network one after another, and one table of them all."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ekc.cli.operators import KINDS, build
from ekc.cli.output import log, one_line, say, say_json, writable
from ekc.cli.status import BAD_INPUT, INTERRUPTED, status_of
from ekc.codegen.symbols import kernel_name
from ekc.errors import EkcError, InvalidInput
from ekc.search.layers import Layer, read_layers
from ekc.search.summary import figure, source_of, speed_up, unit_of
from ekc.search.text_table import text_table

if TYPE_CHECKING:
    from ekc.cli.event_log import EventLog
    from ekc.cli.tune import Options
    from ekc.ir.operator import Operator
    from ekc.search.result import TuningResult


@dataclass(frozen=True)
class Tuned:
    """One layer and what tuning it gave."""

    layer: Layer
    result: TuningResult
    paths: tuple[Path, ...]


NOT_TUNED = "not tuned"


@dataclass(frozen=True)
class Missing:
    """One layer without a kernel, and why."""

    layer: Layer
    reason: str
    """`NOT_TUNED`, or what it failed of."""

    @property
    def word(self) -> str:
        """The reason, short."""
        return self.reason if self.reason == NOT_TUNED else "failed"


def tune_layers(file: Path, options: Options, events: EventLog, out: Path, prefix: str, as_json: bool) -> int:
    """Tune every layer of a file; the exit status. One that fails does not stop the rest. Ctrl-C does, and
    the layers done by then are printed. Names of kernels begin with `prefix`."""
    layers = _operators(file)
    options.check()
    writable(out)
    done: list[Tuned] = []
    missing: list[Missing] = []
    interrupted = False
    began = time.monotonic()
    for number, (layer, op) in enumerate(layers, 1):
        if not options.quiet:
            left = _left(time.monotonic() - began, number - 1, len(layers))
            log(f"layer {number} of {len(layers)}: {layer.name}{left}")
        try:
            result = options.tune(op, events, layer)
            done.append(Tuned(layer, result, result.export(_folder(out, layer, op), kernel_name(op, prefix))))
            interrupted = status_of(result) == INTERRUPTED
        except EkcError as problem:
            missing.append(Missing(layer, one_line(str(problem))))
            log(f"ekc: layer {layer.name}: {missing[-1].reason}")
        except KeyboardInterrupt:
            interrupted = True
        if interrupted:
            log(f"ekc: interrupted in layer {number} of {len(layers)}")
            break
    failed = bool(missing)
    missing += [Missing(layer, NOT_TUNED) for layer, _ in layers[len(done) + len(missing) :]]
    if as_json:
        told = [_uses(m.layer) | {"reason": m.reason} for m in missing]
        say_json({"layers": [_json(t) for t in done], "failed": told})
    elif done:
        say(f"{_table(done)}\n\n{_totals(done, missing)}")
        say(f"\nwrote {len(done)} kernels under {out}")
    return INTERRUPTED if interrupted else BAD_INPUT if failed else 0


def _left(spent_s: float, done: int, layers: int) -> str:
    """What the rest will take if it goes on like this; "" before the first is done."""
    if not done:
        return ""
    return f" (about {math.ceil(spent_s / done * (layers - done) / 60)} min left at the pace so far)"


def _operators(file: Path) -> list[tuple[Layer, Operator]]:
    """The layers and their operators, each operator once. Every one is built before the first is tuned: a
    slip in the last costs no time."""
    found: dict[str, tuple[Layer, Operator]] = {}
    for layer in read_layers(file, frozenset(KINDS) - {"einsum"}):
        op = _operator(file, layer)
        if op.digest in found:
            known = found[op.digest][0]
            layer = replace(known, uses=known.uses + layer.uses)
        found[op.digest] = (layer, op)
    return list(found.values())


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
    exported = {"exported": [str(p) for p in tuned.paths]}
    return _uses(tuned.layer) | tuned.result.to_json() | exported


def _uses(layer: Layer) -> dict[str, Any]:
    return {"name": layer.name, "count": layer.count, "uses": [vars(use) for use in layer.uses]}


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
    return text_table(("model", "layer", "times", *figures), rows, title, labels=2)


def _totals(done: list[Tuned], missing: list[Missing]) -> str:
    """One pass of each model: every layer as often as it occurs, and what the sum is without."""
    layers = [t.layer for t in done] + [m.layer for m in missing]
    models = dict.fromkeys(use.model for layer in layers for use in layer.uses)
    return "\n".join(_total(model, done, missing) for model in models)


def _total(model: str, done: list[Tuned], missing: list[Missing]) -> str:
    uses = [(t.result.best, use.count) for t in done for use in t.layer.uses if use.model == model]
    seconds = sum((best.latency_s or 0.0) * count for best, count in uses)
    joules = sum((best.energy_j or 0.0) * count for best, count in uses)
    calls = sum(count for _, count in uses)
    told = f"{model or 'all layers'}: {calls} calls, {seconds * 1e3:.4g} ms, {joules:.4g} J in sum"
    absent = [f"{use.name} ({m.word})" for m in missing for use in m.layer.uses if use.model == model]
    return told + (f", without {', '.join(absent)}" if absent else "")
