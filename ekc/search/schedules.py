"""What a tuning run needs of the schedules it searches: the design space, or those of a recording."""

from __future__ import annotations

from typing import Protocol

from ekc.devices.device import Peaks
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.search.breeding import SearchSpace
from ekc.search.models.analysed import ModelInputs
from ekc.search.population import Population


class ScheduleSpace(SearchSpace, Protocol):
    """Genomes that stand for schedules of one operator."""

    op: Operator

    def build_schedule(self, population: Population, row: int) -> Schedule:
        """One genome as a Schedule."""

    def get_structure_name(self, population: Population, row: int) -> str:
        """Which structure it has, in words."""

    def extract_inputs(self, population: Population, peaks: Peaks) -> ModelInputs:
        """What the models see of every genome, for a device with these peaks."""
