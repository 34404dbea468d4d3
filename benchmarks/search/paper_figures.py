"""Statistics of `paper.py`: figures per variant, savings with their intervals, and the bars; and its plots.

The two plots are after figures 4 and 5 of arXiv 2411.18873. They need plotly. Each is a page that opens
without a network; its camera button saves the figure as SVG.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.ablation_variants import DEFAULT, EVERYTHING, LATENCY
from benchmarks.search.runs import MAX_SLOWDOWN
from ekc.report.theme import COLORS, format_figure_page, import_plotly, round_column, style_figure

LOSS_BAR, SHARE_BAR = 1.01, 0.15
"""Median energy of the default over that of metering everything; metered of all timed kernels."""
RESAMPLED = 2000
NOTE = "virtual meter"
Line = dict[str, Any]


def summarize_variants(lines: Sequence[Line], seed: int) -> list[Line]:
    """One line per variant, over all operators, devices and seeds; `seed` is that of the bootstrap."""
    reference = {_get_cell(x): x for x in lines if x["variant"] == EVERYTHING}
    rows = []
    for variant in dict.fromkeys(x["variant"] for x in lines):
        mine = [x for x in lines if x["variant"] == variant]
        energy = compute_median_and_most(
            [
                (f"{x['operator']} {x['device']}", x["energy_j"] / reference[_get_cell(x)]["energy_j"])
                for x in mine
                if _get_cell(x) in reference
            ],
            seed,
        )
        rows.append(
            {
                "variant": variant,
                "runs": len(mine),
                "energy_median": energy and energy["median"],
                "energy_median_interval": energy and energy["median_interval"],
                "energy_worst": energy and energy["most"],
                "metered": _compute_metered_share(mine),
                "metered_most": max(x["metered"] / x["timed"] for x in mine),
                "metering_s": float(np.median([x["metering_s"] for x in mine])),
                "search_s": float(np.median([x["search_s"] for x in mine])),
                "error": _compute_median_error(mine),
            }
        )
    return rows


def summarize_places(lines: Sequence[Line]) -> list[Line]:
    """One line per operator and device: the default, and the energy objective."""
    rows = []
    for operator, device in dict.fromkeys((x["operator"], x["device"]) for x in lines):
        here = [x for x in lines if (x["operator"], x["device"]) == (operator, device)]
        by = {(x["variant"], x["seed"]): x for x in here}
        seeds = sorted({x["seed"] for x in here})
        loss = [
            by[DEFAULT, s]["energy_j"] / by[EVERYTHING, s]["energy_j"]
            for s in seeds
            if (DEFAULT, s) in by and (EVERYTHING, s) in by
        ]
        mine = [x for x in here if x["variant"] == DEFAULT]
        saved = [s for _, s in compute_savings(here)]
        rows.append(
            {
                "operator": operator,
                "device": device,
                "energy_j": float(np.median([x["energy_j"] for x in mine])) if mine else None,
                "loss_median": float(np.median(loss)) if loss else None,
                "metered": _compute_metered_share(mine) if mine else None,
                "saving_median": float(np.median(saved)) if saved else None,
                "saving_most": max(saved) if saved else None,
            }
        )
    return rows


def compute_savings(lines: Sequence[Line]) -> list[tuple[str, float]]:
    """(operator and device, share of energy saved) for each pair of a default and a latency-only run of
    one seed whose winner is at most `MAX_SLOWDOWN` slower than the latency-only winner."""
    fast = {_get_cell(x): x for x in lines if x["variant"] == LATENCY}
    pairs = [(x, fast[_get_cell(x)]) for x in lines if x["variant"] == DEFAULT and _get_cell(x) in fast]
    return [
        (f"{a['operator']} {a['device']}", 1 - a["energy_j"] / b["energy_j"])
        for a, b in pairs
        if a["latency_s"] <= b["latency_s"] * (1 + MAX_SLOWDOWN)
    ]


def compute_savings_within_runs(lines: Sequence[Line]) -> list[tuple[str, float]]:
    """The same between the two winners of one default run: least energy, and least latency."""
    return [
        (f"{x['operator']} {x['device']}", 1 - x["energy_j"] / x["fastest_energy_j"])
        for x in lines
        if x["variant"] == DEFAULT
    ]


def compare_with_other_models(lines: Sequence[Line]) -> Line | None:
    """Compare the savings claimed by the default runs with those of other models for the same kernels:
    event energies and residuals redrawn as far as recordings allow (`saving.py` of the simulated devices).
    Their figure is the middle of their 95 % interval; "confirmed" is the mean of it over the mean claim."""
    mine = [x for x in lines if x["variant"] == DEFAULT]
    if not mine:
        return None
    claimed = np.array([saved for _, saved in compute_savings_within_runs(mine)])
    low, high = np.array([x["other_models"] for x in mine]).T
    middle = (low + high) / 2
    return {
        "runs": len(mine),
        "claimed_mean": float(claimed.mean()),
        "other_models_mean": float(middle.mean()),
        "confirmed": float(middle.mean() / claimed.mean()) if claimed.mean() > 0 else None,
        "sure_of_a_saving": int((low > 0).sum()),
        "sure_of_a_loss": int((high < 0).sum()),
    }


def compute_median_and_most(found: Sequence[tuple[str, float]], seed: int) -> Line | None:
    """The median with its 95 % interval: places are resampled, then runs of each. The maximum has none:
    resampling never gives a larger one."""
    if not found:
        return None
    places = [[s for p, s in found if p == place] for place in dict.fromkeys(p for p, _ in found)]
    random = np.random.default_rng(seed)
    drawn = []
    for _ in range(RESAMPLED):
        picked = (places[i] for i in random.integers(0, len(places), len(places)))
        sample = np.concatenate([random.choice(runs, len(runs)) for runs in picked])
        drawn.append(np.median(sample))
    low, high = np.percentile(drawn, (2.5, 97.5)).tolist()
    figures = [s for _, s in found]
    return {
        "pairs": len(figures),
        "median": float(np.median(figures)),
        "median_interval": [low, high],
        "most": max(figures),
    }


def judge_default(variants: Sequence[Line]) -> Line | None:
    """The bars of the default, where it was run beside metering everything."""
    mine = next((v for v in variants if v["variant"] == DEFAULT), None)
    if mine is None or mine["energy_median"] is None:
        return None
    return {
        "energy_median": mine["energy_median"],
        "metered": mine["metered"],
        "bar": {"energy_median": LOSS_BAR, "metered": SHARE_BAR},
        "pass": mine["energy_median"] <= LOSS_BAR and mine["metered"] <= SHARE_BAR,
    }


def _get_cell(line: Line) -> tuple[str, str, int]:
    return line["operator"], line["device"], line["seed"]


def _compute_metered_share(lines: Sequence[Line]) -> float:
    return sum(x["metered"] for x in lines) / sum(x["timed"] for x in lines)


def _compute_median_error(lines: Sequence[Line]) -> float | None:
    """Median absolute relative error of the energies predicted before they were metered."""
    pairs = np.array([(believed, measured) for x in lines for believed, _, measured in x["judged"]])
    return float(np.median(np.abs(pairs[:, 0] / pairs[:, 1] - 1))) if len(pairs) else None


def draw(lines: Sequence[Line], folder: Path) -> list[Path]:
    """Write what the runs allow; the paths written. Raises `InvalidInput` without plotly."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, plot in (("predicted-energy", plot_predicted), ("energy-over-metering", plot_over_time)):
        figure = plot(lines)
        if figure is not None:
            written.append(folder / f"{name}.html")
            written[-1].write_text(format_figure_page(figure, name), encoding="utf-8")
    return written


def plot_predicted(lines: Sequence[Line]) -> Any:
    """Energies predicted before they were metered, against the meter; default runs, each relative to the
    least energy that its run found. None without such runs."""
    mine = [x for x in lines if x["variant"] == DEFAULT and x["judged"]]
    if not mine:
        return None
    go = import_plotly()
    figure = go.Figure()
    ends = []
    for device in dict.fromkeys(x["device"] for x in mine):
        pairs = np.concatenate([np.array(x["judged"]) / x["energy_j"] for x in mine if x["device"] == device])
        x, y = round_column(pairs[:, 2]), round_column(pairs[:, 0])
        figure.add_scatter(x=x, y=y, mode="markers", opacity=0.7, name=f"{device} (simulated)")
        ends += [pairs[:, 2].min(), pairs[:, 2].max()]
    line = [min(ends), max(ends)]
    equal = {"dash": "dash", "color": COLORS["naive"]}
    figure.add_scatter(x=line, y=line, mode="lines", line=equal, name="predicted = metered")
    figure.update_layout(xaxis_title="metered / least of the run", yaxis_title="predicted / least of the run")
    return style_figure(figure, "Energy predicted before it was metered", NOTE, simulated=True)


def plot_over_time(lines: Sequence[Line]) -> Any:
    """Least energy metered so far over the seconds that a meter would have taken, median over all runs of a
    variant, relative to what metering everything found in the end. None without runs of that variant."""
    last = {(x["operator"], x["device"], x["seed"]): x for x in lines if x["variant"] == EVERYTHING}
    if not last:
        return None
    longest = max(x["metering_s"] for x in lines)
    seconds = np.geomspace(10, longest, 200)
    figure = import_plotly().Figure()
    for variant in dict.fromkeys(x["variant"] for x in lines):
        mine = [x for x in lines if x["variant"] == variant and x["curve"]]
        curves = [
            evaluate_curve(x["curve"], seconds) / last[x["operator"], x["device"], x["seed"]]["energy_j"]
            for x in mine
        ]
        median = round_column(np.median(curves, axis=0))
        figure.add_scatter(x=round_column(seconds), y=median, mode="lines", name=variant)
    figure.update_layout(
        xaxis={"title": "metering [virtual s]", "type": "log"},
        yaxis={"title": "least energy / metering everything", "range": (0.95, 1.5)},
    )
    return style_figure(figure, "Energy of the best over metering", NOTE, simulated=True).update_layout(
        legend_y=-0.25
    )


def evaluate_curve(curve: Sequence[tuple[float, float]], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The curve's value at each time; infinity before its first point."""
    when, value = np.array(curve).T
    at = np.searchsorted(when, seconds, side="right")
    return np.asarray(np.concatenate([[np.inf], value])[at])
