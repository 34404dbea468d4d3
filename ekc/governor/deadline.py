"""Deadlines as people write them: a length of time ("2h", "1h30m"), or a time ("18:30", a date and time)."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta

from ekc.errors import InvalidInput

UNIT_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0}
_PART = r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)"
EXAMPLES = "write 2h, 1h30m, 18:30 or 2026-05-04T18:30"


def parse_deadline(text: str, now: datetime) -> float:
    """Seconds from `now` (local time) until a deadline. A time of day is the next one. Raises `InvalidInput`
    for other texts and for a time that has passed."""
    text = text.strip()
    if re.fullmatch(f"(?:{_PART}\\s*)+", text):
        length = sum(float(number) * UNIT_SECONDS[unit] for number, unit in re.findall(_PART, text))
        if length > 0:
            return length
        raise InvalidInput(f"--deadline {text}: no time at all; {EXAMPLES}")
    seconds = (_parse_time(text, now) - now.astimezone()).total_seconds()
    if seconds <= 0:
        raise InvalidInput(f"--deadline {text}: that time has passed; it is {now:%Y-%m-%dT%H:%M}")
    return seconds


def _parse_time(text: str, now: datetime) -> datetime:
    """The time that a text names, with its zone; a time without a zone is local."""
    if re.fullmatch(r"\d{1,2}:\d{2}", text):
        try:
            found = datetime.combine(now.date(), time.fromisoformat(text.zfill(5)), now.tzinfo)
        except ValueError as problem:
            raise InvalidInput(f"--deadline {text}: no time of day ({problem}); {EXAMPLES}") from None
        return (found if found > now else found + timedelta(days=1)).astimezone()
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise InvalidInput(f"--deadline {text}: no length of time and no time; {EXAMPLES}") from None
