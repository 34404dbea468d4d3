"""Genomes of many schedules, or of many rows of a table, as two arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Population:
    """Genomes: `structure[n]`, and `genes[n, d]` an index into the table of decision d (0 if unused)."""

    structure: NDArray[np.int64]
    genes: NDArray[np.int64]

    def __reduce__(self) -> tuple[Any, ...]:
        """Between processes numbers travel in 16 bits, where these hold them."""
        return _widen_to_int64, (_narrow_to_int16(self.structure), _narrow_to_int16(self.genes))

    def __len__(self) -> int:
        return len(self.structure)

    def __getitem__(self, rows: Any) -> Population:
        return Population(self.structure[rows], self.genes[rows])

    def __add__(self, other: Population) -> Population:
        return Population(
            np.concatenate([self.structure, other.structure]), np.concatenate([self.genes, other.genes])
        )


def _narrow_to_int16(numbers: NDArray[np.int64]) -> NDArray[Any]:
    short = numbers.astype(np.int16)
    return short if (short == numbers).all() else numbers


def _widen_to_int64(structure: NDArray[Any], genes: NDArray[Any]) -> Population:
    return Population(structure.astype(np.int64), genes.astype(np.int64))
