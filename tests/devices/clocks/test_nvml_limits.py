"""Limits set through NVML: their offered, refusals and messages."""

from __future__ import annotations

import pytest

from ekc.devices.clocks.limits import NvmlLimits, Settings
from ekc.devices.clocks.open import choose_actuator
from ekc.errors import ActuatorError
from tests.devices.clocks.helpers import check_all_limits
from tests.scripted.nvml.boards import GEARS, ScriptedBoards

NO_PERMISSION, NOT_SUPPORTED = 4, 3


def test_nvml_sets_upper_limits(here: ScriptedBoards) -> None:
    settable = NvmlLimits(here.get_uuid(0))
    assert settable.label == "NVML, GPU 0 (Scripted GPU)"
    check_all_limits(settable, here)


def test_offered_values_are_the_settable_ones(here: ScriptedBoards) -> None:
    offered = NvmlLimits(here.get_uuid()).list_offered()
    assert offered.sm_mhz == tuple(GEARS)
    assert offered.memory_mhz == (405, 5001, 9251)
    assert offered.power_w[0] == 100.0
    assert offered.power_w[-1] == 350.0
    here.update_board(0, arch=6)
    assert NvmlLimits(here.get_uuid()).list_offered().memory_mhz == ()
    here.update_board(0, arch=4)
    assert NvmlLimits(here.get_uuid()).list_offered().sm_mhz == ()


def test_card_without_a_settable_cap_has_no_caps(here: ScriptedBoards) -> None:
    here.update_script(fail={"nvmlDeviceGetPowerManagementLimitConstraints": NOT_SUPPORTED})
    settable = NvmlLimits(here.get_uuid())
    assert settable.list_offered().power_w == ()
    assert settable.settings() == Settings()
    settable.check_permission()


@pytest.mark.parametrize(
    ("fail", "words"),
    [
        ({"nvmlDeviceSetGpuLockedClocks": NO_PERMISSION}, "needs root or CAP_SYS_ADMIN"),
        ({"nvmlDeviceSetGpuLockedClocks": NOT_SUPPORTED}, "cannot do it"),
        ({"nvmlDeviceSetGpuLockedClocks": 15}, "fell off the bus"),
        ({"nvmlDeviceSetGpuLockedClocks": 999}, "Unknown Error"),
    ],
)
def test_nvml_refusal_is_one_line(here: ScriptedBoards, fail: dict[str, int], words: str) -> None:
    settable = NvmlLimits(here.get_uuid())
    here.update_script(fail=fail)
    with pytest.raises(ActuatorError, match=r"setting the SM clock of GPU 0 \(Scripted GPU\)") as caught:
        settable.set_limit("sm_mhz", 1200)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_permission_check_changes_nothing(here: ScriptedBoards) -> None:
    assert isinstance(choose_actuator("auto", here.get_uuid()), NvmlLimits)
    assert here.read_limits() == (None, None, 280_000)


@pytest.mark.parametrize(("now_mw", "top"), [(250_000, 300.0), (300_000, 300.0), (320_000, 320.0)])
def test_caps_end_at_the_default(here: ScriptedBoards, now_mw: int, top: float) -> None:
    """Many cards permit a cap above the default, but a search uses the top value as the default."""
    here.update_board(0, default_mw=300_000)
    here.set_state(0, limit_mw=now_mw)
    assert NvmlLimits(here.get_uuid()).list_offered().power_w[-1] == top
