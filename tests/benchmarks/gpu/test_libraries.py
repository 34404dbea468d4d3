"""`versus` on a scripted GPU with scripted libraries: planted truths, and a run that is killed."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import plan, pytorch, versus
from benchmarks.gpu.folder import Folder
from benchmarks.gpu.items import make_conv, make_matmul
from benchmarks.gpu.kit import Budget, Kit, describe_conditions
from ekc.devices.cuda.device import CudaDevice
from ekc.errors import DeviceError
from ekc.ir.schedule.naive import make_naive_schedule
from tests.scripted.cuda.library_node import LibraryNode, build_libraries, hire_with_libraries

NAMES = ("cuBLASLt 13.1.2, algorithm 2", "cuDNN 9.19.0, algorithm 0 on tensor cores")
ITEMS = (make_matmul(16, 16, 16, "float32"), make_conv(1, 4, 6, 4, 3, 1, "float16"))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    return build_libraries(tmp_path_factory.mktemp("libraries"), compiler)


@pytest.fixture(autouse=True)
def _small(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cuda-cache"))
    monkeypatch.setattr(versus, "list_versus_items", lambda: iter(ITEMS))
    monkeypatch.setattr(plan, "list_schedules", lambda kit, item, count: [make_naive_schedule(item.op)])
    monkeypatch.setattr(pytorch, "is_installed", lambda: False)


@pytest.fixture
def device(libraries: tuple[Path, ...]) -> Iterator[CudaDevice]:
    """Ours takes 30 us at 250 W; the library 12 us (24 us its first choice) at 200 W; its third is wrong."""
    hire = hire_with_libraries(libraries, {"launch_s": 30e-6}, call_s=12e-6, wrong=0b100)
    opened = LibraryNode(library_w=200.0).open("cuda:0", hire)
    yield opened
    opened.close()


def open_kit(device: CudaDevice, folder: Path) -> Kit:
    return Kit("cuda:0", device, Folder(folder, describe_conditions(device, False, 0)), False, 0, False)


def test_planted_library_is_found_and_a_killed_run_goes_on(
    device: CudaDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_in_a_rotation(device, tmp_path, monkeypatch)
    kit = open_kit(device, tmp_path)
    versus.run(kit, Budget(3600.0))
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    taken = [row for row in rows if row["part"] == versus.SLICES]
    assert max(Counter((row["group"], row["round"], row["kernel"]) for row in taken).values()) == 1
    assert len([row for row in rows if row["part"] == versus.PART]) == len(ITEMS), "timed once"
    for item, name in zip(ITEMS, NAMES, strict=True):
        row = kit.folder.find_row("versus", item.row)
        assert row is not None
        assert versus._count_missing_rounds(kit, item.row) == 0
        slices = versus._read_slices(kit, row)
        check_ratios(row, slices, name)
        (wrong,) = row["absent"].values()
        assert wrong.startswith("wrong result: executed on Scripted A100")
    before = (tmp_path / "rows.jsonl").read_text()
    versus.run(kit, Budget(3600.0))
    assert (tmp_path / "rows.jsonl").read_text() == before, "nothing is measured twice"
    table = versus.make_table(kit)
    assert "MM 16^3 float32: ekc 30." in table
    assert "cuBLASLt 13.1.2, algorithm 1 (its first" in table
    assert "cuBLASLt 13.1.2, algorithm 2 (fastest," in table
    assert "fastest sustained, least energy)" in table


def kill_in_a_rotation(device: CudaDevice, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends in the second round of the first item."""
    kit, real = open_kit(device, folder), Folder.add_row

    def add_row(self: Folder, part: str, item: str, status: str, **facts: Any) -> Any:
        made = real(self, part, item, status, **facts)
        if part == versus.SLICES and facts.get("round") == 1:
            raise KeyboardInterrupt
        return made

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "add_row", add_row)
        with pytest.raises(KeyboardInterrupt):
            versus.run(kit, Budget(3600.0))


def check_ratios(row: Any, slices: Any, name: str) -> None:
    """A fifth of the power saved on top of the time."""
    sustained = slices.compare(name, "latency_s")
    energy = slices.compare(name, "energy_j")
    assert sustained is not None
    assert energy is not None
    assert sustained.ratio == pytest.approx(12 / 30, rel=0.03)
    assert sustained.is_significant
    assert energy.ratio / sustained.ratio == pytest.approx(200 / 260, rel=0.05)
    assert energy.is_significant
    short = versus.compute_ratio(row["figures"]["ekc"]["latency_s"], row["figures"][name]["latency_s"])
    assert short is not None
    assert short.ratio == pytest.approx(12 / 30, rel=0.03)


def test_missing_library_has_a_reason(tmp_path: Path) -> None:
    device = LibraryNode().open("cuda:0", hire_with_libraries((), {"launch_s": 30e-6}))
    try:
        device.list_library_kernels(ITEMS[0].op, 1)
    except DeviceError:
        kit = open_kit(device, tmp_path)
        versus.run(kit, Budget(3600.0))
        row = kit.folder.find_row("versus", ITEMS[0].row)
        assert row is not None
        assert row["absent"]["cuBLAS"].startswith("cuBLASLt is not found: pip install nvidia-cublas")
        assert row["status"] == "ok"
        assert "cuBLAS: not run: cuBLASLt is not found" in versus.make_table(kit)
    device.close()
