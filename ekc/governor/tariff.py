"""Price of electricity and the CO2 of making it, for the report. Imports no NumPy: the job has not started
when it is checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ekc.argument_checks import format_value, is_number
from ekc.errors import InvalidInput

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Tariff:
    """Cost and emission of a kWh; None for what was not given."""

    price: float | None = None
    """Money per kWh."""
    currency: str = ""
    """Its word, such as EUR."""
    intensity: float | None = None
    """Grams of CO2 per kWh."""

    def __post_init__(self) -> None:
        for name, value, unit in (("price", self.price, "money"), ("intensity", self.intensity, "grams")):
            if value is not None and not (is_number(value) and 0 <= value < math.inf):
                raise InvalidInput(f"{name}: {format_value(value)}, a finite number of {unit} per kWh from 0")
        if self.price is not None and not (isinstance(self.currency, str) and self.currency[:1].isalpha()):
            raise InvalidInput(
                f"price: {self.price:g} needs the word of its currency, not {format_value(self.currency)}; "
                f"write {self.price:g} EUR"
            )

    def compute_money(self, joules: float) -> float | None:
        """Money for some energy; None without a price."""
        return None if self.price is None else joules / JOULES_PER_KWH * self.price

    def compute_grams(self, joules: float) -> float | None:
        """Grams of CO2 for some energy; None without an intensity."""
        return None if self.intensity is None else joules / JOULES_PER_KWH * self.intensity
