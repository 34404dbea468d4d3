"""Which settings of another user's lease root may put back: never one that is looser than what root knows.

The lease says what was in force before; anybody can write such a file. Each limit that it names is

- put back, where root's own leases and the board allow the value,
- kept, where the cap in force is not one that the lease's governor set: someone else has set it since,
- left, where the value is looser than root's own leases or the board's default, or cannot be verified: an
  earlier clock limit, say, which no driver shows and which would slow the GPU for everyone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ekc.devices.clocks.lease_file import Lease
from ekc.devices.clocks.limit_watch import CAP_TOLERANCE_W
from ekc.devices.clocks.limits import LIMIT_NAMES, BoardReading, Gears, Limit


@dataclass(frozen=True)
class Verdict:
    """What is done about one limit of a lease."""

    limit: Limit
    action: Literal["put back", "kept", "left"]
    value: float | None = None
    """Value to put back; None for the default of the driver."""
    reason: str = ""


def judge_foreign_lease(
    lease: Lease, own_leases: Sequence[Lease], gears: Gears, reading: BoardReading
) -> list[Verdict]:
    """Judge every limit that a lease of another user names; `own_leases`: root's leases of the same GPU."""
    return [
        _judge_cap(lease, own_leases, gears, reading)
        if limit == "power_w"
        else _judge_clock(limit, lease, own_leases)
        for limit in lease.touched
    ]


def is_cap_of_another(lease: Lease, reading: BoardReading) -> bool:
    """Whether the cap in force is known to be neither one that the lease's governor set nor that of before."""
    if reading.power_w is None or lease.possible_caps_w is None or "power_w" not in lease.touched:
        return False
    before = lease.previous.power_w or reading.default_power_w
    ours = (*lease.possible_caps_w, *(() if before is None else (before,)))
    return all(abs(reading.power_w - cap) > CAP_TOLERANCE_W for cap in ours)


def _judge_clock(limit: Limit, lease: Lease, own_leases: Sequence[Lease]) -> Verdict:
    value: int | None = getattr(lease.previous, limit)
    bound = min(_list_known(limit, own_leases), default=None)
    if value == bound:
        return Verdict(limit, "put back", value)
    if value is None:
        return Verdict(limit, "left", reason=f"root's own lease has a limit of {bound:g} MHz, this one none")
    if bound is not None and value > bound:
        return Verdict(
            limit, "left", reason=f"{value:g} MHz is looser than {bound:g} MHz in root's own lease"
        )
    return Verdict(limit, "left", reason=f"nothing of root's confirms an earlier limit of {value:g} MHz")


def _judge_cap(lease: Lease, own_leases: Sequence[Lease], gears: Gears, reading: BoardReading) -> Verdict:
    default = reading.default_power_w
    value = lease.previous.power_w or default
    if value is None or default is None or reading.power_w is None or not gears.power_w:
        return Verdict("power_w", "left", reason="the board does not report its power cap")
    bound = min(_list_known("power_w", own_leases), default=None)
    if value > default + CAP_TOLERANCE_W:
        return Verdict("power_w", "left", reason=f"{value:g} W is looser than the default, {default:g} W")
    if bound is not None and value > bound + CAP_TOLERANCE_W:
        return Verdict(
            "power_w", "left", reason=f"{value:g} W is looser than {bound:g} W in root's own lease"
        )
    if value < gears.power_w[0] - CAP_TOLERANCE_W:
        return Verdict(
            "power_w", "left", reason=f"{value:g} W is below the least cap, {gears.power_w[0]:g} W"
        )
    if is_cap_of_another(lease, reading) or reading.power_w > value + CAP_TOLERANCE_W:
        return Verdict("power_w", "kept", reason=f"someone else has set {reading.power_w:g} W since")
    return Verdict("power_w", "put back", lease.previous.power_w)


def _list_known(limit: Limit, own_leases: Sequence[Lease]) -> list[float]:
    """Values of a limit before the governors of root's own leases set another."""
    return [value for lease in own_leases if (value := getattr(lease.previous, limit)) is not None]


def describe_verdicts(verdicts: Sequence[Verdict]) -> str:
    """What was put back, what was kept and what was left, for people."""
    back = [LIMIT_NAMES[x.limit] for x in verdicts if x.action == "put back"]
    parts = [f"{_join(back)} {'is' if len(back) == 1 else 'are'} back as before"] if back else []
    parts += [f"{LIMIT_NAMES[x.limit]} is kept ({x.reason})" for x in verdicts if x.action == "kept"]
    parts += [f"{LIMIT_NAMES[x.limit]} is left as it is ({x.reason})" for x in verdicts if x.action == "left"]
    return "; ".join(parts)


def _join(names: Sequence[str]) -> str:
    return " and ".join(x for x in (", ".join(names[:-1]), names[-1]) if x)
