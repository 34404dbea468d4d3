"""Properties of a lease: no limit is looser than before, and all are restored, for any calls and guard
actions."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies
from hypothesis.strategies import SearchStrategy

from ekc.devices.clocks import lease_file
from ekc.devices.clocks.lease import LeasedActuator
from ekc.devices.clocks.limits import LIMITS, ActuatorReference, Limit
from ekc.devices.clocks.restore import end_lease
from ekc.errors import ActuatorError
from ekc.governor.protocols import Gears, Settings

GEARS = Gears((600, 900, 1200, 1500), (405, 5001, 9251), (100.0, 200.0, 300.0))


class InMemoryLimits:
    """Limits in memory, with a driver that can refuse."""

    label = "a card in memory"

    def __init__(self, before: Settings) -> None:
        self.reference = ActuatorReference("memory", f"GPU-{uuid.uuid4()}")
        self.limits = before
        self.is_refusing = False
        self.limits_history: list[Settings] = []

    def gears(self) -> Gears:
        return GEARS

    def settings(self) -> Settings:
        return Settings(power_w=self.limits.power_w)

    def check_permission(self) -> None: ...

    def set_limit(self, limit: Limit, value: float | None) -> None:
        if self.is_refusing:
            raise ActuatorError("refused")
        self.limits = replace(self.limits, **{limit: value})
        self.limits_history.append(self.limits)


def _limit_settings() -> SearchStrategy[Settings]:
    choices = (strategies.sampled_from([None, *getattr(GEARS, limit)]) for limit in LIMITS)
    return strategies.builds(Settings, *choices)


def _lease_moves() -> SearchStrategy[list[tuple[str, Settings]]]:
    kinds = strategies.sampled_from(["apply", "refused", "guard steps in"])
    return strategies.lists(strategies.tuples(kinds, _limit_settings()), max_size=12)


@pytest.fixture(autouse=True, scope="module")
def _lease_folder(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EKC_RUN_DIR", str(tmp_path_factory.mktemp("leases")))
        yield


@given(before=_limit_settings(), moves=_lease_moves())
@settings(max_examples=150, deadline=None)
def test_all_limits_are_restored(before: Settings, moves: list[tuple[str, Settings]]) -> None:
    card = InMemoryLimits(before)

    def renew() -> None:
        leased.retake()
        leased.reapply()

    leased = LeasedActuator(card, before, renew)
    for kind, wanted in moves:
        card.is_refusing = kind == "refused"
        if kind == "guard steps in":
            end_lease(leased.lease, card)
            assert card.limits == before
        try:
            leased.apply(wanted)
        except ActuatorError:
            continue
        assert leased.settings() == wanted
        for limit in LIMITS:
            asked, was = getattr(wanted, limit), getattr(before, limit)
            in_force = getattr(card.limits, limit)
            assert in_force == (was if asked is None else asked if was is None else min(asked, was))
    card.is_refusing = False
    leased.end()
    assert card.limits == before
    assert not lease_file.make_lease_path(card.reference.gpu).exists()
    for limits in card.limits_history:
        for limit in LIMITS:
            was = getattr(before, limit)
            assert was is None or getattr(limits, limit) <= was
