"""The model card of a run as text: how the energy model did on the last predictions, round by judged round.

Each line was predicted before the meter was read. Beside it stand the trivial predictors that a model
must beat: energy = latency x constant power, and the order by latency alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekc.search.result import ModelCard
from ekc.search.text_table import format_table

MAX_LINES = 8
"""A long run shows so many of its judged rounds, evenly spaced, the first and the last among them."""
_TITLE = "Model card: energies predicted beforehand, against the meter"
_HEADERS = ("round", "rows", "error", "latency x power", "rank", "latency alone", "next share", "")


def format_model_card(cards: Sequence[ModelCard]) -> str:
    """A table of the judged rounds and a verdict over all of them; "" where none was judged."""
    if not cards:
        return ""
    picks = np.linspace(0, len(cards) - 1, min(len(cards), MAX_LINES)).round().astype(int).tolist()
    table = format_table(_HEADERS, [_make_row(cards[i]) for i in picks], _TITLE, label_count=0)
    return "\n".join([table, *_format_verdict(cards)])


def _make_row(card: ModelCard) -> tuple[str, ...]:
    return (
        str(card.round),
        str(card.rows),
        _format_percent(card.error),
        _format_percent(card.constant_power_error),
        _format_rank(card.rank_correlation),
        _format_rank(card.latency_rank),
        f"{100 * card.share:.0f}%",
        "quarantined" if card.quarantined else "",
    )


def _format_rank(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _format_percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


def _format_verdict(cards: Sequence[ModelCard]) -> list[str]:
    """How often the model beat the trivial predictor, and how many lines are not shown."""
    judged = [
        (card.error, card.constant_power_error)
        for card in cards
        if card.error is not None and card.constant_power_error is not None
    ]
    better = sum(error < trivial for error, trivial in judged)
    lines = []
    if judged:
        lines.append(f"better than latency x constant power in {better} of {len(judged)} rounds")
    if len(cards) > MAX_LINES:
        lines.append(f"{MAX_LINES} of {len(cards)} rounds shown")
    return ["; ".join(lines)] if lines else []
