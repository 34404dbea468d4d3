"""Errors of energy predictions learned from few kernels of a recording, drawn again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.ranking import spearman
from benchmarks.common.script import format_verdict
from benchmarks.cost_model.energy_rows import HOTSPOT, Kernels

Array = NDArray[np.float64]
Predict = Callable[[Kernels, Kernels, int], Array]
"""(learned, tested, seed) -> joules of the tested."""

ROW_COUNTS = (8, 16, 32, 64)
"""Kernels learned from."""
DRAWS = 50
"""Random draws of the kernels learned from, for each of the row counts."""
BARS = {8: 0.060, 16: 0.045, 64: 0.0201}
"""Mean error on hotspot, at most, by kernels learned from. That of 64 is the error, with these draws, of the
model at commit cdfd121c, which learned the error of constant power."""
LEAST_SHARE = 0.1
"""Share of the kernels, those of least energy, in the columns "least tenth"."""
HEADERS = (
    *("recording", "rows", "prediction", "mean", "90 % of draws"),
    *("least tenth: mean", "Spearman", "pick", ""),
)


def draw_kernels(whole: Kernels, count: int, draws: int, seed: int) -> Iterator[tuple[Kernels, Kernels]]:
    """Yield (kernels learned from, kernels tested): one row of each of `count` random kernels, and all rows
    of the other kernels."""
    for draw in range(draws):
        order = np.random.default_rng([seed, draw]).permutation(len(whole.energy))
        _, first = np.unique(whole.kernel[order], return_index=True)
        learned = order[np.sort(first)[:count]]
        yield whole[learned], whole[~np.isin(whole.kernel, whole.kernel[learned])]


def score_draw(predicted: Array, tested: Kernels) -> dict[str, float]:
    """Mean relative errors, rank correlation, and `pick`: energy of the kernel that is predicted to need
    least, over the least energy."""
    error = np.abs(predicted / tested.energy - 1)
    least = tested.energy <= np.quantile(tested.energy, LEAST_SHARE)
    return {
        "mean": float(error.mean()),
        "least_mean": float(error[least].mean()),
        "least_spearman": spearman(predicted[least], tested.energy[least]) or 0.0,
        "pick": float(tested.energy[np.argmin(predicted)] / tested.energy.min()),
    }


def measure_few_rows(
    name: str, whole: Kernels, predictions: Mapping[str, Predict], ranks_only: str, draws: int, seed: int
) -> list[dict[str, Any]]:
    """A line for each row count and prediction of one recording; the first prediction is judged. Of
    `ranks_only` the errors have no meaning."""
    lines: list[dict[str, Any]] = []
    for count in ROW_COUNTS:
        pairs = list(draw_kernels(whole, count, draws, seed))
        for prediction, predict in predictions.items():
            scores = [score_draw(predict(learned, tested, seed), tested) for learned, tested in pairs]
            line = {key: float(np.mean([score[key] for score in scores])) for key in scores[0]}
            line["high"] = float(np.quantile([score["mean"] for score in scores], 0.9))
            if prediction == ranks_only:
                line = {key: line[key] for key in ("least_spearman", "pick")}
            lines.append({"recording": name, "rows": count, "prediction": prediction, "draws": draws, **line})
            if name == HOTSPOT and prediction == next(iter(predictions)) and count in BARS:
                lines[-1] |= {"bar": {"mean": BARS[count]}, "pass": line["mean"] <= BARS[count]}
    return lines


def format_few_rows_line(line: dict[str, Any]) -> tuple[str, ...]:
    """Format a line of the table."""
    errors = [f"{line[key]:.2%}" if key in line else "-" for key in ("mean", "high", "least_mean")]
    figures = f"{line['least_spearman']:.2f}", f"{line['pick']:.3f}", format_verdict(line)
    return line["recording"], str(line["rows"]), line["prediction"], *errors, *figures
