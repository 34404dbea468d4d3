"""A simulated job for `ekc govern --simulate`: needs no GPU, and a virtual hour takes seconds."""

from __future__ import annotations

from ekc.errors import InvalidInput
from ekc.governor.live.session import GovernedUnit
from ekc.governor.simulation.card import SIMULATED_CARDS
from ekc.governor.simulation.random_jobs import JOB_KINDS, sample_job
from ekc.governor.simulation.run import SimulatedRun


def make_simulated_unit(kind: str, card: str, seed: int, minutes: float) -> GovernedUnit:
    """A random job of a kind that takes `minutes` at default clocks. Raises `InvalidInput`."""
    if kind not in JOB_KINDS:
        raise InvalidInput(f"--simulate: no kind {kind!r}; kinds are {', '.join(JOB_KINDS)}")
    if card not in SIMULATED_CARDS:
        raise InvalidInput(f"--card: no card {card!r}; cards are {', '.join(SIMULATED_CARDS)}")
    if not 1 <= minutes <= 24 * 60:
        raise InvalidInput(f"--minutes: {minutes:g}, from 1 to 1440")
    run = SimulatedRun(sample_job(seed, kind, card, 60 * minutes), seed)
    return GovernedUnit(f"{kind} job on {card} (simulated)", run, run)
