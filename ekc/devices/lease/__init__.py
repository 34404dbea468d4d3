"""The promise that previous settings come back, whatever ends the process that set them.

`Keeper` writes a lease file per GPU before anything is set, starts a guard process that watches the
governor (whoever holds the lease: a tuning run too), and puts everything back at the end. Where governor and
guard both die, the file stays, and `restore_all` (`ekc govern --restore`) or the next governor puts back what
it tells.
"""

from __future__ import annotations

from ekc.devices.lease.keeper import LeaseKeeper
from ekc.devices.lease.leased import LeasedActuator
from ekc.devices.lease.restore import restore_all

__all__ = ["LeaseKeeper", "LeasedActuator", "restore_all"]
