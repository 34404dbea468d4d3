"""When the default is measured again: soon where a choice is not known well, seldomer as long as checks
agree, and at once where the job looks as if it had changed."""

from __future__ import annotations

from dataclasses import dataclass

from ekc.governor.watch import CONFIRM_S

FIRST_CHECK_S = 240.0
EARLY_CHECK_S = 120.0
"""The first where a choice is not known well, and the least between two that a seeming change asks for."""
MAX_CHECK_GAP_S = 1800.0
MAX_DOUBTS = 2
"""So many checks in a row that find another default are a change that the watch has missed."""


@dataclass
class CheckSchedule:
    """Those of one choice, by the probe's clock."""

    last_s: float
    gap_s: float
    _doubt_count: int = 0
    _early_gap_s: float | None = None

    def is_due(self, at_s: float, suspected: bool) -> bool:
        """Whether it is time; `suspected` where the job looks other than it did."""
        gap = self.gap_s if self._early_gap_s is None else self._early_gap_s
        return at_s - self.last_s > (min(gap, EARLY_CHECK_S) if suspected else gap)

    def record_agreement(self, at_s: float) -> None:
        """The default was as it used to be, and the choice did as believed."""
        self.last_s, self._doubt_count, self._early_gap_s = at_s, 0, None
        self.gap_s = min(2 * self.gap_s, MAX_CHECK_GAP_S)

    def record_doubt(self, at_s: float) -> bool:
        """It was not: it is looked at again soon, since an evaluation comes and goes. Whether that was so too
        often."""
        self.last_s, self._early_gap_s = at_s, CONFIRM_S
        self._doubt_count += 1
        return self._doubt_count >= MAX_DOUBTS
