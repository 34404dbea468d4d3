"""Trials as kernels of a C++ library."""

from __future__ import annotations

from collections.abc import Mapping

from ekc.codegen.library.build import KernelChoice
from ekc.codegen.library.kernels import KernelFigures
from ekc.search.data.result import Trial


def make_choice(trial: Trial, role: str = "both", provenance: Mapping[str, str] | None = None) -> KernelChoice:
    """Make the choice of a trial's schedule with its figures. By default the provenance is the verdict of the
    check."""
    facts = {"checked": trial.checked or "not executed"} if provenance is None else provenance
    figures = KernelFigures(trial.latency_s, trial.energy_j, trial.metered, facts)
    return KernelChoice(trial.schedule, figures, role)
