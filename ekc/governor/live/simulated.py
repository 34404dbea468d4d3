"""A simulated job to watch the governor with: no GPU is there, and a virtual hour takes seconds."""

from __future__ import annotations

from ekc.errors import InvalidInput
from ekc.governor.jobs.card import CARDS
from ekc.governor.jobs.draw import KINDS, draw
from ekc.governor.jobs.world import SimulatedRun
from ekc.governor.live.session import Unit


def simulated_unit(kind: str, card: str, seed: int, minutes: float) -> Unit:
    """A job of that kind, drawn by seed, that takes so long at default clocks. Raises `InvalidInput`."""
    if kind not in KINDS:
        raise InvalidInput(f"--simulate {kind}: there are {', '.join(KINDS)}")
    if card not in CARDS:
        raise InvalidInput(f"--card {card}: there are {', '.join(CARDS)}")
    if not 1 <= minutes <= 24 * 60:
        raise InvalidInput(f"--minutes {minutes:g}: from 1 to 1440")
    run = SimulatedRun(draw(seed, kind, card, 60 * minutes), seed)
    return Unit(f"{kind} job on {card} (simulated)", run, run)
