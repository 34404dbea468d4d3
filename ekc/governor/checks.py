"""When the default is measured again: soon where a choice is not known well, seldomer as long as checks
agree, and at once where the job looks as if it had changed."""

from __future__ import annotations

from dataclasses import dataclass

from ekc.governor.watch import CONFIRM_S

FIRST_S = 240.0
SOON_S = 120.0
"""The first where a choice is not known well, and the least between two that a seeming change asks for."""
LONGEST_S = 1800.0
DOUBTS = 2
"""So many checks in a row that find another default are a change that the watch has missed."""


@dataclass
class Checks:
    """Those of one choice, by the probe's clock."""

    last_s: float
    gap_s: float
    _doubts: int = 0
    _soon_s: float | None = None

    def due(self, at_s: float, suspected: bool) -> bool:
        """Whether it is time; `suspected` where the job looks other than it did."""
        gap = self.gap_s if self._soon_s is None else self._soon_s
        return at_s - self.last_s > (min(gap, SOON_S) if suspected else gap)

    def agreed(self, at_s: float) -> None:
        """The default was as it used to be, and the choice did as believed."""
        self.last_s, self._doubts, self._soon_s = at_s, 0, None
        self.gap_s = min(2 * self.gap_s, LONGEST_S)

    def doubted(self, at_s: float) -> bool:
        """It was not: it is looked at again soon, since an evaluation comes and goes. Whether that was so too
        often."""
        self.last_s, self._soon_s = at_s, CONFIRM_S
        self._doubts += 1
        return self._doubts >= DOUBTS
