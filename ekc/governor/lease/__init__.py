"""The promise that previous settings come back, whatever ends the governor.

`Keeper` writes a lease file per GPU before anything is set, starts a guard process that watches the
governor, and puts everything back at the end. Where governor and guard both die, the file stays, and
`restore_all` (`ekc govern --restore`) or the next governor puts back what it tells.
"""

from __future__ import annotations

from ekc.governor.lease.keeper import Keeper
from ekc.governor.lease.leased import Leased
from ekc.governor.lease.restore import restore_all

__all__ = ["Keeper", "Leased", "restore_all"]
