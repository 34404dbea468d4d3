"""Which model says what to expect before any clock was tried: one from a file, of simulated jobs, or none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ekc.errors import InvalidInput

if TYPE_CHECKING:
    from ekc.governor.predict import BoostedModel

NO_MODEL, SIMULATED_MODEL = "none", "simulated"


def check_model(model_name: str) -> None:
    """Refuse before the job starts what can be no model, without importing what reads it.

    Raises `InvalidInput`.
    """
    if model_name in (NO_MODEL, SIMULATED_MODEL):
        return
    try:
        whole = json.loads(Path(model_name).read_text(encoding="utf-8-sig"))
    except OSError as problem:
        raise InvalidInput(
            f"--model {model_name}: {problem.strerror}; a file, simulated or none"
        ) from problem
    except (ValueError, RecursionError):
        whole = None
    if not isinstance(whole, dict) or "models" not in whole:
        raise InvalidInput(
            f"--model {model_name}: no model of the governor; benchmarks/governor_model.py writes one"
        )


def open_model(
    model_name: str, card: str, should_continue: Callable[[], bool] = lambda: True
) -> BoostedModel | None:
    """The model for a card, named as NVML or `--card` has it; None for "none".

    One of simulated jobs is trained on the spot, which takes four to five seconds of one core, or until
    `going` says no: then `JobEnded` is raised. Raises `RecordError` for a file that is no model,
    `InvalidInput` for a model of another card.
    """
    if model_name == NO_MODEL:
        return None
    from ekc.governor.predict import BoostedModel, train_simulated_model

    if model_name != SIMULATED_MODEL:
        model = BoostedModel.load(Path(model_name))
        if not _is_same_card(model.card, card):
            raise InvalidInput(f"--model {model_name}: made for {model.card}, and this is {card}")
        return model
    from ekc.governor.simulation.card import SIMULATED_CARDS

    like = [name for name in SIMULATED_CARDS if _is_same_card(name, card)]
    if not like:
        raise InvalidInput(
            f"--model simulated: there are simulated {', '.join(SIMULATED_CARDS)}, and this is {card}"
        )
    return train_simulated_model(like[0], should_continue)


def _is_same_card(card: str, reported_name: str) -> bool:
    """Whether "rtx3090" is what a driver calls "NVIDIA GeForce RTX 3090"."""
    plain = ["".join(c for c in name.lower() if c.isalnum()) for name in (card, reported_name)]
    return plain[1].endswith(plain[0])
