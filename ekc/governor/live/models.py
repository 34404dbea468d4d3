"""Which model says what to expect before any clock was tried: one from a file, of simulated jobs, or none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ekc.errors import InvalidInput

if TYPE_CHECKING:
    from ekc.governor.predict import Boosted

NONE, SIMULATED = "none", "simulated"


def check(word: str) -> None:
    """Refuse before the job starts what can be no model, without importing what reads it.

    Raises `InvalidInput`.
    """
    if word in (NONE, SIMULATED):
        return
    try:
        whole = json.loads(Path(word).read_text(encoding="utf-8-sig"))
    except OSError as problem:
        raise InvalidInput(f"--model {word}: {problem.strerror}; a file, simulated or none") from problem
    except (ValueError, RecursionError):
        whole = None
    if not isinstance(whole, dict) or "models" not in whole:
        raise InvalidInput(
            f"--model {word}: no model of the governor; benchmarks/governor_model.py writes one"
        )


def opened(word: str, card: str, going: Callable[[], bool] = lambda: True) -> Boosted | None:
    """The model for a card, named as NVML or `--card` has it; None for "none".

    One of simulated jobs is trained on the spot, which takes four to five seconds of one core, or until
    `going` says no: then `JobEnded` is raised. Raises `RecordError` for a file that is no model,
    `InvalidInput` for a model of another card.
    """
    if word == NONE:
        return None
    from ekc.governor.predict import Boosted, simulated

    if word != SIMULATED:
        model = Boosted.load(Path(word))
        if not _same(model.card, card):
            raise InvalidInput(f"--model {word}: made for {model.card}, and this is {card}")
        return model
    from ekc.governor.jobs.card import CARDS

    like = [name for name in CARDS if _same(name, card)]
    if not like:
        raise InvalidInput(f"--model simulated: there are simulated {', '.join(CARDS)}, and this is {card}")
    return simulated(like[0], going)


def _same(card: str, told: str) -> bool:
    """Whether "rtx3090" is what a driver calls "NVIDIA GeForce RTX 3090"."""
    plain = ["".join(c for c in name.lower() if c.isalnum()) for name in (card, told)]
    return plain[1].endswith(plain[0])
