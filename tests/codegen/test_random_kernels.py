"""Random legal schedules are kernels that NVRTC and ptxas take."""

from __future__ import annotations

import pytest

from ekc.codegen import nvrtc
from ekc.codegen.generate import generate
from tests.codegen.test_execute_on_host import drawn


@pytest.mark.parametrize("part", range(4))
def test_random_schedules_compile(part: int) -> None:
    for schedule in drawn(20)[part::4]:
        made = generate(schedule)
        output = nvrtc.compile(made.source, "sm_80")
        assert set(output.resources) == {launch.name for launch in made.launches}, schedule.to_python()
