"""Settings of the tests of clocks."""

from __future__ import annotations

import pytest

from ekc.devices.clocks import lease


@pytest.fixture(autouse=True)
def quick_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shorter heartbeat of the keepers in this process; their guards' timeouts stay."""
    monkeypatch.setattr(lease, "HEARTBEAT_INTERVAL_S", 0.15)
