"""A tuned model as text: one table of its layers, the sums of each model, and notes."""

from __future__ import annotations

import math

from ekc.display import format_html_table
from ekc.search.data.trial import describe_energy_source
from ekc.search.summary import format_speedup, wrap_note
from ekc.search.whole_model.model_data import ModelData, ModelTotal
from ekc.tables import choose_unit, count_nouns, format_figure, format_quantity, format_table

MAX_UNCOVERED = 8
"""Kinds of uncovered nodes that are listed, at most."""


def format_model_summary(data: ModelData) -> str:
    """Format a tuned model: layers, sums, notes."""
    notes = [line for note in list_model_notes(data) for line in wrap_note(*note)]
    totals = "\n".join(format_total(total) for total in data.totals)
    headers, rows = make_layer_table(data)
    table = format_table(headers, rows, _format_title(data), label_count=headers.index("times"))
    plan = ["", data.plan.summary()] if data.plan else []
    return "\n".join([table, "", totals, "", *notes, *plan])


def format_model_html(data: ModelData) -> str:
    """A table of the layers in HTML, with the sums below."""
    note = "\n".join([*(format_total(total) for total in data.totals), "summary() has more"])
    headers, rows = make_layer_table(data)
    return format_html_table(headers, rows, _format_title(data), note, label_count=headers.index("times"))


def _format_title(data: ModelData) -> str:
    lines = [f"Best schedules on {data.device.label}; latency and energy of one call"]
    if data.device.simulated:
        lines.append("Simulated: every figure comes from a model of the device. Nothing ran on a GPU.")
    return "\n".join(lines)


def make_layer_table(data: ModelData) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Make (headers, rows) of the layers that have a kernel, with the number of times that each is called.
    The first column has the model of each layer, if there are several."""
    latency, unit_s = choose_unit([r.best.latency_s for r in data.results], "s")
    energy, unit_j = choose_unit([r.best.energy_j for r in data.results], "J")
    figures = (f"latency [{unit_s}]", "power [W]", f"energy [{unit_j}]", "source", "of roofline", "vs naive")
    tuned = [(x.layer, x.result) for x in data.layers if x.result is not None]
    models = [layer.uses[0].model for layer, _ in tuned]
    rows: list[tuple[str, ...]] = [
        (
            layer.name,
            str(layer.count),
            format_figure(result.best.latency_s, latency),
            format_figure(result.best.power_w),
            format_figure(result.best.energy_j, energy),
            describe_energy_source(result.best),
            format_share(result.roofline_share),
            format_speedup(result.baseline, result.best),
        )
        for layer, result in tuned
    ]
    headers = ("layer", "times", *figures)
    if len(set(models)) < 2:
        return headers, rows
    return ("model", *headers), [(model, *row) for model, row in zip(models, rows, strict=True)]


def format_share(share: float) -> str:
    """Format a share in percent; "-" where it is unknown."""
    return f"{100 * share:.1f}%" if math.isfinite(share) else "-"


def format_total(total: ModelTotal) -> str:
    """Format the sum over the layers of one model in a line."""
    parts = [count_nouns(total.calls, "call"), format_quantity(total.latency_s, "s")]
    if total.energy_j is not None:
        parts.append(format_quantity(total.energy_j, "J"))
    line = f"{total.model or 'all layers'}: {', '.join(parts)} in sum"
    return line + (f", without {', '.join(total.missing)}" if total.missing else "")


def list_model_notes(data: ModelData) -> list[tuple[str, str]]:
    """List names and texts of the notes; a note that does not apply has no text."""
    counts = (
        f"{data.trial_count} of {data.trials}, {data.metered_count} of them metered, in {data.seconds:.1f} s"
    )
    several = len(data.totals) > 1
    return [
        *((name, _prefix(total, several) + text) for total in data.totals for name, text in _compare(total)),
        ("launches", _describe_launches(data)),
        ("trials", counts),
        ("cost", _describe_cost(data)),
        ("uncovered", describe_uncovered(data)),
        ("changed", " ".join(data.model.notes)),
        ("clocks", data.clocks_note),
        ("stopped", data.stopped),
    ]


def _prefix(total: ModelTotal, several: bool) -> str:
    return f"{total.model or 'all layers'}: " if several else ""


def _compare(total: ModelTotal) -> list[tuple[str, str]]:
    """Compare the sums with the roofline, the fastest kernels and the naive kernels."""
    notes = []
    if total.latency_s and math.isfinite(total.roofline_s):
        least, share = format_quantity(total.roofline_s, "s"), format_share(total.roofline_share)
        notes.append(("roofline", f"the layers take {least} at least, {share} of the latency"))
    if total.energy_j is None or total.fastest_j is None:
        return notes
    slower = f"at {100 * (total.latency_s / total.fastest_s - 1):z.1f}% more latency"
    saved = f"{_format_saving(total.energy_j, total.fastest_j)} than with the fastest kernels, {slower}"
    if total.naive_j is not None:
        saved += f"; {_format_saving(total.energy_j, total.naive_j)} than with the naive ones"
    return [*notes, ("energy", saved)]


def _format_saving(energy_j: float, other_j: float) -> str:
    saved = 100 * (1 - energy_j / other_j)
    return f"{abs(saved):.1f}% {'less' if saved >= 0 else 'more'}"


def _describe_launches(data: ModelData) -> str:
    """Describe how the sums are made."""
    launches = sum(total.launches for total in data.totals)
    kernels = count_nouns(launches, "kernel")
    return f"{kernels} in sum; latency and energy are the sum over the calls, launches included"


def _describe_cost(data: ModelData) -> str:
    spent = data.spent
    words = f"{format_figure(spent.joules)} J on the device: {spent.metering_s:.0f} s of metering"
    return f"simulated; a real GPU would take {words}" if data.device.simulated else words


def describe_uncovered(data: ModelData) -> str:
    """Describe what no layer computes: its shares of the model, and the kinds of nodes; "" if all is
    covered."""
    nodes, coverage = data.model.uncovered, data.model.coverage
    if not nodes:
        return ""
    flops, size = 100 * (1 - coverage.flops), 100 * (1 - coverage.bytes)
    unknown = count_nouns(coverage.unknown_nodes, "node") if coverage.unknown_nodes else ""
    start, known = (f"{unknown} of unknown work; ", "known flops") if unknown else ("", "flops")
    shares = f"{start}{flops:.2f}% of the {known}, {size:.1f}% of the bytes"
    ranked = sorted(nodes, key=lambda node: -node.bytes)
    listed = [f"{node.target} ({node.count}): {node.reason}" for node in ranked[:MAX_UNCOVERED]]
    more = len(nodes) - len(listed)
    return f"{shares}: {'; '.join([*listed, *([f'{more} more'] if more else [])])}"
