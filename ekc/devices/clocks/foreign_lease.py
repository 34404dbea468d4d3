"""Which settings of another user's lease root may put back: never one that is looser than what root knows.

The lease says what was in force before; anybody can write such a file. Each limit that it names is

- put back, where root's own records and the board allow the value
  (its own leases, and the caps of boards without a governor, see `cap_records`),
- kept, where the cap in force is not one that the lease's governor set: someone else has set it since,
- left, where the value is looser than root's own records or the board's default, or cannot be verified: an
  earlier clock limit, say, which no driver shows and which would slow the GPU for everyone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ekc.devices.clocks.lease_file import Lease
from ekc.devices.clocks.limit_watch import CAP_TOLERANCE_W
from ekc.devices.clocks.limits import LIMIT_NAMES, Gears, Limit, LimitReading, Settings


@dataclass(frozen=True)
class LimitVerdict:
    """The decision about one limit of a lease."""

    limit: Limit
    action: Literal["put back", "kept", "left"]
    value: float | None = None
    """Value to put back; None for the default of the driver."""
    reason: str = ""


def judge_foreign_lease(
    lease: Lease, records: Sequence[Settings], gears: Gears, reading: LimitReading
) -> list[LimitVerdict]:
    """Judge every limit that a lease of another user names. `records`: limits of that GPU that root knows to
    have been in force before, None for those that it does not know."""
    return [
        _judge_cap(lease, records, gears, reading)
        if limit == "power_w"
        else _judge_clock(limit, lease, records)
        for limit in lease.touched
    ]


def is_cap_of_another(lease: Lease, reading: LimitReading) -> bool:
    """Whether the cap in force is neither one that the lease's governor set nor that of before."""
    if reading.power_w is None or lease.possible_caps_w is None or "power_w" not in lease.touched:
        return False
    before = lease.previous.power_w or reading.default_power_w
    ours = (*lease.possible_caps_w, *(() if before is None else (before,)))
    return all(abs(reading.power_w - cap) > CAP_TOLERANCE_W for cap in ours)


def _judge_clock(limit: Limit, lease: Lease, records: Sequence[Settings]) -> LimitVerdict:
    value: int | None = getattr(lease.previous, limit)
    bound = min(_list_known(limit, records), default=None)
    if value == bound:
        return LimitVerdict(limit, "put back", value)
    if value is None:
        return LimitVerdict(
            limit, "left", reason=f"root's own records have a limit of {bound:g} MHz, this one none"
        )
    if bound is not None and value > bound:
        return LimitVerdict(
            limit, "left", reason=f"{value:g} MHz is above {bound:g} MHz in root's own records"
        )
    return LimitVerdict(limit, "left", reason=f"nothing of root's confirms an earlier limit of {value:g} MHz")


def _judge_cap(
    lease: Lease, records: Sequence[Settings], gears: Gears, reading: LimitReading
) -> LimitVerdict:
    default = reading.default_power_w
    value = lease.previous.power_w or default
    if value is None or default is None or reading.power_w is None or not gears.power_w:
        return LimitVerdict("power_w", "left", reason="the board does not report its power cap")
    bound = min(_list_known("power_w", records), default=None)
    if value > default + CAP_TOLERANCE_W:
        return LimitVerdict("power_w", "left", reason=f"{value:g} W is above the default, {default:g} W")
    if bound is not None and value > bound + CAP_TOLERANCE_W:
        return LimitVerdict(
            "power_w", "left", reason=f"{value:g} W is above {bound:g} W in root's own records"
        )
    if value < gears.power_w[0] - CAP_TOLERANCE_W:
        return LimitVerdict(
            "power_w", "left", reason=f"{value:g} W is below {gears.power_w[0]:g} W, the least"
        )
    if is_cap_of_another(lease, reading) or reading.power_w > value + CAP_TOLERANCE_W:
        return LimitVerdict("power_w", "kept", reason=f"someone else has set {reading.power_w:g} W since")
    return LimitVerdict("power_w", "put back", lease.previous.power_w)


def _list_known(limit: Limit, records: Sequence[Settings]) -> list[float]:
    return [value for one in records if (value := getattr(one, limit)) is not None]


def describe_verdicts(verdicts: Sequence[LimitVerdict]) -> str:
    """Limits that were put back, kept and left, for people."""
    back = [LIMIT_NAMES[x.limit] for x in verdicts if x.action == "put back"]
    parts = [f"{_join(back)} {'is' if len(back) == 1 else 'are'} back as before"] if back else []
    parts += [f"{LIMIT_NAMES[x.limit]} is kept ({x.reason})" for x in verdicts if x.action == "kept"]
    parts += [f"{LIMIT_NAMES[x.limit]} is left as it is ({x.reason})" for x in verdicts if x.action == "left"]
    return "; ".join(parts)


def _join(names: Sequence[str]) -> str:
    return " and ".join(x for x in (", ".join(names[:-1]), names[-1]) if x)
