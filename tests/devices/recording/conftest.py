from __future__ import annotations

from pathlib import Path

import pytest

from tests.devices.recording.helpers import record


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recording") / "small.jsonl.gz")
